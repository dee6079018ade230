#include "engine/prefetched.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/gate.h"
#include "engine/workers.h"

namespace tensorizer {

namespace {

// Fewer bytes are not worth a read of their own.
constexpr std::uint64_t kSmallestRead = 2 << 20;

}  // namespace

// The file, some of whose bytes are in memory.
class Prefetched::Mixed final : public Source {
 public:
  // `units` are in the order of the file. `complete` says whether they have all that will be read.
  // The mutex of `keeper` must be locked.
  Mixed(std::shared_ptr<Prefetched> keeper, std::vector<UnitPointer> units, bool complete)
      : keeper_(std::move(keeper)),
        file_(keeper_->source_),
        units_(std::move(units)),
        complete_(complete) {
    for (const UnitPointer& unit : units_) size_ += unit->span.size();
    keeper_->taken_ += size_;
  }
  ~Mixed() override {
    const std::lock_guard lock(keeper_->mutex_);
    keeper_->taken_ -= size_;
    keeper_->changed_.notify_all();
  }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    std::vector<Bytes> run;  // pieces that are not in memory, and come before `offset`
    std::uint64_t run_size = 0;
    const auto read_run = [&] {
      if (run_size > 0) file_->read(offset - run_size, run, cancel);
      run.clear();
      run_size = 0;
    };
    for (Bytes piece : pieces) {
      while (!piece.empty()) {
        const auto [memory, size] = look(offset, piece.size());
        const Bytes part = piece.first(size);
        if (memory != nullptr) {
          read_run();
          std::copy_n(memory, size, part.begin());
        } else {
          run.push_back(part);
          run_size += size;
        }
        offset += size;
        piece = piece.subspan(size);
      }
    }
    read_run();
    cancel.check();
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const auto [memory, size] = look(offset + done, out.size() - done);
      const Bytes part = out.subspan(done, size);
      std::size_t brought = size;
      if (memory != nullptr) {
        std::copy_n(memory, size, part.begin());
      } else {
        brought = file_->read_up_to(offset + done, part, cancel);
      }
      done += brought;
      if (brought < size) break;
    }
    return done;
  }

  bool read_anew(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return file_->read_anew(offset, out, cancel);
  }
  ReadHints hints(std::uint64_t offset, std::uint64_t length) override {
    return complete_ ? ReadHints{0, kReadFromMemory} : file_->hints(offset, length);
  }
  bool remote() const override { return !complete_ && file_->remote(); }
  std::optional<std::uint64_t> size() const override { return file_->size(); }
  std::uint64_t start() const override { return file_->start(); }
  const std::string& label() const override { return file_->label(); }
  std::string describe_offset(std::uint64_t offset) const override {
    return file_->describe_offset(offset);
  }

 private:
  // Returns where the byte at `offset` is in memory, or null, and for how many bytes that is so, at
  // most `size`.
  std::pair<const std::byte*, std::size_t> look(std::uint64_t offset, std::size_t size) const {
    const auto next = std::ranges::upper_bound(
        units_, offset, {}, [](const UnitPointer& unit) { return unit->span.begin; });
    if (next != units_.begin()) {
      const Unit& unit = **std::prev(next);
      if (offset < unit.span.end) {
        return {unit.memory.get() + (offset - unit.span.begin),
                std::min<std::uint64_t>(size, unit.span.end - offset)};
      }
    }
    if (next == units_.end()) return {nullptr, size};
    return {nullptr, std::min<std::uint64_t>(size, (*next)->span.begin - offset)};
  }

  const std::shared_ptr<Prefetched> keeper_;
  const std::shared_ptr<Source> file_;
  const std::vector<UnitPointer> units_;
  const bool complete_;
  std::uint64_t size_ = 0;  // of the units
};

void Prefetched::fetch(const std::vector<Span>& spans, Progress& progress, Cancel& cancel) {
  for (const Span& span : spans) progress.total += span.size();
  const auto is_cached = [&](const Span& span) {
    if (!source_->cache(span.begin, span.size(), cancel)) return false;
    progress.done += span.size();
    return true;
  };
  if (source_->sequential()) {
    throw Error(ErrorKind::InvalidArgument,
                source_->label() +
                    ": nothing can be fetched in advance, because this source can be read only "
                    "once");
  }
  if (std::ranges::all_of(spans, is_cached)) return;
  const std::vector<UnitPointer> units = add(spans, cancel);
  if (units.empty()) return;
  try {
    const std::uint64_t begin = units.front()->span.begin;
    const ReadHints hints = source_->hints(begin, units.back()->span.end - begin);
    const std::vector<Read> reads = plan(units, std::max(hints.read_size, kSmallestRead));
    for_each_number(reads.size(), waiting_workers(hints), cancel,
                    [&](std::size_t i) { bring(reads[i], cancel); });
    progress.done = progress.total.load();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    for (const UnitPointer& unit : units) {
      if (unit->state != State::Here) drop(unit);
    }
    throw;
  }
}

std::vector<Prefetched::UnitPointer> Prefetched::add(const std::vector<Span>& spans,
                                                     Cancel& cancel) {
  std::unique_lock lock(mutex_);
  const std::uint64_t first_age = next_age_;
  std::uint64_t all = 0;
  std::uint64_t size = 0;
  std::vector<Span> added;
  for (const Span& span : spans) {
    all += span.size();
    const auto known = units_.find(span.begin);
    if (known != units_.end()) {
      known->second->age = next_age_++;
    } else if (span.size() > 0) {
      added.push_back(span);
      size += span.size();
    }
  }
  if (all > most_) {
    throw Error(ErrorKind::InvalidArgument,
                source_->label() + ": " + std::to_string(all) +
                    " bytes are to be fetched in advance, and " + std::to_string(most_) +
                    " can be kept, half of the option 'memory_ceiling'");
  }
  while (kept_ + taken_ + size > most_) {
    UnitPointer oldest;
    bool coming = false;
    for (const auto& [begin, unit] : units_) {
      if (unit->age >= first_age) continue;
      const bool busy = unit->state == State::Coming && unit->process == getpid();
      coming |= busy;
      if (!busy && (!oldest || unit->age < oldest->age)) oldest = unit;
    }
    if (oldest) {
      drop(oldest);
      continue;
    }
    if (!coming && taken_ == 0) break;
    changed_.wait_for(lock, kPollInterval);
    lock.unlock();
    cancel.check();
    lock.lock();
  }
  std::vector<UnitPointer> units;
  for (const Span& span : added) {
    const auto [at, is_new] = units_.try_emplace(span.begin);
    if (!is_new) continue;  // another thread has added it meanwhile
    at->second = std::make_shared<Unit>(Unit{span, next_age_++, calling_thread(), getpid()});
    kept_ += span.size();
    units.push_back(at->second);
  }
  return units;
}

std::vector<Prefetched::Read> Prefetched::plan(std::span<const UnitPointer> units,
                                               std::uint64_t read_size) const {
  std::vector<Read> reads;
  for (const UnitPointer& unit : units) {
    const Span& span = unit->span;
    if (!reads.empty() && reads.back().part.end == span.begin &&
        span.end - reads.back().part.begin <= read_size) {
      reads.back().units.push_back(unit);
      reads.back().part.end = span.end;
      unit->reads_left = 1;
      continue;
    }
    for (std::uint64_t at = span.begin; at < span.end; at += read_size) {
      reads.push_back({{unit}, {at, std::min(at + read_size, span.end)}});
      ++unit->reads_left;
    }
  }
  return reads;
}

void Prefetched::bring(const Read& read, Cancel& cancel) {
  std::vector<UnitPointer> units;
  {
    const std::lock_guard lock(mutex_);
    for (const UnitPointer& unit : read.units) {
      if (unit->state == State::Dropped) continue;
      if (unit->state == State::Waiting) {
        unit->memory = std::make_unique_for_overwrite<std::byte[]>(unit->span.size());
        unit->state = State::Coming;
      }
      units.push_back(unit);
    }
  }
  // A load has taken over what it did not want to wait for.
  for (std::size_t first = 0; first < units.size();) {
    std::vector<Bytes> pieces;
    std::uint64_t at = std::max(units[first]->span.begin, read.part.begin);
    const std::uint64_t begin = at;
    for (; first < units.size() && (pieces.empty() || units[first]->span.begin == at); ++first) {
      const Span& span = units[first]->span;
      const std::uint64_t end = std::min(span.end, read.part.end);
      pieces.push_back(
          {units[first]->memory.get() + (at - span.begin), static_cast<std::size_t>(end - at)});
      at = end;
    }
    source_->read(begin, pieces, cancel);
  }
  const std::lock_guard lock(mutex_);
  for (const UnitPointer& unit : units) {
    if (--unit->reads_left == 0) unit->state = State::Here;
  }
  changed_.notify_all();
}

std::shared_ptr<Source> Prefetched::take(std::span<const Span> wanted, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  const auto is_coming = [](const UnitPointer& unit) {
    return unit->state == State::Coming && unit->process == getpid() &&
           unit->thread != calling_thread();
  };
  std::vector<UnitPointer> found = find(wanted);
  for (; std::ranges::any_of(found, is_coming); found = find(wanted)) {
    changed_.wait_for(lock, kPollInterval);
    lock.unlock();
    cancel.check();
    lock.lock();
  }
  for (const UnitPointer& unit : found) {
    // The load reads by itself what nobody has begun to fetch.
    if (unit->state == State::Waiting) drop(unit);
  }
  std::erase_if(found, [](const UnitPointer& unit) { return unit->state != State::Here; });
  if (found.empty()) return nullptr;
  for (const UnitPointer& unit : found) {
    kept_ -= unit->span.size();
    units_.erase(unit->span.begin);
  }
  changed_.notify_all();
  const auto is_here = [&](const Span& span) {
    const auto next = std::ranges::upper_bound(
        found, span.begin, {}, [](const UnitPointer& unit) { return unit->span.begin; });
    return next != found.begin() && span.end <= (*std::prev(next))->span.end;
  };
  const bool complete = std::ranges::all_of(wanted, is_here);
  return std::make_shared<Mixed>(shared_from_this(), std::move(found), complete);
}

bool Prefetched::keeps_any() const {
  const std::lock_guard lock(mutex_);
  return !units_.empty();
}

std::vector<Prefetched::UnitPointer> Prefetched::find(std::span<const Span> wanted) const {
  std::map<std::uint64_t, UnitPointer> found;
  for (const Span& span : wanted) {
    auto unit = units_.upper_bound(span.begin);
    if (unit != units_.begin()) --unit;
    for (; unit != units_.end() && unit->first < span.end; ++unit) {
      if (unit->second->span.end > span.begin) found.insert(*unit);
    }
  }
  std::vector<UnitPointer> units;
  for (auto& [begin, unit] : found) units.push_back(unit);
  return units;
}

void Prefetched::drop(const UnitPointer& unit) {
  if (unit->state == State::Dropped) return;
  unit->state = State::Dropped;
  kept_ -= unit->span.size();
  units_.erase(unit->span.begin);
  changed_.notify_all();
}

}  // namespace tensorizer
