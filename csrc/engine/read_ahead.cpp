#include "engine/read_ahead.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <vector>

#include "engine/workers.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kSmallestWindow = 64 << 10;
constexpr std::uint64_t kGrowth = 4;
// Less is not worth a request of its own.
constexpr std::uint64_t kSmallestPiece = 1 << 20;

}  // namespace

ReadAhead::ReadAhead(Open open, std::uint64_t end, std::uint64_t most, Cancel& cancel)
    : open_(std::move(open)),
      end_(end),
      most_(std::max(most, kSmallestWindow)),
      source_(open_(cancel)),
      window_(kSmallestWindow) {}

std::size_t ReadAhead::read(std::uint64_t offset, Bytes out, Cancel& cancel) {
  const Gate::Entry entry(gate_, calling_thread(), cancel);
  const std::uint64_t end = std::min(end_, source_->size().value_or(end_));
  if (offset >= end) return 0;
  out = out.first(std::min<std::uint64_t>(out.size(), end - offset));
  const bool goes_on = offset == next_;
  std::size_t done = take_held(offset, out);
  if (done < out.size()) {
    const std::uint64_t from = offset + done;
    const Bytes rest = out.subspan(done);
    window_ = goes_on ? std::min(window_ * kGrowth, most_) : kSmallestWindow;
    if (rest.size() >= window_) {
      done += fetch(from, rest, cancel);
    } else {
      if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(most_);
      held_ = 0;
      held_ = fetch(from, {buffer_.get(), std::min(window_, end - from)}, cancel);
      held_from_ = from;
      done += take_held(from, rest);
    }
  }
  next_ = offset + done;
  return done;
}

std::size_t ReadAhead::take_held(std::uint64_t offset, Bytes out) const {
  if (offset < held_from_ || offset >= held_from_ + held_) return 0;
  const ConstBytes held =
      ConstBytes(buffer_.get(), held_).subspan(static_cast<std::size_t>(offset - held_from_));
  const std::size_t size = std::min(held.size(), out.size());
  std::copy_n(held.begin(), size, out.begin());
  return size;
}

std::size_t ReadAhead::fetch(std::uint64_t offset, Bytes out, Cancel& cancel) {
  if (source_->sequential()) return fetch_in_order(offset, out, cancel);
  const ReadHints hints = source_->hints(offset, out.size());
  const std::uint64_t reads = static_cast<std::uint64_t>(std::max(hints.reads_in_flight, 1));
  const std::uint64_t share = (out.size() + reads - 1) / reads;
  const std::uint64_t piece =
      std::min(std::max(share, kSmallestPiece), std::max(hints.read_size, kSmallestPiece));
  if (reads == 1 || piece >= out.size()) return source_->read_up_to(offset, out, cancel);
  return fetch_at_once(offset, out, piece, hints.reads_in_flight, cancel);
}

std::size_t ReadAhead::fetch_in_order(std::uint64_t offset, Bytes out, Cancel& cancel) {
  if (offset < position_) {
    source_ = open_(cancel);
    position_ = 0;
  }
  // Where it stands when this throws, nobody knows.
  position_ = std::numeric_limits<std::uint64_t>::max();
  const std::size_t done = source_->read_up_to(offset, out, cancel);
  position_ = offset + done;
  return done;
}

std::size_t ReadAhead::fetch_at_once(std::uint64_t offset, Bytes out, std::uint64_t piece,
                                     int reads, Cancel& cancel) {
  std::vector<std::size_t> brought((out.size() + piece - 1) / piece);
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t next = 0;
  std::size_t left = brought.size();
  // Whoever has no more to do waits for the others, because the caller's own thread looks after
  // signals.
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (left > 0) {
      if (next == brought.size()) {
        changed.wait_for(lock, kPollInterval);
        lock.unlock();
        cancel.check();
        lock.lock();
        continue;
      }
      const std::size_t number = next++;
      lock.unlock();
      const std::uint64_t begin = number * piece;
      const Bytes part = out.subspan(begin, std::min<std::uint64_t>(piece, out.size() - begin));
      const std::size_t size = source_->read_up_to(offset + begin, part, cancel);
      lock.lock();
      brought[number] = size;
      --left;
      changed.notify_all();
    }
  };
  const std::size_t workers =
      std::min<std::size_t>(brought.size(), static_cast<std::size_t>(reads));
  run_workers(static_cast<int>(workers), cancel, work);
  std::size_t done = 0;
  for (const std::size_t size : brought) {
    done += size;
    if (size < piece) break;
  }
  return done;
}

}  // namespace tensorizer
