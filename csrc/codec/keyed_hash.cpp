#include "codec/keyed_hash.h"

#include <sodium/crypto_shorthash.h>

#include <array>
#include <bit>

#include "codec/secret_bytes.h"

namespace tensorizer {

namespace {

using HashKey = std::array<std::byte, crypto_shorthash_KEYBYTES>;

HashKey random_key() {
  HashKey key;
  fill_random(key);
  return key;
}

}  // namespace

std::uint64_t keyed_hash(std::string_view text) noexcept {
  static const HashKey key = random_key();
  std::array<unsigned char, crypto_shorthash_BYTES> hash;
  crypto_shorthash(hash.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                   reinterpret_cast<const unsigned char*>(key.data()));
  return std::bit_cast<std::uint64_t>(hash);
}

}  // namespace tensorizer
