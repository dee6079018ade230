#include "format/model_digest.h"

#include <algorithm>
#include <numeric>

#include "codec/hmac.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPurpose = "tensorizer_ops model digest 1";

}  // namespace

Sha256Digest model_digest(const Catalogue& catalogue, ConstBytes data_digests, Cancel& cancel) {
  Pace pace(cancel);
  const std::span<const Entry> entries = catalogue.entries();
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    pace.step();
    return entries[a].name < entries[b].name;
  });
  Sha256 digest;
  std::vector<std::byte> message;
  ByteWriter out(message);
  out.put_text<std::uint64_t>(kPurpose);
  out.put(static_cast<std::uint64_t>(entries.size()));
  for (const std::uint32_t number : order) {
    pace.step();
    const Entry& entry = entries[number];
    out.put_text<std::uint64_t>(entry.name);
    out.put(static_cast<std::uint8_t>(entry.type));
    out.put_text<std::uint64_t>(stored_dtype(*entry.dtype));
    out.put(static_cast<std::uint64_t>(entry.shape.size()));
    for (const std::int64_t dimension : entry.shape) out.put(dimension);
    out.put_bytes(data_digests.subspan(number * kSha256Size, kSha256Size));
    digest.update(message);
    message.clear();
  }
  digest.update(message);
  return digest.finish();
}

}  // namespace tensorizer
