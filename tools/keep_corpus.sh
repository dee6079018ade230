#!/bin/sh
# Keeps in tests/cpp/corpus, for later runs to begin with, the fewest and smallest of the inputs that
# `make fuzz` has found and that reach as much code as all of them. Needs the fuzz targets to be built.
set -eu
mkdir -p tests/cpp/corpus
for source in tests/cpp/fuzz_*.cpp; do
    name=$(basename "$source" .cpp)
    least=build/fuzz/least/$name
    rm -rf "$least"
    mkdir -p "$least"
    "build/asan/$name" -merge=1 -max_len=4096 "$least" "build/fuzz/corpus/$name" \
        "build/fuzz/seeds/$name" >"build/fuzz/$name.merge.log" 2>&1
    rm -f "tests/cpp/corpus/$name.zip"
    (cd "$least" && python3 -m zipfile -c "../../../../tests/cpp/corpus/$name.zip" ./*)
    echo "$name: $(find "$least" -type f | wc -l) inputs, $(wc -c <"tests/cpp/corpus/$name.zip") bytes"
done
