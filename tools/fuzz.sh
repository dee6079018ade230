#!/bin/sh
# Builds the fuzz targets and runs all of them in parallel for SECONDS: fuzz.sh SECONDS
# Inputs that reach new code are kept in build/fuzz/corpus; one that fails is left in build/fuzz.
set -eu
seconds=$1

tools/cpp_build.sh asan --target fuzzers
python3 tests/cpp/make_corpus.py build/fuzz/seeds

inputs() {
    grep -h number_of_executed_units "$@" | awk '{ sum += $2 } END { print sum }'
}

fuzz() {
    mkdir -p "build/fuzz/corpus/$1"
    log="build/fuzz/$1.log"
    # The memory limits are part of the test: no length in a file may cause larger allocations.
    if ! "build/asan/$1" "build/fuzz/corpus/$1" "build/fuzz/seeds/$1" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=128 -artifact_prefix="build/fuzz/" -print_final_stats=1 \
        >"$log" 2>&1; then
        tail -n 100 "$log"
        return 1
    fi
    echo "$1: $(inputs "$log") inputs"
}

echo "fuzzing for $seconds s"
running=
for source in tests/cpp/fuzz_*.cpp; do
    fuzz "$(basename "$source" .cpp)" &
    running="$running $!"
done
failed=0
for one in $running; do
    wait "$one" || failed=1
done
echo "all: $(inputs build/fuzz/*.log) inputs"
exit $failed
