// The digests of one tensor, and of many at once.
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

// What the digests of a tensor cover in front of its data, and which of them are wanted.
struct DigestStart {
  std::array<ConstBytes, 2> header{};
  bool crc32 = false;
  bool sha256 = false;
};

// The digests of a tensor whose data comes in order, a piece at a time.
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

// The digests of tensors whose data is all there.
std::vector<Digests> digest_all(std::span<const DigestStart> starts,
                                std::span<const ConstBytes> data);

}  // namespace tensorizer
