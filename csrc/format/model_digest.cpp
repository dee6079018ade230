#include "format/model_digest.h"

#include <algorithm>

#include "codec/hmac.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPurpose = "tensorizer_ops model digest 1";

}  // namespace

Sha256Digest model_digest(const Catalogue& catalogue, ConstBytes data_digests, Cancel& cancel) {
  Pace pace(cancel);
  std::vector<NamedEntry> names = all_names(catalogue);
  std::sort(names.begin(), names.end(), [&](const NamedEntry& a, const NamedEntry& b) {
    pace.step();
    return a.name < b.name;
  });
  Sha256 digest;
  std::vector<std::byte> message;
  ByteWriter out(message);
  out.put_text<std::uint64_t>(kPurpose);
  out.put(static_cast<std::uint64_t>(names.size()));
  for (const NamedEntry& named : names) {
    pace.step();
    const Entry& entry = catalogue.entries()[named.entry];
    out.put_text<std::uint64_t>(named.name);
    out.put(static_cast<std::uint8_t>(named.type));
    out.put_text<std::uint64_t>(stored_dtype(*entry.dtype));
    out.put(static_cast<std::uint64_t>(entry.shape.size()));
    for (const std::int64_t dimension : entry.shape) out.put(dimension);
    out.put_bytes(data_digests.subspan(named.entry * kSha256Size, kSha256Size));
    // A tie takes a few bytes in the file, and as many as its tensor here.
    digest.update(message);
    message.clear();
  }
  digest.update(message);
  return digest.finish();
}

}  // namespace tensorizer
