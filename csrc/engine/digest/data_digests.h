// The digests of all data of a file, which its own digest is made of (format/model_digest).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "format/catalogue.h"
#include "format/model_digest.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// Returns how to save a file that lists them, for messages.
const char* how_to_list(DigestVersion version) noexcept;

// A job has them in place of the digests that the file keeps for verification. If the file lists
// them, the job compares data with this list, otherwise it computes and keeps them.
class DataDigests {
 public:
  // Returns whether the file lists them.
  static bool are_listed(const Catalogue& catalogue, DigestVersion version) noexcept;

  // `catalogue` must outlive this object. Throws Error(InvalidArgument) if there are more chunks to
  // compute than a file can list. `label` is that of the file.
  DataDigests(const Catalogue& catalogue, DigestVersion version, bool listed, std::string label);

  // Returns whether they are those of chunks of kModelDigestChunk, and not of whole tensors.
  bool in_chunks() const noexcept { return version_ == DigestVersion::Chunks; }
  bool listed() const noexcept { return listed_; }
  // Returns the digest that a tensor must have; none if they are only computed.
  Digests expected_of(std::uint32_t entry) const;

  // Keep digests of a tensor: of all of its data, or of its chunks from one on. Do nothing if they
  // are listed. Thread-safe for different tensors and chunks.
  void keep(std::uint32_t entry, const Digests& found) noexcept;
  void keep(std::uint32_t entry, std::uint64_t chunk, std::span<const Digest> digests) noexcept;

  // Returns the digests of a tensor's chunks, computed or listed.
  ConstBytes chunks_of(std::uint32_t entry) const;

  // Returns the digest of the file. All data must have been digested, if they are not listed.
  // Throws Error(InvalidArgument) if a dtype is not known.
  ModelDigest model_digest(Cancel& cancel) const;

 private:
  const Catalogue& catalogue_;
  const DigestVersion version_;
  const bool listed_;
  const std::string label_;
  std::vector<std::uint64_t> first_;  // number of each tensor's first digest
  std::vector<Digest> computed_;
};

// Returns whether the digests of chunks that a file lists are compared, in place of those of whole
// tensors. `data_digests` are those of the job, if any.
bool compares_chunks(const Catalogue& catalogue, Verify verify, const DataDigests* data_digests);

}  // namespace tensorizer
