#!/bin/sh
# Builds the layers that need no torch, and their C++ tests, for 64-bit ARM in build/aarch64, and runs
# the tests under QEMU. Checks that digests use the processor's instructions for SHA-256 and CRC32.
set -eu
build=build/aarch64
sysroot=$PWD/$build/sysroot
triplet=aarch64-linux-gnu
# The libraries of tools/packages-build.txt, with those that they need, and the tests' own.
libraries="libcurl4-openssl-dev libdeflate-dev libgtest-dev libhiredis-dev libsimdjson-dev
    libsodium-dev libssl-dev zlib1g-dev"

# Debian's packages for ARM, unpacked in a folder of their own: nothing is installed for it.
if [ ! -e "$sysroot/done" ]; then
    rm -rf "$sysroot" "$build/apt"
    mkdir -p "$sysroot" "$build/apt/state/lists/partial" "$build/apt/cache/archives/partial"
    : >"$build/apt/status"
    get() {
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 \
            -o Dir::State="$PWD/$build/apt/state" -o Dir::State::status="$PWD/$build/apt/status" \
            -o Dir::Cache="$PWD/$build/apt/cache" -o Debug::NoLocking=true \
            -o APT::Sandbox::User="$(id -un)" "$@"
    }
    echo "Getting the libraries for $triplet"
    get update
    # shellcheck disable=SC2086 # several words
    get install --download-only --no-install-recommends $libraries >/dev/null
    for package in "$build"/apt/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$sysroot"
    done
    # Links from the root of a system would lead into that of this machine.
    find "$sysroot" -type l -lname '/*' | while read -r link; do
        ln -sf "$sysroot$(readlink "$link")" "$link"
    done
    touch "$sysroot/done"
fi

export PKG_CONFIG_LIBDIR="$sysroot/usr/lib/$triplet/pkgconfig:$sysroot/usr/share/pkgconfig"
export PKG_CONFIG_SYSROOT_DIR="$sysroot"
cmake -S tests/cpp -B "$build" -G Ninja --log-level=WARNING \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER="$triplet-g++" -DCMAKE_SYSROOT="$sysroot" \
    -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
    -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;$sysroot" >/dev/null
cmake --build "$build"
# What QEMU does otherwise than a kernel: a limit of memory does not bind a program, nothing is known
# about the page cache, and posix_spawn() does not say that a program is missing.
GTEST_FILTER=-DeriveKey.SaysWhenThereIsNotThatMuchMemory:IoTest.ReadsFiles
GTEST_FILTER=$GTEST_FILTER:CommandTest.SaysHowItFailedAndNoMore
GTEST_FILTER=$GTEST_FILTER:S3CredentialsTest.ComeFromProgramsThatPrintThem
export GTEST_FILTER
ctest --test-dir "$build" --parallel 2 --output-on-failure

# QEMU writes down every instruction that it translates.
qemu-aarch64 -L "$sysroot" -d in_asm -D "$build/instructions" "$build/codec_test" >/dev/null
for instruction in sha256h 'crc32x|pmull2?'; do
    if ! grep -qwE "$instruction" "$build/instructions"; then
        echo "aarch64.sh: no digest uses the processor's $instruction" >&2
        exit 1
    fi
done
echo "SHA-256 and CRC32 use the instructions of the processor."
