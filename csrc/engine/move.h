// The heart of a job: workers that move tasks and digest what passes through.
//
// What moves and how is the Mover's affair: a load reads, a save writes. move() decides who does
// what when. A bundle is moved and digested by one worker. The slices of a sliced tensor move in
// any order, on any worker; their CRC32s are taken on the way and joined, and SHA-256 follows in
// order, over several tensors at once, by whichever worker is free, while the bytes are likely to
// be in cache.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <semaphore>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "engine/digest.h"
#include "engine/plan.h"
#include "engine/tensor_access.h"

namespace tensorizer {

// Seconds that workers computed, all of them together.
struct ComputeTime {
  double digests = 0;
  double copies = 0;   // to where tensors belong, and casts
  double ciphers = 0;  // encrypting, or decrypting, and authenticating
};

// How far a job is; read from any thread.
struct Progress {
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};
  ComputeTime computed;  // when it has ended
};

// At most `threads` workers compute at a time; the rest wait for bytes.
class ComputeSlots {
 public:
  enum class Work : std::uint8_t { Digest, Copy, Cipher };

  // Everyone's turn, always, when there are no more workers than threads.
  ComputeSlots(int threads, int workers) : limited_(workers > threads), slots_(threads) {}

  class Slot {
   public:
    Slot(ComputeSlots& slots, Work work) : slots_(slots), work_(work) {
      if (slots_.limited_) slots_.slots_.acquire();
      begin_ = Clock::now();
    }
    ~Slot() {
      const std::chrono::nanoseconds spent = Clock::now() - begin_;
      slots_.spent_[static_cast<std::size_t>(work_)] += static_cast<std::uint64_t>(spent.count());
      if (slots_.limited_) slots_.slots_.release();
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

   private:
    ComputeSlots& slots_;
    const Work work_;
    std::chrono::steady_clock::time_point begin_;
  };

  ComputeTime spent() const noexcept {
    const auto seconds = [&](Work work) {
      return static_cast<double>(spent_[static_cast<std::size_t>(work)]) / 1e9;
    };
    return {seconds(Work::Digest), seconds(Work::Copy), seconds(Work::Cipher)};
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool limited_;
  std::counting_semaphore<> slots_;
  std::array<std::atomic<std::uint64_t>, 3> spent_{};  // nanoseconds
};

// What belongs to one worker.
struct Worker {
  Cancel& cancel;
  ComputeSlots& slots;
  TensorAccess& access;
};

// The CRC32 of a slice, if anyone wants it.
class SliceDigest {
 public:
  SliceDigest(bool wanted, ComputeSlots& slots) : wanted_(wanted), slots_(slots) {}

  bool wanted() const noexcept { return wanted_; }
  std::uint32_t crc32() const noexcept { return crc32_; }

  // The next bytes of the slice, best while they are in the processor's cache.
  void update(ConstBytes bytes);

 private:
  const bool wanted_;
  ComputeSlots& slots_;
  std::uint32_t crc32_ = 0;
};

// All functions are called from any worker, several at a time, but never for the same task or
// tensor at the same time as finish().
class Mover {
 public:
  virtual ~Mover() = default;

  // Moves whole tensors, digests included.
  virtual void move_bundle(const Task& task, Worker& worker) = 0;

  // Moves one slice, updates its digest with all of it, in order, and returns where its bytes are:
  // there they stay for SHA-256 until let_go().
  virtual ConstBytes move_slice(const Task& task, SliceDigest& digest, Worker& worker) = 0;

  // After the first slice of a tensor has moved.
  virtual DigestStart digest_start(std::uint32_t tensor) = 0;

  // Called when the bytes of a slice are no longer needed.
  virtual void let_go(std::uint32_t tensor, ConstBytes slice) { (void)tensor, (void)slice; }

  // After the whole of a sliced tensor has moved and been digested.
  virtual void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) = 0;
};

struct MoveSettings {
  int threads = 1;          // that compute
  int moves_in_flight = 1;  // slices and bundles that move at the same time
  bool crc32 = false;       // whether any tensor wants it
  bool sha256 = false;
  int lanes = 1;  // over how many tensors SHA-256 should go at once
  // How many slices may be on their way or wait to be hashed at the same time.
  std::size_t most_slices = std::numeric_limits<std::size_t>::max();
  OpenAccess open_access = default_access;
};

ComputeTime move(const Plan& plan, Mover& mover, const MoveSettings& settings, Cancel& cancel);

}  // namespace tensorizer
