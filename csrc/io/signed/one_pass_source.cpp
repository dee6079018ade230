#include "io/signed/one_pass_source.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace tensorizer {

namespace {

// No block is larger, so that a small part can be read again.
constexpr std::uint64_t kBlock = 1 << 20;
// A block that is smaller grows by the next bytes, so that their number stays in proportion.
constexpr std::uint64_t kSmallBlock = 64 << 10;
// The most bytes that one thread reads at a time where nobody wants any.
constexpr std::uint64_t kMostFetched = 8 << 20;
// The longest gap before wanted bytes that is read along with them.
constexpr std::uint64_t kReadAlong = 64 << 10;

}  // namespace

bool OnePassSource::checks_at_end() const {
  const std::lock_guard lock(mutex_);
  return frontier_ < size_ || refused_;
}

ReadHints OnePassSource::hints(std::uint64_t offset, std::uint64_t length) {
  ReadHints hints = file_->hints(offset, length);
  if (checks_at_end()) {
    hints.read_cost = std::max(hints.read_cost, kReadAlong);  // gaps have to be read anyway
  } else {
    hints.unit = kBlock;
  }
  return hints;
}

void OnePassSource::confirm(Cancel& cancel) {
  {
    Lock lock(mutex_);
    throw_if_refused();
    while (frontier_ < size_) {
      if (is_hashing() || is_coming(cancel)) {
        cancel.wait(changed_, lock);
      } else {
        fetch_next(lock, cancel);
      }
      throw_if_refused();
    }
  }
  file_->confirm(cancel);
}

void OnePassSource::read_distinct(std::uint64_t offset, std::span<const Bytes> pieces,
                                  Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  Lock lock(mutex_);
  throw_if_refused();
  if (readers_.size() < 2) readers_.insert(std::this_thread::get_id());
  const std::uint64_t again = std::clamp(frontier_, offset, end);  // the end of what was hashed
  const std::uint64_t begin = again == end ? end : begin_of_read(again);
  bring(begin, end, lock, cancel, [&] {
    if (again > offset) read_again(offset, part_of(pieces, 0, again - offset), cancel);
    if (again == end) return;
    std::vector<std::byte> gap(again - begin);
    std::vector<Bytes> rest = part_of(pieces, again - offset, end - offset);
    if (!gap.empty()) rest.insert(rest.begin(), Bytes(gap));
    file_->read(begin, rest, cancel);
    hash(begin, rest, cancel);
  });
}

template <typename Work>
void OnePassSource::bring(std::uint64_t begin, std::uint64_t end, Lock& lock, const Cancel& cancel,
                          const Work& work) {
  const auto reading = readings_.insert(readings_.end(), {begin, end, Doer(cancel)});
  std::exception_ptr failed;
  lock.unlock();
  try {
    work();
  } catch (...) {
    failed = std::current_exception();
  }
  lock.lock();
  readings_.erase(reading);
  if (!failed) return;
  changed_.notify_all();
  std::rethrow_exception(failed);
}

void OnePassSource::throw_if_refused() const {
  if (refused_) throw Error(*refused_);
}

bool OnePassSource::is_hashing() const { return hashing_ && hashing_->is_of_this_process(); }

bool OnePassSource::is_coming(const Cancel& job) const {
  return std::ranges::any_of(readings_, [&](const Reading& each) {
    return each.begin <= frontier_ && frontier_ < each.end && each.doer.goes_on_beside(job);
  });
}

std::uint64_t OnePassSource::begin_of_read(std::uint64_t offset) const {
  std::uint64_t before = frontier_;
  for (const Reading& each : readings_) {
    if (each.begin < offset) before = std::max(before, std::min(each.end, offset));
  }
  return offset - before <= kReadAlong ? before : offset;
}

std::uint64_t OnePassSource::end_of_gap() const {
  std::uint64_t end = size_;
  for (const Reading& each : readings_) {
    if (each.begin > frontier_) end = std::min(end, each.begin);
  }
  return end;
}

void OnePassSource::hash(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  Lock lock(mutex_);
  await(offset, lock, cancel);
  if (frontier_ > offset) {
    // Another read has brought the same bytes.
    const std::uint64_t again = std::min(frontier_, end);
    lock.unlock();
    read_again(offset, part_of(pieces, 0, again - offset), cancel);
    if (again < end) hash(again, part_of(pieces, again - offset, end - offset), cancel);
    return;
  }
  advance(pieces, lock, cancel);
}

// Returns when the frontier is at the offset or behind it, and no other thread moves it.
void OnePassSource::await(std::uint64_t offset, Lock& lock, Cancel& cancel) {
  throw_if_refused();
  while (is_hashing() || frontier_ < offset) {
    const auto is_left = [&] { return frontier_ < offset && !is_hashing() && !is_coming(cancel); };
    // Another thread may be about to read what is more than a gap between two tensors. It is
    // fetched here if none does for a while.
    const bool is_gap = readers_.size() < 2 || end_of_gap() - frontier_ <= kReadAlong;
    const std::uint64_t before = frontier_;
    if (!is_left() || !is_gap) cancel.wait(changed_, lock);
    throw_if_refused();
    if (is_left() && frontier_ == before) fetch_next(lock, cancel);
  }
}

void OnePassSource::fetch_next(Lock& lock, Cancel& cancel) {
  const std::uint64_t begin = frontier_;
  const std::uint64_t most = end_of_gap() - begin;
  const std::uint64_t size =
      std::min({most, kMostFetched, std::max(file_->hints(begin, most).read_size, kBlock)});
  bring(begin, begin + size, lock, cancel, [&] {
    std::vector<std::byte> bytes(size);
    const Bytes piece(bytes);
    file_->read(begin, {&piece, 1}, cancel);
    hash(begin, {&piece, 1}, cancel);
  });
}

void OnePassSource::advance(std::span<const Bytes> pieces, Lock& lock, const Cancel& cancel) {
  hashing_.emplace(cancel);
  lock.unlock();
  std::exception_ptr failed;
  std::optional<Error> wrong;
  try {
    hash_next(pieces);
  } catch (const Error& error) {
    wrong = error;
    failed = std::current_exception();
  } catch (...) {
    failed = std::current_exception();
  }
  lock.lock();
  hashing_.reset();
  if (wrong) refused_ = std::move(wrong);
  changed_.notify_all();
  if (failed) std::rethrow_exception(failed);
}

// Called by one thread at a time, so that nobody else changes what it reads without the mutex.
void OnePassSource::hash_next(std::span<const Bytes> pieces) {
  const std::uint64_t size = shards_.shard_size;
  std::uint64_t at = frontier_;
  Sha256 state = state_;
  std::vector<Block> fresh;
  bool grows = !blocks_.empty() && at - blocks_.back().begin < kSmallBlock && at % kBlock != 0 &&
               at % size != 0;
  if (grows) fresh.push_back(blocks_.back());
  const bool replaces_last = grows;
  for (Bytes piece : pieces) {
    while (!piece.empty()) {
      const std::uint64_t most = std::min(kBlock - at % kBlock, size - at % size);
      const Bytes part = piece.first(std::min<std::uint64_t>(piece.size(), most));
      piece = piece.subspan(part.size());
      if (!grows) fresh.push_back({at, at, state, {}});
      Block& block = fresh.back();
      state.update(part);
      block.end = at += part.size();
      grows = false;
      if (at % size == 0 || at == size_) {
        block.after = std::exchange(state, Sha256()).finish();
        const std::uint64_t shard = (at - 1) / size;
        if (!is_signed(shard, block.after)) refuse(shard, block.after);
      } else if (at % kBlock == 0) {
        block.after = Sha256(state).finish();
      } else {
        grows = true;
      }
    }
  }
  if (grows) fresh.back().after = Sha256(state).finish();
  const std::lock_guard lock(mutex_);
  if (replaces_last) blocks_.pop_back();
  blocks_.insert(blocks_.end(), fresh.begin(), fresh.end());
  state_ = state;
  frontier_ = at;
}

// Reads bytes that were hashed before, along with the rest of their blocks.
void OnePassSource::read_again(std::uint64_t offset, std::span<const Bytes> pieces,
                               Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  std::vector<Block> blocks;
  {
    const std::lock_guard lock(mutex_);
    const auto first = std::ranges::upper_bound(blocks_, offset, {}, &Block::end);
    const auto last = std::ranges::lower_bound(blocks_, end, {}, &Block::end);
    blocks.assign(first, last + 1);
  }
  const std::uint64_t begin = blocks.front().begin;
  std::vector<std::byte> before(offset - begin);
  std::vector<std::byte> behind(blocks.back().end - end);
  std::vector<Bytes> all(pieces.begin(), pieces.end());
  if (!before.empty()) all.insert(all.begin(), Bytes(before));
  if (!behind.empty()) all.emplace_back(behind);
  file_->read(begin, all, cancel);
  std::vector<Sha256> states;
  std::vector<std::vector<Bytes>> parts;
  for (const Block& block : blocks) {
    states.push_back(block.before);
    parts.push_back(part_of(all, block.begin - begin, block.end - begin));
  }
  hash_together(states, parts);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (states[i].finish() == blocks[i].after) continue;
    throw Error(ErrorKind::HashMismatch,
                label() + ": its bytes from " + std::to_string(blocks[i].begin) + " to " +
                    std::to_string(blocks[i].end) +
                    " were others when they were read before: it is damaged, or was changed "
                    "while it was read");
  }
}

}  // namespace tensorizer
