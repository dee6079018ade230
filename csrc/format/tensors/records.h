// The records that this library reads and writes behind the last index entry.
//
// The metadata record has the texts that a program stores with its tensors. The ties record has
// further names of tensors. The data-digests record has the SHA-256 of each tensor's data, so that
// a file can be loaded in part with its digest checked. The chunk-digests record, whose kind says
// which hash it is, has the SHA-256 of each tensor's header and the digest of each chunk of its
// data, so that parts of tensors can be checked, and large tensors by all processors.
//
// The last record covers everything before it. In an encrypted file that is the authentication
// record, which authenticates names, types, shapes and offsets with its MAC. It also has a digest
// of each tensor's header, which holds the MACs of the data, and so authenticates which data
// belongs to which tensor. In a plain file it is the seal, a SHA-256.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"
#include "format/catalogue.h"
#include "format/tensors/crypt_info.h"

namespace tensorizer {

inline constexpr std::uint16_t kAuthenticationRecord = 1;
inline constexpr std::uint16_t kDataDigestsRecord = 2;
inline constexpr std::uint16_t kSha256ChunksRecord = 3;
inline constexpr std::uint16_t kMetadataRecord = 4;
inline constexpr std::uint16_t kTiesRecord = 5;
// No flipped bit makes this one of the other kinds.
inline constexpr std::uint16_t kSealRecord = 15;

// The authentication record of an encrypted file. It points into the index.
struct Authentication {
  std::optional<KeyDerivation> derivation;
  ConstBytes header_digests;  // of each tensor's whole header, in the order of the entries
  ConstBytes mac;
  std::size_t covered = 0;  // how many bytes of the index come before the MAC

  ConstBytes header_digest(std::size_t entry) const {
    return header_digests.subspan(entry * kSha256Size, kSha256Size);
  }
};

// Parses the body of an authentication record. If it is malformed, sets `fault` to the end of a
// sentence about the record. The caller sets `covered`.
Authentication parse_authentication(ConstBytes body, std::size_t tensors, std::string& fault);

// Parses the body of a metadata record. If it is malformed, sets `fault` to the end of a sentence
// about the record. The result points into `body`.
std::vector<MetadataPair> parse_metadata(ConstBytes body, std::string& fault, Cancel& cancel);

// Parses the body of a ties record and checks each tie, but not whether its name is another
// tensor's. If it is malformed, sets `fault` to the end of a sentence about the record. The result
// points into `body`.
std::vector<Tie> parse_ties(ConstBytes body, std::span<const Entry> entries, std::string& fault,
                            Cancel& cancel);
// Returns the hash of a chunk-digests record; null for a record of another kind.
std::optional<Hash> hash_of_chunks(std::uint16_t record) noexcept;
// Returns whether there is a record of the digests of chunks by this hash.
bool lists_chunks_by(Hash hash) noexcept;
// Parses the body of a chunk-digests record. If it is malformed, sets `fault` to the end of a
// sentence about the record. The result points into `body`.
ChunkDigests parse_chunk_digests(Hash hash, ConstBytes body, std::span<const Entry> entries,
                                 std::string& fault);

// Returns the digest that seals a file header and the part of the index before the digest.
Sha256Digest seal_of(ConstBytes file_header, ConstBytes index);

// Returns the MAC of a file header and of the part of the index before the MAC. Uses a key that is
// derived from the file's key for this purpose only.
Sha256Digest metadata_mac(ConstBytes key, ConstBytes file_header, ConstBytes index);

// Returns the size of the records of a file that is written, the frame around them included.
std::uint64_t records_size(const FileKind& kind, std::size_t tensors, std::size_t chunks,
                           std::span<const SavedTie> ties);

// Append a record to a prefix that already has the magic of the frame. Throw Error(InvalidArgument)
// if there are too many tensors for a record.
void put_data_digests(std::vector<std::byte>& prefix, std::span<const Sha256Digest> digests);
void put_chunk_digests(std::vector<std::byte>& prefix, const FileKind& kind,
                       std::span<const Sha256Digest> header_digests,
                       std::span<const Digest> digests);
void put_metadata(std::vector<std::byte>& prefix, const Metadata& metadata);
void put_ties(std::vector<std::byte>& prefix, std::span<const SavedTie> ties);
void put_seal(std::vector<std::byte>& prefix);
void put_authentication(std::vector<std::byte>& prefix, const Encryption& encryption,
                        std::span<const Sha256Digest> header_digests);

}  // namespace tensorizer
