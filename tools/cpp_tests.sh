#!/bin/sh
# Builds the C++ unit tests in build/NAME with the given CMake options, and runs them:
# cpp_tests.sh NAME [OPTION...]
set -eu
name=$1
shift

cmake -S tests/cpp -B "build/$name" -G Ninja --log-level=WARNING "$@" >/dev/null
cmake --build "build/$name"

runner=""
# ThreadSanitizer cannot work where the kernel scatters addresses widely.
if [ "$name" = tsan ] && setarch --addr-no-randomize true 2>/dev/null; then
    runner="setarch --addr-no-randomize"
fi
$runner ctest --test-dir "build/$name" --parallel 2 --output-on-failure
