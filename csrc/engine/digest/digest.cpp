#include "engine/digest/digest.h"

#include "codec/crc32.h"

namespace tensorizer {

std::uint32_t crc32_with_header(const DigestStart& start, std::uint32_t data, std::uint64_t size) {
  std::uint32_t crc = 0;
  for (const ConstBytes part : start.header) crc = crc32(crc, part);
  return crc32_join(crc, data, size);
}

RunningDigests::RunningDigests(const DigestStart& start)
    : wants_crc32_(start.crc32), wants_sha256_(start.sha256) {
  for (const ConstBytes part : start.header) update(part);
}

void RunningDigests::update(ConstBytes bytes) {
  if (wants_crc32_) crc32_ = crc32(crc32_, bytes);
  if (wants_sha256_) sha256_.update(bytes);
}

Digests RunningDigests::finish() {
  Digests digests;
  digests.crc32 = crc32_;
  if (wants_sha256_) digests.sha256 = sha256_.finish();
  return digests;
}

std::vector<Digests> digest_all(std::span<const DigestStart> starts,
                                std::span<const ConstBytes> data) {
  std::vector<Digests> digests(starts.size());
  std::vector<Sha256> messages(starts.size());
  std::vector<Sha256Update> updates;
  updates.reserve(starts.size());
  const auto update_all = [&](auto&& part) {
    updates.clear();
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const ConstBytes bytes = part(i);
      if (bytes.empty()) continue;
      if (starts[i].crc32) digests[i].crc32 = crc32(digests[i].crc32, bytes);
      if (starts[i].sha256) updates.push_back({&messages[i], bytes});
    }
    sha256_update(updates);
  };
  update_all([&](std::size_t i) { return starts[i].header[0]; });
  update_all([&](std::size_t i) { return starts[i].header[1]; });
  update_all([&](std::size_t i) { return data[i]; });
  std::vector<Sha256*> wanted;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i].sha256) wanted.push_back(&messages[i]);
  }
  std::vector<Sha256Digest> finished(wanted.size());
  sha256_finish(wanted, finished);
  auto next = finished.begin();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i].sha256) digests[i].sha256 = *next++;
  }
  return digests;
}

}  // namespace tensorizer
