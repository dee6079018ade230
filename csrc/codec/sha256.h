// SHA-256 over many messages at once.
//
// A Sha256 is the state of one message and may be fed piece by piece. sha256_update() feeds several
// messages at the same time: if the processor has SHA instructions or AVX-512, independent messages
// interleave in one thread and run two or three times as fast as one after another. So pass several
// messages together where possible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace tensorizer {

inline constexpr std::size_t kSha256Size = 32;
using Sha256Digest = std::array<std::byte, kSha256Size>;

class Sha256 {
 public:
  Sha256() noexcept;

  void update(ConstBytes bytes) noexcept;

  // Returns the digest of everything fed so far. The object must not be used afterwards.
  Sha256Digest finish() noexcept;

 private:
  friend struct Sha256Access;

  std::array<std::uint32_t, 8> state_;
  std::uint64_t size_ = 0;
  std::array<std::byte, 64> partial_;  // its first size_ % 64 bytes wait for a whole block
};

struct Sha256Update {
  Sha256* message;
  ConstBytes bytes;
};

// Returns how many messages are worth passing together; 1 if the processor hashes one at a time.
int sha256_lanes() noexcept;

// Feeds each message its bytes. The messages must be distinct; the sizes may differ.
void sha256_update(std::span<const Sha256Update> updates) noexcept;

// Sets digests[i] to what messages[i]->finish() returns. Worth it for small messages, whose
// padding is a large part of the work. The messages must be distinct, and as many as digests.
void sha256_finish(std::span<Sha256* const> messages, std::span<Sha256Digest> digests) noexcept;

}  // namespace tensorizer
