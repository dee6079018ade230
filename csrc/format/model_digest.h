// One digest for all contents of a file, however they are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "format/catalogue.h"

namespace tensorizer {

// Both versions are the same for a plain and an encrypted file, and for any order and padding. A
// tensor with several names counts as several.
enum class DigestVersion : std::uint8_t {
  Tensors = 1,  // over stored names, types, dtypes, shapes, and the SHA-256 of each tensor's data
  Chunks = 2,   // over names, dtypes, shapes, and the SHA-256 of each chunk of each tensor's data
};

// The size of the chunks that DigestVersion::Chunks is made of.
inline constexpr std::uint64_t kModelDigestChunk = 1 << 20;

struct ModelDigest {
  DigestVersion version = DigestVersion::Tensors;
  Sha256Digest sha256{};

  friend bool operator==(const ModelDigest&, const ModelDigest&) = default;
};

// Returns the digest in hexadecimal, behind "v2:" if it is of that version.
std::string to_text(const ModelDigest& digest);
// Returns null if the text is not one that to_text() returns, in digits of any case.
std::optional<ModelDigest> parse_model_digest(std::string_view text);

// Return the digest of a file. Every dtype must be known. `data_digests` has one digest for each
// entry, in their order; `chunks` those of chunks of kModelDigestChunk.
ModelDigest model_digest(const Catalogue& catalogue, ConstBytes data_digests, Cancel& cancel);
ModelDigest model_digest(const Catalogue& catalogue, const ChunkDigests& chunks, Cancel& cancel);

// A tensor of a model that no file holds.
struct DigestedTensor {
  std::string_view name;  // as a program asks for it
  DType dtype;
  std::span<const std::int64_t> shape;
  std::uint64_t data_size;
  ConstBytes chunks;  // the SHA-256 of each chunk of kModelDigestChunk
};

// Returns the digest of version 2. No name appears twice.
ModelDigest model_digest(std::vector<DigestedTensor> tensors, Cancel& cancel);

}  // namespace tensorizer
