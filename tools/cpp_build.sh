#!/bin/sh
# Builds the C++ unit tests in build/NAME: cpp_build.sh tests|asan|tsan [OPTION of cmake --build...]
# The asan build also has the fuzz targets, and therefore needs clang, which also compiles and runs the
# tsan build in two thirds of GCC's time.
set -eu
name=$1
shift

case $name in
tests) options= ;;
asan) options="-DSANITIZE=address -DCMAKE_CXX_COMPILER=clang++-14" ;;
tsan) options="-DSANITIZE=thread -DCMAKE_CXX_COMPILER=clang++-14" ;;
*)
    echo "cpp_build.sh: unknown build '$name' (tests, asan or tsan)" >&2
    exit 2
    ;;
esac

# shellcheck disable=SC2086 # several words
cmake -S tests/cpp -B "build/$name" -G Ninja --log-level=WARNING $options >/dev/null
cmake --build "build/$name" "$@"
