// How one tensor is encrypted: a section of its header that no hash covers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/catalogue.h"

namespace tensorizer {

// What chunks we write; the last one of a tensor may be shorter.
inline constexpr std::uint64_t kCryptChunk = 2 << 20;

// The least that others may write.
inline constexpr std::uint64_t kSmallestCryptChunk = 1024;

constexpr std::uint64_t chunks_of(std::uint64_t data_size, std::uint64_t chunk_size) {
  return data_size / chunk_size + (data_size % chunk_size != 0 ? 1 : 0);
}

// Takes apart what stands behind the section's length. Where the section is malformed, or does not
// fit the data, `fault` says how, as the end of a sentence about the header.
CryptInfo parse_crypt_info(ConstBytes section, std::uint64_t data_size, std::string& fault);

// What a file that is written says of its encryption.
struct Encryption {
  SharedSecret key;
  std::optional<KeyDerivation> derivation;  // how the key came from a passphrase
};

// The section's size, with its length in front.
std::uint64_t crypt_info_size(const Encryption& encryption, std::uint64_t data_size);

// Appends the section, with a fresh nonce and MACs that are zero, and says where they start: behind
// everything else. An empty tensor has none.
struct CryptInfoLocation {
  Nonce nonce{};
  std::size_t macs_at = 0;
};
CryptInfoLocation put_crypt_info(std::vector<std::byte>& out, const Encryption& encryption,
                                 std::uint64_t data_size);

// A derivation as it stands in crypt info and in the file's own record: put_derivation() writes
// kDerivationSize bytes, which take_derivation() understands, or says what is wrong with.
inline constexpr std::uint64_t kDerivationSize = 2 + 8 + 8 + 4 + 2 + kSaltSize;
void put_derivation(std::vector<std::byte>& out, const KeyDerivation& derivation);
std::optional<KeyDerivation> take_derivation(Cursor& cursor, std::string& fault);

}  // namespace tensorizer
