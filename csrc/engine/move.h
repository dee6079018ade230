// The heart of a job: workers that move ranges and digest what passes through.
//
// What moves and how is the Mover's affair: a load reads, a save writes. move() decides who does
// what when. A bundle is moved and digested by one worker. The slices of a cut tensor move in any
// order, on any worker; their CRC32s are taken on the way and joined, and SHA-256 follows in order,
// over several tensors at once, by whichever worker is free, while the bytes are likely to be in
// cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <semaphore>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "engine/digest.h"
#include "engine/plan.h"
#include "engine/stage.h"

namespace tensorizer {

// How far a job is; read from any thread.
struct Progress {
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};
};

// At most `threads` workers compute at a time; the rest wait for bytes.
class ComputeTurns {
 public:
  // Everyone's turn, always, when there are no more workers than threads.
  ComputeTurns(int threads, int workers) : limited_(workers > threads), turns_(threads) {}

  class Turn {
   public:
    explicit Turn(ComputeTurns& turns) : turns_(turns) {
      if (turns_.limited_) turns_.turns_.acquire();
    }
    ~Turn() {
      if (turns_.limited_) turns_.turns_.release();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ComputeTurns& turns_;
  };

 private:
  bool limited_;
  std::counting_semaphore<> turns_;
};

// What belongs to one worker.
struct Worker {
  Cancel& cancel;
  ComputeTurns& turns;
  Stage& stage;
};

// All functions are called from any worker, several at a time, but never for the same range or
// tensor at the same time as finish().
class Mover {
 public:
  virtual ~Mover() = default;

  // Moves whole tensors, digests included.
  virtual void move_bundle(const Range& range, Worker& worker) = 0;

  // Moves one slice and returns where its bytes are. For a CRC32 they stay there until this
  // worker's next call; for SHA-256 until finish().
  virtual ConstBytes move_slice(const Range& range, Worker& worker) = 0;

  // After the first slice of a tensor has moved.
  virtual DigestStart digest_start(std::uint32_t tensor) = 0;

  // After the whole of a cut tensor has moved and been digested.
  virtual void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) = 0;
};

struct MoveSettings {
  int threads = 1;          // that compute
  int moves_in_flight = 1;  // slices and bundles that move at the same time
  bool crc32 = false;       // whether any tensor wants it
  bool sha256 = false;
  int lanes = 1;  // over how many tensors SHA-256 should go at once
  MakeStage make_stage = std::make_unique<HeapStage>;
};

void move(const Plan& plan, Mover& mover, const MoveSettings& settings, Cancel& cancel);

}  // namespace tensorizer
