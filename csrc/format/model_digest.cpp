#include "format/model_digest.h"

#include <algorithm>
#include <vector>

#include "codec/hmac.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPurpose = "tensorizer_ops model digest 1";
constexpr std::string_view kChunksPurpose = "tensorizer_ops model digest 2";
constexpr std::string_view kChunksMark = "v2:";

// Puts what a digest covers of each name, in the byte order of the names.
template <typename Put>
Sha256Digest digest_of(std::string_view purpose, std::vector<NamedEntry> names, const Put& put,
                       Cancel& cancel) {
  Pace pace(cancel);
  std::sort(names.begin(), names.end(), [&](const NamedEntry& a, const NamedEntry& b) {
    pace.step();
    return a.name < b.name;
  });
  Sha256 digest;
  std::vector<std::byte> message;
  ByteWriter out(message);
  out.put_text<std::uint64_t>(purpose);
  out.put(static_cast<std::uint64_t>(names.size()));
  for (const NamedEntry& named : names) {
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

void put_kind(ByteWriter& out, const Entry& entry) {
  out.put_text<std::uint64_t>(stored_dtype(*entry.dtype));
  out.put(static_cast<std::uint64_t>(entry.shape.size()));
  for (const std::int64_t dimension : entry.shape) out.put(dimension);
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
    put_kind(out, catalogue.entries()[named.entry]);
    out.put_bytes(data_digests.subspan(named.entry * kSha256Size, kSha256Size));
  };
  return {DigestVersion::Tensors, digest_of(kPurpose, all_names(catalogue), put, cancel)};
}

ModelDigest model_digest(const Catalogue& catalogue, const ChunkDigests& chunks, Cancel& cancel) {
  std::vector<NamedEntry> names = all_names(catalogue);
  const std::vector<std::string_view> clean = clean_names(names);
  for (std::size_t i = 0; i < names.size(); ++i) names[i].name = clean[i];
  const auto put = [&](ByteWriter& out, const NamedEntry& named) {
    const Entry& entry = catalogue.entries()[named.entry];
    put_kind(out, entry);
    out.put(entry.data_size);
    out.put_bytes(chunks.digests(named.entry));
  };
  return {DigestVersion::Chunks, digest_of(kChunksPurpose, std::move(names), put, cancel)};
}

}  // namespace tensorizer
