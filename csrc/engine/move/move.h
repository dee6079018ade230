// Runs a job: workers that move the tasks of a plan, and digest the bytes.
//
// The Mover knows how a task is moved: a load reads, a save writes. move() decides which worker
// does what, and when. One worker moves and digests a bundle. The strips of a large tensor move in
// any order, on any worker. Their CRC32s are computed as they move, and joined. SHA-256 follows in
// order, over several tensors at once, on any worker that is free, while the bytes are likely to be
// in cache.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/world.h"
#include "engine/move/plan.h"
#include "engine/move/tensor_access.h"
#include "format/hashes.h"

namespace tensorizer {

// Seconds that the workers spent computing, added up.
struct ComputeTime {
  double digests = 0;
  double copies = 0;   // from staging memory to tensors, and casts
  double ciphers = 0;  // encrypting, or decrypting, and authenticating
};

// The progress of a job. `done` and `total` may be read on any thread.
struct Progress {
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};
  ComputeTime computed;  // set when the job has ended
};

// Lets at most `threads` workers compute at a time, so that the others only wait for bytes, and
// measures how long they compute. Thread-safe.
//
// Not a std::counting_semaphore: that of GCC 12 can block for ever although a slot is free, when
// two threads wait and a third one releases between their last look and their wait.
class ComputeSlots {
 public:
  enum class Work : std::uint8_t { Digest, Copy, Cipher };

  // Limits nothing if there are no more workers than threads.
  ComputeSlots(int threads, int workers) : limited_(workers > threads), free_(threads) {}

  // Blocks until a slot is free, and holds it for the lifetime of this object.
  class Slot {
   public:
    Slot(ComputeSlots& slots, Work work) : slots_(slots), work_(work) {
      if (slots_.limited_) slots_.acquire();
      begin_ = Clock::now();
    }
    ~Slot() {
      const std::chrono::nanoseconds spent = Clock::now() - begin_;
      slots_.spent_[static_cast<std::size_t>(work_)] += static_cast<std::uint64_t>(spent.count());
      if (slots_.limited_) slots_.release();
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

   private:
    ComputeSlots& slots_;
    const Work work_;
    Clock::time_point begin_;
  };

  ComputeTime spent() const noexcept {
    const auto seconds = [&](Work work) {
      return static_cast<double>(spent_[static_cast<std::size_t>(work)]) / 1e9;
    };
    return {seconds(Work::Digest), seconds(Work::Copy), seconds(Work::Cipher)};
  }

 private:
  void acquire();
  void release();

  const bool limited_;
  std::mutex mutex_;
  std::condition_variable released_;
  int free_;
  std::array<std::atomic<std::uint64_t>, 3> spent_{};  // nanoseconds
};

// The resources that a Mover may use on one worker's thread.
struct Worker {
  Cancel& cancel;
  ComputeSlots& slots;
  TensorAccess& access;
};

// Computes those digests of a strip that are joined to those of its tensor.
class StripDigest {
 public:
  StripDigest(HashSet joining, ComputeSlots& slots)
      : wanted_(!joining.empty()), slots_(slots), running_(joining) {}

  bool wanted() const noexcept { return wanted_; }
  Digests finish() { return running_.finish(); }

  // Adds the next bytes of the strip. Best called while they are in the processor's cache.
  void update(ConstBytes bytes);

 private:
  const bool wanted_;
  ComputeSlots& slots_;
  RunningDigests running_;
};

// Methods are called on any worker, several at a time. finish() never runs at the same time as
// another call for the same tensor.
class Mover {
 public:
  virtual ~Mover() = default;

  // Moves whole tensors, digests included.
  virtual void move_bundle(const Task& task, Worker& worker) = 0;

  // Moves one strip, updates `digest` with all of its bytes in order, and returns them. They must
  // stay valid for SHA-256 until let_go().
  virtual ConstBytes move_strip(const Task& task, StripDigest& digest, Worker& worker) = 0;

  // Returns what to digest of a large tensor. Called once, when its first strip has moved.
  virtual DigestStart digest_start(std::uint32_t tensor) = 0;

  // Called when the bytes of a strip are no longer needed.
  virtual void let_go(std::uint32_t tensor, ConstBytes strip) { (void)tensor, (void)strip; }

  // Called when all of a large tensor has moved and been digested.
  virtual void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) = 0;

  // Called on each worker when it has nothing more to move.
  virtual void end(Worker& worker) { (void)worker; }
};

struct MoveSettings {
  int threads = 1;          // how many workers compute at the same time
  int moves_in_flight = 1;  // how many tasks move at the same time
  HashSet hashes{};         // those that are computed for any tensor
  int lanes = 1;            // how many tensors SHA-256 should hash side by side
  // How many strips may move or wait to be hashed at the same time.
  std::size_t most_strips = std::numeric_limits<std::size_t>::max();
  OpenAccess open_access = default_access;
};

// Moves all tasks of the plan and returns when all workers have ended. The first exception of a
// worker stops the others through `cancel` and is rethrown here.
ComputeTime move(const Plan& plan, Mover& mover, const MoveSettings& settings, Cancel& cancel);

}  // namespace tensorizer
