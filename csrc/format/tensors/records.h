// The records that this library writes behind the last index entry, and understands.
//
// One keeps the SHA-256 of each tensor's data, so that a file can be pinned and loaded in part. The
// other authenticates an encrypted file's metadata: names, types, shapes and places, and with a
// digest of each tensor's header, which holds the MACs of its data, also which data belongs to
// which tensor. It is the last one, and its MAC, the last of it, covers all that stands before the
// MAC.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"
#include "format/tensors/crypt_info.h"

namespace tensorizer {

inline constexpr std::uint16_t kAuthenticationRecord = 1;
inline constexpr std::uint16_t kDataDigestsRecord = 2;

// The record of an encrypted file; it points into the index.
struct Authentication {
  std::optional<KeyDerivation> derivation;
  ConstBytes header_digests;  // of each tensor's whole header, in the order of the entries
  ConstBytes mac;
  std::size_t covered = 0;  // how much of the index stands before the MAC

  ConstBytes header_digest(std::size_t entry) const {
    return header_digests.subspan(entry * kSha256Size, kSha256Size);
  }
};

// Where the body is malformed, `fault` says how; `covered` is left to the caller.
Authentication parse_authentication(ConstBytes body, std::size_t tensors, std::string& fault);

// The MAC of a file header and what of the index stands before it, by a key that is made from the
// file's for nothing else.
Sha256Digest metadata_mac(ConstBytes key, ConstBytes file_header, ConstBytes index);

// What the records of a file that is written will take, the frame around them included; nothing
// where there are none.
std::uint64_t records_size(const std::optional<Encryption>& encryption, bool data_digests,
                           std::size_t tensors);

// Append a record to a prefix whose frame has begun.
void put_data_digests(std::vector<std::byte>& prefix, std::span<const Sha256Digest> digests);
void put_authentication(std::vector<std::byte>& prefix, const Encryption& encryption,
                        std::span<const Sha256Digest> header_digests);

}  // namespace tensorizer
