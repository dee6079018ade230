#!/bin/sh
# Builds the fuzz targets and runs them one after another, for so many seconds together:
# fuzz.sh SECONDS
# Inputs that found new code are kept in build/fuzz/corpus; one that fails is left in build/fuzz.
set -eu
set -- "$1" tests/cpp/fuzz_*.cpp
seconds=$(($1 / ($# - 1)))

cmake -S tests/cpp -B build/fuzz -G Ninja --log-level=WARNING -DFUZZ=ON \
    -DCMAKE_CXX_COMPILER=clang++-14 >/dev/null
cmake --build build/fuzz

python3 tests/cpp/make_corpus.py build/fuzz/seeds
shift
for source in "$@"; do
    target=$(basename "$source" .cpp)
    mkdir -p "build/fuzz/corpus/$target"
    log="build/fuzz/$target.log"
    # The limit on memory is part of the test: no length in a file may make it take more.
    if ! "build/fuzz/$target" "build/fuzz/corpus/$target" "build/fuzz/seeds/$target" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=128 -artifact_prefix="build/fuzz/" -print_final_stats=1 \
        >"$log" 2>&1; then
        tail -n 100 "$log"
        exit 1
    fi
    echo "$target: $(grep number_of_executed_units "$log" | tr -dc 0-9) inputs in $seconds s"
done
