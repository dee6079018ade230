#include "codec/sha256.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <utility>
#include <vector>

#include "codec/sha256_variants.h"

namespace tensorizer {
namespace {

constexpr std::size_t kBlock = kSha256BlockSize;
constexpr std::size_t kLengthAt = kBlock - sizeof(std::uint64_t);  // in a message's last block

template <std::unsigned_integral T>
T big_endian(T value) noexcept {
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  return __builtin_bswap32(value);
}

// The whole blocks to compress for one message: those of `first`, then those of `second`.
struct Work {
  std::uint32_t* state;
  ConstBytes first;
  ConstBytes second;
};

// Compresses the work that next(Work&) returns, until it returns false. When the message of a lane
// ends, the lane takes the next message, so messages of any lengths keep all lanes busy until the
// last few.
template <typename Next>
void compress_all(Sha256Variant variant, Next next) noexcept {
  std::uint32_t* states[kMostSha256Lanes];
  const std::byte* blocks[kMostSha256Lanes];
  std::size_t left[kMostSha256Lanes];  // blocks, never 0
  ConstBytes then[kMostSha256Lanes];
  std::size_t busy = 0;

  bool more = true;
  while (true) {
    while (more && busy < variant.kernels.size()) {
      Work work;
      more = next(work);
      if (!more) break;
      if (work.first.empty()) std::swap(work.first, work.second);
      if (work.first.empty()) continue;
      states[busy] = work.state;
      blocks[busy] = work.first.data();
      left[busy] = work.first.size() / kBlock;
      then[busy] = work.second;
      ++busy;
    }
    if (busy == 0) return;

    const std::size_t count = *std::min_element(left, left + busy);
    for (std::size_t first = 0, lanes = 0; first < busy; first += lanes) {
      lanes = busy - first;
      while (variant.kernels[lanes - 1] == nullptr) --lanes;
      variant.kernels[lanes - 1](states + first, blocks + first, count);
    }
    for (std::size_t lane = busy; lane-- > 0;) {
      blocks[lane] += count * kBlock;
      left[lane] -= count;
      if (left[lane] > 0) continue;
      if (!then[lane].empty()) {
        blocks[lane] = then[lane].data();
        left[lane] = then[lane].size() / kBlock;
        then[lane] = {};
        continue;
      }
      --busy;
      states[lane] = states[busy];
      blocks[lane] = blocks[busy];
      left[lane] = left[busy];
      then[lane] = then[busy];
    }
  }
}

Sha256Variant best_variant() noexcept {
  static const std::vector<Sha256Kernel> kernels = [] {
    const Sha256Variant shani = sha256_shani();
    return sha256_fastest(shani.kernels.empty() ? sha256_libcrypto() : shani, sha256_avx512());
  }();
  return {kernels};
}

}  // namespace

struct Sha256Access {
  static std::size_t waiting(const Sha256& message) noexcept { return message.size_ % kBlock; }

  // The first `filling` bytes complete the waiting block; the last `tail` bytes wait for the next
  // one.
  struct Split {
    std::size_t filling;
    std::size_t body;
    std::size_t tail;
  };
  static Split split(const Sha256& message, std::size_t size) noexcept {
    const std::size_t already = waiting(message);
    if (already + size < kBlock) return {0, 0, size};
    const std::size_t filling = already == 0 ? 0 : kBlock - already;
    return {filling, (size - filling) / kBlock * kBlock, (size - filling) % kBlock};
  }

  static void update(Sha256Variant variant, std::span<const Sha256Update> updates) noexcept {
    std::size_t taken = 0;
    compress_all(variant, [&](Work& work) {
      if (taken == updates.size()) return false;
      const auto& [message, bytes] = updates[taken++];
      const auto [filling, body, tail] = split(*message, bytes.size());
      work = {message->state_.data(), {}, bytes.subspan(filling, body)};
      if (filling > 0) {
        std::memcpy(message->partial_.data() + waiting(*message), bytes.data(), filling);
        work.first = message->partial_;
      }
      return true;
    });
    // Copy the tails only now: the waiting blocks that they overwrite have been compressed.
    for (const auto& [message, bytes] : updates) {
      const std::size_t tail = split(*message, bytes.size()).tail;
      const std::size_t at = tail == bytes.size() ? waiting(*message) : 0;
      if (tail > 0) std::memcpy(message->partial_.data() + at, bytes.last(tail).data(), tail);
      message->size_ += bytes.size();
    }
  }

  static void finish(Sha256Variant variant, std::span<Sha256* const> messages,
                     std::span<Sha256Digest> digests) noexcept {
    // Padding is one bit, zeros and the length in bits. If the length does not fit behind the last
    // bytes, these are compressed as a block of their own first.
    std::size_t taken = 0;
    compress_all(variant, [&](Work& work) {
      if (taken == messages.size()) return false;
      Sha256& message = *messages[taken++];
      const std::size_t used = waiting(message) + 1;
      message.partial_[used - 1] = std::byte{0x80};
      std::memset(message.partial_.data() + used, 0, kBlock - used);
      work = {message.state_.data(), {}, {}};
      if (used > kLengthAt) work.first = message.partial_;
      return true;
    });
    taken = 0;
    compress_all(variant, [&](Work& work) {
      if (taken == messages.size()) return false;
      Sha256& message = *messages[taken++];
      if (waiting(message) + 1 > kLengthAt) message.partial_ = {};
      const std::uint64_t bits = big_endian(message.size_ * 8);
      std::memcpy(message.partial_.data() + kLengthAt, &bits, sizeof(bits));
      work = {message.state_.data(), message.partial_, {}};
      return true;
    });
    for (std::size_t i = 0; i < messages.size(); ++i) {
      auto words = messages[i]->state_;
      for (auto& word : words) word = big_endian(word);
      digests[i] = std::bit_cast<Sha256Digest>(words);
    }
  }
};

Sha256::Sha256() noexcept
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::update(ConstBytes bytes) noexcept {
  const Sha256Update update{this, bytes};
  sha256_update({&update, 1});
}

Sha256Digest Sha256::finish() noexcept {
  Sha256* const message = this;
  Sha256Digest digest;
  sha256_finish({&message, 1}, {&digest, 1});
  return digest;
}

std::vector<Sha256Kernel> sha256_fastest(Sha256Variant few, Sha256Variant many) {
  std::vector<Sha256Kernel> kernels(few.kernels.begin(), few.kernels.end());
  for (std::size_t lanes = few.kernels.size() + 1; lanes <= many.kernels.size(); ++lanes) {
    // One pass of AVX-512 over all lanes takes as long as nine messages with SHA instructions, four
    // of them at once, or as three messages with libcrypto on a processor without them.
    const std::size_t turns = (lanes + few.kernels.size() - 1) / few.kernels.size();
    kernels.push_back(turns < 3 ? nullptr : many.kernels[lanes - 1]);
  }
  return kernels;
}

int sha256_lanes() noexcept { return static_cast<int>(best_variant().kernels.size()); }

void sha256_update(std::span<const Sha256Update> updates) noexcept {
  sha256_update(best_variant(), updates);
}

void sha256_finish(std::span<Sha256* const> messages, std::span<Sha256Digest> digests) noexcept {
  sha256_finish(best_variant(), messages, digests);
}

void sha256_update(Sha256Variant variant, std::span<const Sha256Update> updates) noexcept {
  Sha256Access::update(variant, updates);
}

void sha256_finish(Sha256Variant variant, std::span<Sha256* const> messages,
                   std::span<Sha256Digest> digests) noexcept {
  Sha256Access::finish(variant, messages, digests);
}

}  // namespace tensorizer
