#include "engine/move/move.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "engine/move/workers.h"

namespace tensorizer {

namespace {

// A strip whose bytes have moved and wait for hashes that go in order.
struct UnhashedStrip {
  std::uint64_t position;
  ConstBytes bytes;
};

struct HashedStrip {
  Digests digests;
  std::uint64_t size;
};

// A large tensor whose strips move. The scheduler's mutex guards everything but the values that
// only the worker that hashes it at the moment uses.
struct LargeState {
  std::uint32_t strips_to_move = 0;
  bool started = false;   // the first strip has moved, so the header is known
  bool finished = false;  // a worker has taken it to finish it
  bool in_order = false;  // whether it has hashes that go in order
  bool hashing = false;
  std::uint64_t hashed = 0;
  std::vector<UnhashedStrip> unhashed;
  std::vector<HashedStrip> strips;
  RunningDigests running;  // of the header, and for hashes that go in order of the data
};

struct Batch {
  std::vector<std::uint32_t> large;
  std::vector<ConstBytes> bytes;
};

class Scheduler {
 public:
  Scheduler(const Plan& plan, Mover& mover, const MoveSettings& settings, Cancel& cancel,
            int workers)
      : plan_(plan),
        mover_(mover),
        settings_(settings),
        cancel_(cancel),
        slots_(settings.threads, workers),
        joining_(settings.hashes.joining()),
        in_order_(settings.hashes.in_order()),
        large_(plan.large.size()),
        unfinished_(plan.tasks.size()) {
    for (std::size_t i = 0; i < large_.size(); ++i) {
      large_[i].strips_to_move = plan.large[i].strips;
      large_[i].strips.resize(plan.large[i].strips);
      unhashed_ += plan.large[i].size;
    }
    unfinished_ += large_.size();
  }

  ComputeTime computed() const noexcept { return slots_.spent(); }

  // Runs one worker until the job is done.
  void work() {
    TensorAccess access = settings_.open_access();
    Worker worker{cancel_, slots_, access};
    Batch batch;
    std::unique_lock lock(mutex_);
    while (unfinished_ > 0) {
      if (take_batch(batch)) {
        lock.unlock();
        cancel_.check();
        hash(batch);
        lock.lock();
        settle(batch, lock, worker);
      } else if (more_may_move()) {
        const Task& task = plan_.tasks[next_task_++];
        ++moving_;
        if (task.is_strip()) ++held_;
        lock.unlock();
        cancel_.check();
        move_task(task, worker, lock);
      } else {
        cancel_.wait(changed_, lock);
      }
    }
    lock.unlock();
    mover_.end(worker);
  }

 private:
  void move_task(const Task& task, Worker& worker, std::unique_lock<std::mutex>& lock) {
    if (!task.is_strip()) {
      mover_.move_bundle(task, worker);
      lock.lock();
      --moving_;
      done_with(1);
      return;
    }
    StripDigest digest(joining_, slots_);
    const ConstBytes bytes = mover_.move_strip(task, digest, worker);
    LargeState& large = large_[task.large];
    large.strips[task.strip] = {digest.finish(), bytes.size()};
    if (task.position == 0) start_digests(task, large);
    lock.lock();
    --moving_;
    if (task.position == 0) {
      large.started = true;
      if (!large.in_order) {
        unhashed_ -= plan_.large[task.large].size;
        for (const UnhashedStrip& unhashed : large.unhashed) let_go(task.large, unhashed.bytes);
        large.unhashed.clear();
      }
    }
    // Which digests the tensor needs is only known, and safe to read, once it has started.
    if (!in_order_.empty() && (!large.started || large.in_order)) {
      large.unhashed.push_back({task.position, bytes});
      make_ready(task.large);
    } else {
      let_go(task.large, bytes);
    }
    --large.strips_to_move;
    done_with(1);
    finish_if_complete(task.large, lock, worker);
  }

  // Takes no lock: only the worker that moved the first strip calls this, and no worker hashes the
  // tensor before `started` is set.
  void start_digests(const Task& task, LargeState& large) {
    const DigestStart start = mover_.digest_start(task.first);
    large.in_order = !start.hashes.in_order().empty();
    large.running = RunningDigests(start);
  }

  bool more_may_move() const {
    return next_task_ < plan_.tasks.size() && moving_ < settings_.moves_in_flight &&
           held_ < settings_.most_strips;
  }

  void let_go(std::uint32_t large, ConstBytes strip) {
    mover_.let_go(plan_.large[large].extent, strip);
    // Wakes waiting workers when half of the slots are free, not for each slot.
    if (--held_ == settings_.most_strips / 2) changed_.notify_all();
  }

  std::uint64_t left_to_hash(std::uint32_t large) const {
    return plan_.large[large].size - large_[large].hashed;
  }

  // Adds a tensor to the list if its next bytes have arrived and no worker is hashing it.
  void make_ready(std::uint32_t number) {
    LargeState& large = large_[number];
    if (!large.started || !large.in_order || large.hashing) return;
    const bool there =
        std::any_of(large.unhashed.begin(), large.unhashed.end(),
                    [&](const UnhashedStrip& a) { return a.position == large.hashed; });
    if (!there) return;
    large.hashing = true;
    ready_.push_back(number);
    changed_.notify_one();
  }

  // Returns how many tensors to hash side by side. More lanes hash more bytes per second, but each
  // tensor slower, and the job must not end up waiting for the tensor with the most bytes left.
  std::size_t lanes_wanted(std::uint64_t most_left) const {
    const std::uint64_t fair = unhashed_ / (static_cast<std::uint64_t>(settings_.threads) *
                                            std::max<std::uint64_t>(most_left, 1));
    return static_cast<std::size_t>(
        std::clamp<std::uint64_t>(fair, 1, static_cast<std::uint64_t>(settings_.lanes)));
  }

  bool take_batch(Batch& batch) {
    if (ready_.empty()) return false;
    const auto most = std::max_element(
        ready_.begin(), ready_.end(),
        [&](std::uint32_t a, std::uint32_t b) { return left_to_hash(a) < left_to_hash(b); });
    const std::size_t wanted = lanes_wanted(left_to_hash(*most));
    if (ready_.size() < wanted && more_may_move()) return false;
    const std::size_t count = std::min(wanted, ready_.size());
    std::partial_sort(
        ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count), ready_.end(),
        [&](std::uint32_t a, std::uint32_t b) { return left_to_hash(a) > left_to_hash(b); });
    batch.large.assign(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    batch.bytes.clear();
    for (const std::uint32_t number : batch.large) {
      LargeState& large = large_[number];
      const auto next =
          std::find_if(large.unhashed.begin(), large.unhashed.end(),
                       [&](const UnhashedStrip& a) { return a.position == large.hashed; });
      batch.bytes.push_back(next->bytes);
      *next = large.unhashed.back();
      large.unhashed.pop_back();
    }
    return true;
  }

  void hash(const Batch& batch) {
    const ComputeSlots::Slot slot(slots_, ComputeSlots::Work::Digest);
    std::vector<HashUpdate> updates;
    updates.reserve(batch.large.size());
    for (std::size_t i = 0; i < batch.large.size(); ++i) {
      large_[batch.large[i]].running.each([&](Hash hash, HashState& state) {
        if (in_order_.has(hash)) updates.push_back({&state, batch.bytes[i]});
      });
    }
    update_hashes(updates);
  }

  void settle(const Batch& batch, std::unique_lock<std::mutex>& lock, Worker& worker) {
    for (std::size_t i = 0; i < batch.large.size(); ++i) {
      LargeState& large = large_[batch.large[i]];
      large.hashing = false;
      large.hashed += batch.bytes[i].size();
      unhashed_ -= batch.bytes[i].size();
      let_go(batch.large[i], batch.bytes[i]);
      make_ready(batch.large[i]);
    }
    for (const std::uint32_t number : batch.large) finish_if_complete(number, lock, worker);
  }

  // The lock is held on entry and on return, but not during Mover::finish().
  void finish_if_complete(std::uint32_t number, std::unique_lock<std::mutex>& lock,
                          Worker& worker) {
    LargeState& large = large_[number];
    if (large.strips_to_move > 0 || (large.in_order && left_to_hash(number) > 0)) return;
    // A worker that unlocks to finish one tensor of its batch may come late to the next one.
    if (std::exchange(large.finished, true)) return;
    lock.unlock();
    Digests digests = large.running.finish();
    for (const HashedStrip& strip : large.strips)
      digests = join(digests, strip.digests, strip.size);
    mover_.finish(plan_.large[number].extent, digests, worker);
    lock.lock();
    done_with(1);
  }

  void done_with(std::size_t count) {
    unfinished_ -= count;
    // Another task may move now, or the job has ended.
    changed_.notify_all();
  }

  const Plan& plan_;
  Mover& mover_;
  const MoveSettings& settings_;
  Cancel& cancel_;
  ComputeSlots slots_;
  const HashSet joining_;
  const HashSet in_order_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LargeState> large_;
  std::vector<std::uint32_t> ready_;  // large tensors whose next bytes wait to be hashed
  std::size_t next_task_ = 0;
  int moving_ = 0;
  std::size_t held_ = 0;    // strips that move or were not let go yet
  std::size_t unfinished_;  // tasks to move and large tensors to finish
  std::uint64_t unhashed_ = 0;
};

}  // namespace

void ComputeSlots::acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return free_ > 0; });
  --free_;
}

void ComputeSlots::release() {
  {
    const std::lock_guard lock(mutex_);
    ++free_;
  }
  released_.notify_one();
}

void StripDigest::update(ConstBytes bytes) {
  if (!wanted_) return;
  const ComputeSlots::Slot slot(slots_, ComputeSlots::Work::Digest);
  running_.update(bytes);
}

ComputeTime move(const Plan& plan, Mover& mover, const MoveSettings& settings, Cancel& cancel) {
  if (plan.tasks.empty()) return {};
  const int wanted = std::max(settings.threads, settings.moves_in_flight);
  const int workers =
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(wanted), plan.tasks.size()));
  Scheduler scheduler(plan, mover, settings, cancel, workers);
  run_workers(workers, cancel, [&] { scheduler.work(); });
  return scheduler.computed();
}

}  // namespace tensorizer
