#include <openssl/sha.h>

#include <array>
#include <cstring>

#include "codec/sha256_variants.h"

namespace tensorizer {
namespace {

// EVP cannot keep the raw state between calls, and an EVP call costs more than a block. The
// low-level functions are deprecated since OpenSSL 3.0, and still run the fastest code for the
// processor.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void libcrypto_compress(std::uint32_t* const states[], const std::byte* const blocks[],
                        std::size_t count) noexcept {
  // The context holds no partial block, so whole blocks go straight to the compression.
  SHA256_CTX context{};
  static_assert(sizeof(context.h) == sizeof(std::uint32_t) * 8);
  std::memcpy(context.h, states[0], sizeof(context.h));
  SHA256_Update(&context, blocks[0], count * kSha256BlockSize);
  std::memcpy(states[0], context.h, sizeof(context.h));
}
#pragma GCC diagnostic pop

constexpr std::array<Sha256Kernel, 1> kLibcryptoKernels{libcrypto_compress};

}  // namespace

Sha256Variant sha256_libcrypto() noexcept { return {kLibcryptoKernels}; }

}  // namespace tensorizer
