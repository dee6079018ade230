#!/bin/sh
# Measures which lines of csrc and tensorizer_ops the tests run: coverage.sh PYTHON [PYTEST_ARGUMENT...]
#
# Builds the library and the C++ tests with instrumentation in a copy of the sources, and runs all tests
# there. Fails if less than LEAST percent of the lines of csrc or of tensorizer_ops ran. The lines that did
# not are in build/coverage/{cpp,python}.txt. Processes that are killed leave no counts.
set -eu
python=$1
shift
least=${LEAST:-90}
count="--coverage -fprofile-update=atomic"
reports=$PWD/build/coverage
mkdir -p "$reports"
"$python" -c 'import sys; sys.path.insert(0, "tools"); from pathlib import Path; from copied_tree import copy_sources
copy_sources(Path(sys.argv[1]))' "$reports/tree"
cd "$reports/tree"

# The object files name the files with the counts, so they may not come from another folder's cache.
CCACHE_DISABLE=1 CFLAGS=$count LDFLAGS=--coverage "$python" -W ignore setup.py -q build_ext --inplace
cmake -S tests/cpp -B build/tests -G Ninja -DCMAKE_CXX_FLAGS="$count"
cmake --build build/tests
find . -name '*.gcda' -delete

printf '[run]\nsource = tensorizer_ops\nparallel = true\npatch = subprocess, _exit\ndata_file = %s/data\n' \
    "$reports" >"$reports/settings"
failed=0
ctest --test-dir build/tests -j2 --output-on-failure -Q || failed=1
PYTHONPATH=$PWD:$PWD/tests "$python" -m coverage run --rcfile="$reports/settings" \
    -m pytest -q -n 2 --dist loadgroup "${@:-tests}" || failed=1

"$python" -m gcovr --root . --filter csrc/ --merge-mode-functions merge-use-line-min \
    --gcov-ignore-errors all -j2 --txt "$reports/cpp.txt" --fail-under-line "$least" build || failed=1
"$python" -m coverage combine -q --rcfile="$reports/settings"
"$python" -m coverage report --rcfile="$reports/settings" -m --fail-under="$least" \
    >"$reports/python.txt" || failed=1
tail -n 3 "$reports/cpp.txt" "$reports/python.txt"
exit $failed
