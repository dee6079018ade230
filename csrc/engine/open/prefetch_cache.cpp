#include "engine/open/prefetch_cache.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/gate.h"
#include "engine/move/workers.h"

namespace tensorizer {

namespace {

// Smaller reads cost more in requests than they gain in concurrency.
constexpr std::uint64_t kSmallestRead = 2 << 20;

}  // namespace

// A file, some of whose bytes are in memory.
class PrefetchCache::CachedSource final : public ForwardingSource {
 public:
  // `units` are in the order of the file, and `taken` of their bytes have left the cache for this
  // source. `complete` says whether the units have all bytes that the load will read. The mutex of
  // `cache` must be locked.
  CachedSource(std::shared_ptr<PrefetchCache> cache, std::vector<UnitPointer> units,
               std::uint64_t taken, bool complete)
      : ForwardingSource(cache->source_),
        cache_(std::move(cache)),
        units_(std::move(units)),
        taken_(taken),
        complete_(complete) {
    cache_->taken_ += taken_;
  }
  ~CachedSource() override {
    const std::lock_guard lock(cache_->mutex_);
    cache_->taken_ -= taken_;
    cache_->changed_.notify_all();
  }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    cancel.check();
    // One read of the file covers all bytes that are missing, and those between them.
    const Span missing = missing_in({offset, offset + total_size(pieces)});
    std::vector<Bytes> left;
    for (const Bytes piece : pieces) {
      const auto part = [&](std::uint64_t begin, std::uint64_t end) {
        begin = std::clamp(begin, offset, offset + piece.size());
        end = std::clamp(end, begin, offset + piece.size());
        return piece.subspan(begin - offset, end - begin);
      };
      copy(offset, part(offset, missing.begin));
      if (const Bytes read = part(missing.begin, missing.end); !read.empty()) left.push_back(read);
      copy(std::max(offset, missing.end), part(missing.end, offset + piece.size()));
      offset += piece.size();
    }
    if (!left.empty()) file_->read(missing.begin, left, cancel);
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const Bytes here = out.first(missing_in({offset, offset + out.size()}).begin - offset);
    copy(offset, here);
    if (here.size() == out.size()) return out.size();
    return here.size() + file_->read_up_to(offset + here.size(), out.subspan(here.size()), cancel);
  }

  ReadHints hints(std::uint64_t offset, std::uint64_t length) override {
    if (!complete_) return file_->hints(offset, length);
    ReadHints hints;
    hints.read_size = kReadFromMemory;
    hints.read_cost = 0;  // gaps between units are not in memory
    return hints;
  }
  bool remote() const override { return !complete_ && file_->remote(); }

 private:
  // Returns the unit that has the byte at `offset`, or null.
  const Unit* find(std::uint64_t offset) const {
    const auto next = std::ranges::upper_bound(
        units_, offset, {}, [](const UnitPointer& unit) { return unit->span.begin; });
    if (next == units_.begin() || offset >= (*std::prev(next))->span.end) return nullptr;
    return std::prev(next)->get();
  }

  // Returns the part of a span without the bytes at its ends that are in memory.
  Span missing_in(Span span) const {
    const Unit* unit = nullptr;
    while (span.begin < span.end && (unit = find(span.begin)) != nullptr) {
      span.begin = std::min(unit->span.end, span.end);
    }
    while (span.begin < span.end && (unit = find(span.end - 1)) != nullptr) {
      span.end = std::max(unit->span.begin, span.begin);
    }
    return span;
  }

  // Fills `out` with bytes that are in memory.
  void copy(std::uint64_t offset, Bytes out) const {
    while (!out.empty()) {
      const Unit& unit = *find(offset);
      const std::size_t size = std::min<std::uint64_t>(out.size(), unit.span.end - offset);
      std::copy_n(unit.memory->bytes().begin() + (offset - unit.span.begin), size, out.begin());
      out = out.subspan(size);
      offset += size;
    }
  }

  const std::shared_ptr<PrefetchCache> cache_;
  const std::vector<UnitPointer> units_;
  const std::uint64_t taken_;
  const bool complete_;
};

void PrefetchCache::fetch(const std::vector<Span>& spans, Progress& progress, Cancel& cancel) {
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
  // This call fetches again what other calls failed to fetch.
  for (std::vector<Span> left = spans; !left.empty();) {
    const Added added = add(left, cancel);
    read_units(added.own, cancel);
    left = await(added.others, cancel);
  }
  progress.done = progress.total.load();
}

void PrefetchCache::read_units(std::span<const UnitPointer> units, Cancel& cancel) {
  if (units.empty()) return;
  try {
    const std::uint64_t begin = units.front()->span.begin;
    const ReadHints hints = source_->hints(begin, units.back()->span.end - begin);
    const int workers = waiting_workers(hints);
    const std::vector<Read> reads = plan(units, hints);
    for_each_number(reads.size(), workers, cancel,
                    [&](std::size_t i) { read_into_units(reads[i], workers, cancel); });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    for (const UnitPointer& unit : units) {
      if (unit->state != State::Ready) evict(unit, State::Failed);
    }
    throw;
  }
}

PrefetchCache::Added PrefetchCache::add(const std::vector<Span>& spans, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  forget_parent();
  const std::uint64_t first_age = next_age_;
  std::uint64_t all = 0;
  std::uint64_t size = 0;
  for (const Span& span : spans) {
    all += span.size();
    const auto known = units_.find(span.begin);
    // A fetch of the parent process does not go on in a forked child.
    const bool dead = known != units_.end() && known->second->state != State::Ready &&
                      !known->second->fetcher.is_of_this_process();
    if (dead) evict(UnitPointer(known->second));
    if (dead || known == units_.end()) {
      size += span.size();
    } else {
      known->second->age = next_age_++;
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
    bool reading = false;
    for (const auto& [begin, unit] : units_) {
      if (unit->age >= first_age) continue;
      const bool busy = unit->state == State::Reading && unit->fetcher.goes_on_beside(cancel);
      reading |= busy;
      if (!busy && (!oldest || unit->age < oldest->age)) oldest = unit;
    }
    if (oldest) {
      evict(oldest);
    } else if (reading || (taken_ > 0 && !caller().is_in_hook)) {
      cancel.wait(changed_, lock);
    } else {
      break;
    }
  }
  Added added;
  for (const Span& span : spans) {
    if (span.size() == 0) continue;
    const auto [at, is_new] = units_.try_emplace(span.begin);
    if (is_new) {
      at->second = std::make_shared<Unit>(Unit{span, next_age_++, Doer(cancel)});
      kept_ += span.size();
    }
    (is_new ? added.own : added.others).push_back(at->second);
  }
  return added;
}

std::vector<PrefetchCache::Read> PrefetchCache::plan(std::span<const UnitPointer> units,
                                                     const ReadHints& hints) {
  const std::uint64_t read_size = std::max(hints.read_size, kSmallestRead);
  std::vector<Read> reads;
  for (const UnitPointer& unit : units) {
    const Span& span = unit->span;
    if (!reads.empty() && span.begin - reads.back().part.end <= hints.read_cost &&
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

void PrefetchCache::read_into_units(const Read& read, int most_reads, Cancel& cancel) {
  std::vector<UnitPointer> units;
  {
    std::unique_lock lock(mutex_);
    // The limit is per file, however many calls fetch from it.
    forget_parent();
    while (reading_ >= most_reads && !caller().is_in_hook) cancel.wait(changed_, lock);
    for (const UnitPointer& unit : read.units) {
      // A load did not wait for this unit, and reads it itself.
      if (unit->state == State::Evicted) continue;
      if (unit->state == State::Queued) {
        unit->memory = std::make_unique<Pages>(unit->span.size());
        unit->state = State::Reading;
      }
      units.push_back(unit);
    }
    ++reading_;
  }
  const auto end = [&] {
    const std::lock_guard lock(mutex_);
    --reading_;
    changed_.notify_all();
  };
  try {
    std::vector<std::vector<std::byte>> gaps;
    std::vector<Bytes> pieces;
    std::uint64_t begin = 0;
    std::uint64_t at = 0;
    for (const UnitPointer& unit : units) {
      const std::uint64_t from = std::max(unit->span.begin, read.part.begin);
      const std::uint64_t to = std::min(unit->span.end, read.part.end);
      if (pieces.empty()) begin = at = from;
      if (from > at) pieces.emplace_back(gaps.emplace_back(from - at));
      pieces.push_back(unit->memory->bytes().subspan(from - unit->span.begin, to - from));
      at = to;
    }
    if (!pieces.empty()) source_->read(begin, pieces, cancel);
    const std::lock_guard lock(mutex_);
    for (const UnitPointer& unit : units) {
      if (--unit->reads_left == 0) unit->state = State::Ready;
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

std::vector<Span> PrefetchCache::await(std::span<const UnitPointer> units, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  std::vector<Span> failed;
  for (const UnitPointer& unit : units) {
    while (is_loading(*unit, cancel)) cancel.wait(changed_, lock);
    if (unit->state == State::Failed) failed.push_back(unit->span);
  }
  return failed;
}

std::shared_ptr<Source> PrefetchCache::source_for(std::span<const Span> wanted, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  const auto is_reading = [&](const UnitPointer& unit) {
    return unit->state == State::Reading && is_loading(*unit, cancel);
  };
  std::vector<UnitPointer> found = find(wanted);
  for (; std::ranges::any_of(found, is_reading); found = find(wanted)) cancel.wait(changed_, lock);
  for (const UnitPointer& unit : found) {
    // The load reads queued units itself, rather than wait for their turn.
    if (unit->state == State::Queued) evict(unit);
  }
  std::erase_if(found, [](const UnitPointer& unit) { return unit->state != State::Ready; });
  if (found.empty()) return nullptr;
  std::uint64_t taken = 0;
  bool complete = true;
  const auto begin_of = [](const UnitPointer& unit) { return unit->span.begin; };
  for (const Span& span : wanted) {
    const auto next = std::ranges::upper_bound(found, span.begin, {}, begin_of);
    const bool is_ready = next != found.begin() && span.end <= (*std::prev(next))->span.end;
    complete &= is_ready || span.size() == 0;
    // Units that are loaded in whole leave the cache.
    for (auto unit = std::ranges::lower_bound(found, span.begin, {}, begin_of);
         unit != found.end() && (*unit)->span.end <= span.end; ++unit) {
      if (units_.erase((*unit)->span.begin) > 0) taken += (*unit)->span.size();
    }
  }
  kept_ -= taken;
  changed_.notify_all();
  return std::make_shared<CachedSource>(shared_from_this(), std::move(found), taken, complete);
}

bool PrefetchCache::has_any() const {
  const std::lock_guard lock(mutex_);
  return !units_.empty();
}

void PrefetchCache::forget_parent() {
  if (std::exchange(process_, getpid()) != getpid()) reading_ = 0, taken_ = 0;
}

bool PrefetchCache::is_loading(const Unit& unit, const Cancel& job) const {
  return (unit.state == State::Reading || unit.state == State::Queued) &&
         unit.fetcher.goes_on_beside(job);
}

std::vector<PrefetchCache::UnitPointer> PrefetchCache::find(std::span<const Span> wanted) const {
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

void PrefetchCache::evict(const UnitPointer& unit, State state) {
  if (unit->state == State::Evicted || unit->state == State::Failed) return;
  unit->state = state;
  kept_ -= unit->span.size();
  units_.erase(unit->span.begin);
  changed_.notify_all();
}

}  // namespace tensorizer
