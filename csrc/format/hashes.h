// The hashes that files keep of tensors, and digests that they make.
//
// Where a new hash goes is in the table of docs/design.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "codec/crc32.h"
#include "codec/sha256.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// A digest of any hash, as files store it. Zeros follow a shorter one.
using Digest = std::array<std::byte, 32>;

// A hash of bytes that arrive in order.
using HashState = std::variant<Crc32, Sha256>;
void update_hash(HashState& state, ConstBytes bytes);
// Returns the digest. The state must not be used afterwards.
Digest finish_hash(HashState& state);

struct HashInfo {
  Hash hash;
  const char* name;  // in messages
  std::size_t size;  // of a digest, in bytes
  HashState (*start)();
  // Returns the digest of two runs of bytes, from that of each and the size of the second; null if
  // only one thread can hash all bytes in order.
  Digest (*join)(const Digest& first, const Digest& second, std::uint64_t second_size);
};

template <typename State>
HashState start_hash() {
  return State();
}
Digest join_crc32s(const Digest& first, const Digest& second, std::uint64_t second_size);

// In the order of Hash.
inline constexpr std::array kHashes{
    HashInfo{Hash::Crc32, "CRC32", kCrc32Size, start_hash<Crc32>, join_crc32s},
    HashInfo{Hash::Sha256, "SHA-256", kSha256Size, start_hash<Sha256>, nullptr},
};

constexpr const HashInfo& info_of(Hash hash) noexcept {
  return kHashes[static_cast<std::size_t>(hash)];
}

// A value for each hash.
template <typename T>
class ByHash {
 public:
  constexpr T& operator[](Hash hash) noexcept { return values_[static_cast<std::size_t>(hash)]; }
  constexpr const T& operator[](Hash hash) const noexcept {
    return values_[static_cast<std::size_t>(hash)];
  }
  friend bool operator==(const ByHash&, const ByHash&) = default;

 private:
  std::array<T, kHashes.size()> values_{};
};

class HashSet {
 public:
  constexpr HashSet(std::initializer_list<Hash> hashes = {}) noexcept {
    for (const Hash hash : hashes) has_[hash] = true;
  }
  // Takes those of whole tensors.
  constexpr HashSet(const HashKinds& kinds) noexcept {
    has_[Hash::Crc32] = kinds.crc32;
    has_[Hash::Sha256] = kinds.sha256;
  }

  constexpr bool has(Hash hash) const noexcept { return has_[hash]; }
  constexpr bool empty() const noexcept { return *this == HashSet(); }
  constexpr void set(Hash hash, bool has) noexcept { has_[hash] = has; }
  bool has_all(const HashSet& others) const noexcept;
  // Returns those of them whose digests join, or those that are computed in order.
  HashSet joining() const noexcept;
  HashSet in_order() const noexcept;

  friend constexpr bool operator==(const HashSet&, const HashSet&) = default;

 private:
  ByHash<bool> has_;
};

// The digests of some bytes that are stored, expected or found; null for other hashes.
using Digests = ByHash<std::optional<Digest>>;

HashSet hashes_of(const Digests& digests) noexcept;
// Returns the last hash whose expected digest is not the one that was found; null if all are.
const HashInfo* differing(const Digests& expected, const Digests& found) noexcept;
// Joins those digests that the bytes that follow have as well.
Digests join(Digests first, const Digests& second, std::uint64_t second_size);
std::uint32_t crc32_of(const Digest& digest) noexcept;
Digest digest_of(ConstBytes bytes);

// Which digests of a tensor are wanted, and which parts of its header they cover before the data.
struct DigestStart {
  std::array<ConstBytes, 2> header{};
  HashSet hashes{};
};

// Computes the digests of a tensor whose data arrives in order, piece by piece.
class RunningDigests {
 public:
  explicit RunningDigests(HashSet hashes = {});
  explicit RunningDigests(const DigestStart& start);

  void update(ConstBytes bytes);
  Digests finish();
  // Calls `use` with each hash and its state.
  template <typename Use>
  void each(const Use& use) {
    for (const HashInfo& info : kHashes) {
      if (auto& state = states_[info.hash]) use(info.hash, *state);
    }
  }

 private:
  ByHash<std::optional<HashState>> states_;
};

struct HashUpdate {
  HashState* state;
  ConstBytes bytes;
};

// Feeds several states, which must be distinct, side by side.
void update_hashes(std::span<const HashUpdate> updates);

// The bytes of one message, in order. Parts may be empty.
using HashedParts = std::array<ConstBytes, 3>;
// Returns the digests of several messages, computed side by side.
std::vector<Digest> hash_all(Hash hash, std::span<const HashedParts> messages);
// Returns the digests of tensors whose data is in memory in whole, computed side by side.
std::vector<Digests> digest_all(std::span<const DigestStart> starts,
                                std::span<const ConstBytes> data);

}  // namespace tensorizer
