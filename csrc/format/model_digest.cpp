#include "format/model_digest.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "codec/hmac.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPurpose = "tensorizer_ops model digest 1";
constexpr std::string_view kChunksPurpose = "tensorizer_ops model digest 2";
constexpr std::string_view kChunksMark = "v2:";

// Puts what a digest covers of each name, in the byte order of the names.
template <typename Named, typename Put>
Sha256Digest digest_of(std::string_view purpose, std::vector<Named> names, const Put& put,
                       Cancel& cancel) {
  Pace pace(cancel);
  std::sort(names.begin(), names.end(), [&](const Named& a, const Named& b) {
    pace.step();
    return a.name < b.name;
  });
  Sha256 digest;
  std::vector<std::byte> message;
  ByteWriter out(message);
  out.put_text<std::uint64_t>(purpose);
  out.put(static_cast<std::uint64_t>(names.size()));
  for (const Named& named : names) {
    pace.step();
    out.put_text<std::uint64_t>(named.name);
    put(out, named);
    // A tie takes a few bytes in the file, and as many as its tensor here.
    digest.update(message);
    message.clear();
  }
  digest.update(message);
  return digest.finish();
}

void put_kind(ByteWriter& out, DType dtype, std::span<const std::int64_t> shape) {
  out.put_text<std::uint64_t>(stored_dtype(dtype));
  out.put(static_cast<std::uint64_t>(shape.size()));
  for (const std::int64_t dimension : shape) out.put(dimension);
}

}  // namespace

std::string to_text(const ModelDigest& digest) {
  const bool chunks = digest.version == DigestVersion::Chunks;
  return std::string(chunks ? kChunksMark : "") + to_hex(digest.sha256);
}

std::optional<ModelDigest> parse_model_digest(std::string_view text) {
  ModelDigest digest;
  if (text.starts_with(kChunksMark)) {
    digest.version = DigestVersion::Chunks;
    text.remove_prefix(kChunksMark.size());
  }
  if (!from_hex(text, digest.sha256)) return std::nullopt;
  return digest;
}

ModelDigest model_digest(const Catalogue& catalogue, ConstBytes data_digests, Cancel& cancel) {
  const auto put = [&](ByteWriter& out, const NamedEntry& named) {
    out.put(static_cast<std::uint8_t>(named.type));
    const Entry& entry = catalogue.entries()[named.entry];
    put_kind(out, *entry.dtype, entry.shape);
    out.put_bytes(data_digests.subspan(named.entry * kSha256Size, kSha256Size));
  };
  return {DigestVersion::Tensors, digest_of(kPurpose, all_names(catalogue), put, cancel)};
}

ModelDigest model_digest(const Catalogue& catalogue, const ChunkDigests& chunks, Cancel& cancel) {
  const std::vector<NamedEntry> names = all_names(catalogue);
  const std::vector<std::string_view> clean = clean_names(names);
  std::vector<DigestedTensor> tensors;
  tensors.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Entry& entry = catalogue.entries()[names[i].entry];
    tensors.push_back(
        {clean[i], *entry.dtype, entry.shape, entry.data_size, chunks.digests(names[i].entry)});
  }
  return model_digest(std::move(tensors), cancel);
}

ModelDigest model_digest(std::vector<DigestedTensor> tensors, Cancel& cancel) {
  const auto put = [&](ByteWriter& out, const DigestedTensor& tensor) {
    put_kind(out, tensor.dtype, tensor.shape);
    out.put(tensor.data_size);
    out.put_bytes(tensor.chunks);
  };
  return {DigestVersion::Chunks, digest_of(kChunksPurpose, std::move(tensors), put, cancel)};
}

}  // namespace tensorizer
