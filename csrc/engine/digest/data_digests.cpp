#include "engine/digest/data_digests.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorizer {

const char* how_to_list(DigestVersion version) noexcept {
  return version == DigestVersion::Tensors ? "save the file with the option 'digests', or with "
                                             "hashes=\"chunked\" and use its digest of version 2"
                                           : "save the file with hashes=\"chunked\" and chunks of "
                                             "1048576 bytes, and an encrypted "
                                             "one with the option 'plain_digests' as well";
}

bool DataDigests::are_listed(const Catalogue& catalogue, DigestVersion version) noexcept {
  const ChunkDigests& chunks = catalogue.chunk_digests();
  return version == DigestVersion::Tensors
             ? !catalogue.data_digests().empty()
             : chunks.chunk_size() == kModelDigestChunk && chunks.hash() == Hash::Sha256;
}

DataDigests::DataDigests(const Catalogue& catalogue, DigestVersion version, bool listed,
                         std::string label)
    : catalogue_(catalogue), version_(version), listed_(listed), label_(std::move(label)) {
  if (listed) return;
  if (in_chunks()) {
    first_ = first_chunks(catalogue.entries(), kModelDigestChunk);
    if (first_.back() > kMostChunks) {
      throw Error(ErrorKind::InvalidArgument,
                  label_ + ": the tensors have " + std::to_string(first_.back()) + " chunks of " +
                      std::to_string(kModelDigestChunk) + " bytes, and a digest of version 2 is " +
                      "made of " + std::to_string(kMostChunks) + " at most: use version 1");
    }
    computed_.resize(first_.back());
  } else {
    // Data that is not there is never digested.
    computed_.assign(catalogue.entries().size(), Sha256().finish());
  }
}

Digests DataDigests::expected_of(std::uint32_t entry) const {
  Digests expected;
  if (!listed_) return expected;
  expected[Hash::Sha256] =
      digest_of(catalogue_.data_digests().subspan(entry * kSha256Size, kSha256Size));
  return expected;
}

void DataDigests::keep(std::uint32_t entry, const Digests& found) noexcept {
  if (!listed_) computed_[entry] = *found[Hash::Sha256];
}

void DataDigests::keep(std::uint32_t entry, std::uint64_t chunk,
                       std::span<const Digest> digests) noexcept {
  if (listed_) return;
  const std::span<Digest> all(computed_);
  std::ranges::copy(digests, all.subspan(first_[entry] + chunk).begin());
}

ConstBytes DataDigests::chunks_of(std::uint32_t entry) const {
  if (listed_) return catalogue_.chunk_digests().digests(entry);
  const std::span<const Digest> all(computed_);
  return std::as_bytes(all.subspan(first_[entry], first_[entry + 1] - first_[entry]));
}

ModelDigest DataDigests::model_digest(Cancel& cancel) const {
  for (const Entry& entry : catalogue_.entries()) {
    if (entry.dtype) continue;
    throw Error(ErrorKind::InvalidArgument,
                label_ +
                    ": its digest cannot be made, because a stream does not give the dtype of "
                    "empty tensors in advance: load it from a file");
  }
  const ConstBytes computed = std::as_bytes(std::span(computed_));
  if (!in_chunks()) {
    return tensorizer::model_digest(catalogue_, listed_ ? catalogue_.data_digests() : computed,
                                    cancel);
  }
  if (listed_) return tensorizer::model_digest(catalogue_, catalogue_.chunk_digests(), cancel);
  return tensorizer::model_digest(catalogue_,
                                  {Hash::Sha256, kModelDigestChunk, {}, computed, first_}, cancel);
}

bool compares_chunks(const Catalogue& catalogue, Verify verify, const DataDigests* data_digests) {
  if (data_digests != nullptr) return data_digests->in_chunks() && data_digests->listed();
  const ChunkDigests& chunks = catalogue.chunk_digests();
  if (catalogue.encrypted() || chunks.empty()) return false;
  // A format without tensor headers has no CRC32.
  return verify == Verify::All || (verify == Verify::Crc32 && !chunks.covers_headers());
}

}  // namespace tensorizer
