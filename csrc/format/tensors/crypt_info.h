// Crypt info: the section of a tensor's header that says how its data is encrypted. The hashes of
// the tensor do not cover it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/catalogue.h"
#include "format/layout.h"

namespace tensorizer {

// The size of the chunks that this library writes. The last one of a tensor may be shorter.
inline constexpr std::uint64_t kCryptChunk = 2 << 20;

// The smallest chunk size that is accepted in a file.
inline constexpr std::uint64_t kSmallestCryptChunk = 1024;

constexpr std::uint64_t chunks_of(std::uint64_t data_size, std::uint64_t chunk_size) {
  return data_size / chunk_size + (data_size % chunk_size != 0 ? 1 : 0);
}

// Parses the section, without its length field. If it is malformed or does not fit the data, sets
// `fault` to the end of a sentence about the header. The MACs of the result point into `section`.
CryptInfo parse_crypt_info(ConstBytes section, std::uint64_t data_size, std::string& fault);

// Returns the size of the section, its length field included.
std::uint64_t crypt_info_size(const Encryption& encryption, std::uint64_t data_size);

// The nonce of a section that was appended, and the offset of its MACs, which are its last field.
// An empty tensor has neither.
struct CryptInfoLocation {
  Nonce nonce{};
  std::size_t macs_at = 0;
};
// Appends the section with a fresh nonce, and with zeros for the MACs.
CryptInfoLocation put_crypt_info(std::vector<std::byte>& out, const Encryption& encryption,
                                 std::uint64_t data_size);

// A derivation as crypt info and the authentication record store it. put_derivation() appends
// kDerivationSize bytes. take_derivation() parses them; if they are malformed, it sets `fault` and
// returns nullopt.
inline constexpr std::uint64_t kDerivationSize = 2 + 8 + 8 + 4 + 2 + kSaltSize;
void put_derivation(std::vector<std::byte>& out, const KeyDerivation& derivation);
std::optional<KeyDerivation> take_derivation(Cursor& cursor, std::string& fault);

}  // namespace tensorizer
