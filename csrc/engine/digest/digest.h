// Computes the digests of one tensor piece by piece, or of several tensors at once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"

namespace tensorizer {

struct Digests {
  std::uint32_t crc32 = 0;
  Sha256Digest sha256{};
};

// Which digests of a tensor are wanted, and which parts of its header they cover before the data.
struct DigestStart {
  std::array<ConstBytes, 2> header{};
  bool crc32 = false;
  bool sha256 = false;
};

// Returns the CRC32 of the header in `start`, followed by data of this CRC32 and size.
std::uint32_t crc32_with_header(const DigestStart& start, std::uint32_t data, std::uint64_t size);

// Computes the digests of a tensor whose data arrives in order, piece by piece.
class RunningDigests {
 public:
  explicit RunningDigests(const DigestStart& start);
  void update(ConstBytes bytes);
  Digests finish();

 private:
  bool wants_crc32_;
  bool wants_sha256_;
  std::uint32_t crc32_ = 0;
  Sha256 sha256_;
};

// Returns the digests of tensors whose data is in memory in whole. Computes SHA-256 over several of
// them side by side.
std::vector<Digests> digest_all(std::span<const DigestStart> starts,
                                std::span<const ConstBytes> data);

}  // namespace tensorizer
