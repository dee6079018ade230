#!/bin/sh
# Builds the C++ unit tests and runs them: cpp_tests.sh tests|asan|tsan
set -eu
name=$1

tools/cpp_build.sh "$name"

runner=""
# ThreadSanitizer does not work if the kernel randomizes addresses over a wide range.
if [ "$name" = tsan ] && setarch --addr-no-randomize true 2>/dev/null; then
    runner="setarch --addr-no-randomize"
fi
$runner ctest --test-dir "build/$name" --parallel 3 --output-on-failure
