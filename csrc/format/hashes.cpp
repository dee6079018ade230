#include "format/hashes.h"

#include <algorithm>
#include <cstring>

namespace tensorizer {

namespace {

HashSet those(HashSet hashes, bool joining) {
  for (const HashInfo& info : kHashes) {
    if ((info.join != nullptr) != joining) hashes.set(info.hash, false);
  }
  return hashes;
}

}  // namespace

void update_hash(HashState& state, ConstBytes bytes) {
  std::visit([&](auto& own) { own.update(bytes); }, state);
}

Digest finish_hash(HashState& state) {
  return std::visit([](auto& own) { return digest_of(own.finish()); }, state);
}

Digest digest_of(ConstBytes bytes) {
  Digest digest{};
  std::ranges::copy(bytes, digest.begin());
  return digest;
}

std::uint32_t crc32_of(const Digest& digest) noexcept {
  std::uint32_t crc = 0;
  std::memcpy(&crc, digest.data(), sizeof(crc));
  return crc;
}

Digest join_crc32s(const Digest& first, const Digest& second, std::uint64_t second_size) {
  const std::uint32_t crc = crc32_join(crc32_of(first), crc32_of(second), second_size);
  return digest_of(std::as_bytes(std::span(&crc, 1)));
}

bool HashSet::has_all(const HashSet& others) const noexcept {
  return std::ranges::all_of(
      kHashes, [&](const HashInfo& info) { return has(info.hash) || !others.has(info.hash); });
}

HashSet HashSet::joining() const noexcept { return those(*this, true); }
HashSet HashSet::in_order() const noexcept { return those(*this, false); }

HashSet hashes_of(const Digests& digests) noexcept {
  HashSet hashes;
  for (const HashInfo& info : kHashes) hashes.set(info.hash, digests[info.hash].has_value());
  return hashes;
}

const HashInfo* differing(const Digests& expected, const Digests& found) noexcept {
  const HashInfo* differs = nullptr;
  for (const HashInfo& info : kHashes) {
    const auto& right = expected[info.hash];
    const auto& own = found[info.hash];
    if (!right) continue;
    if (!own || std::memcmp(right->data(), own->data(), info.size) != 0) differs = &info;
  }
  return differs;
}

Digests join(Digests first, const Digests& second, std::uint64_t second_size) {
  for (const HashInfo& info : kHashes) {
    auto& digest = first[info.hash];
    if (digest && second[info.hash]) digest = info.join(*digest, *second[info.hash], second_size);
  }
  return first;
}

RunningDigests::RunningDigests(HashSet hashes) {
  for (const HashInfo& info : kHashes) {
    if (hashes.has(info.hash)) states_[info.hash] = info.start();
  }
}

RunningDigests::RunningDigests(const DigestStart& start) : RunningDigests(start.hashes) {
  for (const ConstBytes part : start.header) update(part);
}

void RunningDigests::update(ConstBytes bytes) {
  each([&](Hash, HashState& state) { update_hash(state, bytes); });
}

Digests RunningDigests::finish() {
  Digests digests;
  each([&](Hash hash, HashState& state) { digests[hash] = finish_hash(state); });
  return digests;
}

void update_hashes(std::span<const HashUpdate> updates) {
  std::vector<Sha256Update> sha256s;
  sha256s.reserve(updates.size());
  for (const auto& [state, bytes] : updates) {
    if (auto* const sha256 = std::get_if<Sha256>(state)) {
      sha256s.push_back({sha256, bytes});
    } else {
      update_hash(*state, bytes);
    }
  }
  sha256_update(sha256s);
}

std::vector<Digest> hash_all(Hash hash, std::span<const HashedParts> messages) {
  std::vector<HashState> states(messages.size(), info_of(hash).start());
  std::vector<HashUpdate> updates(messages.size());
  for (std::size_t part = 0; part < std::tuple_size_v<HashedParts>; ++part) {
    for (std::size_t i = 0; i < messages.size(); ++i) updates[i] = {&states[i], messages[i][part]};
    update_hashes(updates);
  }
  std::vector<Digest> digests(messages.size());
  std::vector<Sha256*> sha256s;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (auto* const sha256 = std::get_if<Sha256>(&states[i])) {
      sha256s.push_back(sha256);
    } else {
      digests[i] = finish_hash(states[i]);
    }
  }
  if (!sha256s.empty()) sha256_finish(sha256s, digests);
  return digests;
}

std::vector<Digests> digest_all(std::span<const DigestStart> starts,
                                std::span<const ConstBytes> data) {
  std::vector<Digests> digests(starts.size());
  for (const HashInfo& info : kHashes) {
    std::vector<std::size_t> wanted;
    std::vector<HashedParts> messages;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      if (!starts[i].hashes.has(info.hash)) continue;
      wanted.push_back(i);
      messages.push_back({starts[i].header[0], starts[i].header[1], data[i]});
    }
    const std::vector<Digest> found = hash_all(info.hash, messages);
    for (std::size_t i = 0; i < found.size(); ++i) digests[wanted[i]][info.hash] = found[i];
  }
  return digests;
}

}  // namespace tensorizer
