#include "engine/open/read_ahead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/move/workers.h"
#include "io/pages.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kSmallestWindow = 64 << 10;
constexpr std::uint64_t kGrowth = 16;
// A gap up to this size is cheaper to read than to skip with another request.
constexpr std::uint64_t kLargestGap = 64 << 10;
// Fewer bytes are not worth a request of their own.
constexpr std::uint64_t kSmallestPiece = 2 << 20;

}  // namespace

// The file, some of whose bytes are in memory because they were read ahead. A load may read more
// than was announced: all of a chunk, to check a part of it.
class ReadAhead::Window final : public ForwardingSource {
 public:
  Window(std::shared_ptr<Source> file, Span span)
      : ForwardingSource(std::move(file)), span_(span), pages_(span.size()) {}

  const Span& span() const { return span_; }
  Bytes bytes() { return pages_.bytes().first(static_cast<std::size_t>(span_.size())); }
  void end_at(std::uint64_t end) { span_.end = end; }

  // Copies what is in memory of the bytes from `offset` on, and returns how many there were.
  std::size_t copy(std::uint64_t offset, Bytes out) {
    if (!span_.has(offset)) return 0;
    const ConstBytes held = bytes().subspan(static_cast<std::size_t>(offset - span_.begin));
    const std::size_t size = std::min(held.size(), out.size());
    std::copy_n(held.begin(), size, out.begin());
    return size;
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    cancel.check();
    const std::size_t size = copy(offset, out);
    if (size == out.size()) return size;
    return size + file_->read_up_to(offset + size, out.subspan(size), cancel);
  }

  ReadHints hints(std::uint64_t, std::uint64_t) override {
    ReadHints hints;
    hints.read_size = kReadFromMemory;
    return hints;
  }
  bool remote() const override { return false; }
  bool sequential() const override { return file_->sequential(); }

 private:
  Span span_;
  const Pages pages_;
};

// The file, whose bytes in a window are not read again.
class ReadAhead::Rest final : public ForwardingSource {
 public:
  Rest(std::shared_ptr<Source> file, std::shared_ptr<Window> window)
      : ForwardingSource(std::move(file)), window_(std::move(window)) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    if (offset >= window_->span().end) {
      file_->read(offset, pieces, cancel);
    } else {
      Source::read(offset, pieces, cancel);
    }
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return window_->read_up_to(offset, out, cancel);
  }
  bool sequential() const override { return file_->sequential(); }

 private:
  const std::shared_ptr<Window> window_;
};

ReadAhead::ReadAhead(std::shared_ptr<Source> source, std::uint64_t end, std::uint64_t most)
    : source_(std::move(source)), end_(end), most_(std::max(most, kSmallestWindow)), needed_(end) {}

void ReadAhead::need_until(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  needed_ = offset;
}

std::shared_ptr<Source> ReadAhead::source_for(std::uint64_t begin, std::uint64_t end, bool at_once,
                                              Cancel& cancel) {
  const std::shared_ptr<Window> window = hold({begin, end}, at_once, cancel);
  if (!window) return source_;
  if (window->span().covers({begin, end})) return window;
  return std::make_shared<Rest>(source_, window);
}

std::size_t ReadAhead::read(std::uint64_t offset, Bytes out, Cancel& cancel) {
  const std::uint64_t end = std::min(end_, source_->size().value_or(end_));
  if (offset >= end || out.empty()) return 0;
  out = out.first(std::min<std::uint64_t>(out.size(), end - offset));
  const std::shared_ptr<Window> window = hold({offset, offset + out.size()}, true, cancel);
  const std::size_t held = window ? window->copy(offset, out) : 0;
  if (held == out.size()) return held;
  return held + fetch(offset + held, out.subspan(held), true, cancel);
}

std::shared_ptr<ReadAhead::Window> ReadAhead::hold(Span wanted, bool at_once, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  const bool in_order = goes_on(wanted);
  const auto somebody_fetches = [&] { return fetch_ && fetch_->doer.is_of_this_process(); };
  const auto is_coming = [&] {
    return fetch_ && fetch_->doer.goes_on_beside(cancel) && fetch_->span.covers(wanted);
  };
  for (;;) {
    if (std::shared_ptr<Window> found = take_held(wanted)) return found;
    if (!is_coming()) break;
    cancel.wait(fetched_, lock);
  }
  if (somebody_fetches()) return nullptr;
  std::shared_ptr<Window> before = std::exchange(held_, nullptr);
  const std::optional<Span> span = in_order ? plan(wanted) : std::nullopt;
  if (!span) return before && before->span().has(wanted.begin) ? before : nullptr;
  fetch_ = Fetch{*span, Doer(cancel)};
  lock.unlock();

  std::shared_ptr<Window> window;
  const auto end_fetch = [&] {
    lock.lock();
    fetch_.reset();
    if (window && !wanted.covers(window->span())) held_ = window;
    fetched_.notify_all();
  };
  try {
    window = fetch_window(*span, std::move(before), at_once, cancel);
  } catch (...) {
    end_fetch();
    throw;
  }
  end_fetch();
  return window;
}

bool ReadAhead::goes_on(Span wanted) {
  const bool after = wanted.begin >= last_.end && wanted.begin - last_.end <= kLargestGap;
  const bool before = wanted.end <= last_.begin && last_.begin - wanted.end <= kLargestGap;
  const bool in_order = passed_ > 0 && (backwards_ ? before : after);
  if (in_order) {
    passed_ += backwards_ ? last_.begin - wanted.begin : wanted.end - last_.end;
  } else {
    backwards_ = passed_ > 0 && before && !source_->sequential();
    passed_ = wanted.size();
  }
  last_ = wanted;
  return in_order;
}

std::shared_ptr<ReadAhead::Window> ReadAhead::take_held(Span wanted) {
  if (!held_ || !held_->span().covers(wanted)) return nullptr;
  const Span& span = held_->span();
  const bool is_last = backwards_ ? wanted.begin == span.begin : wanted.end == span.end;
  return is_last ? std::exchange(held_, nullptr) : held_;
}

// Returns the span to read ahead; nullopt if `wanted` is empty, or large enough by itself.
std::optional<Span> ReadAhead::plan(Span wanted) const {
  const std::uint64_t size =
      passed_ < most_ / kGrowth ? std::max(passed_ * kGrowth, kSmallestWindow) : most_;
  if (wanted.size() == 0 || wanted.size() > size / 2) return std::nullopt;
  if (backwards_) return Span{wanted.end - std::min(wanted.end, size), wanted.end};
  const std::uint64_t end = std::min({end_, needed_, source_->size().value_or(end_)});
  if (wanted.end > end) return std::nullopt;
  return Span{wanted.begin, wanted.begin + std::min(size, end - wanted.begin)};
}

std::shared_ptr<ReadAhead::Window> ReadAhead::fetch_window(Span span,
                                                           std::shared_ptr<Window> before,
                                                           bool at_once, Cancel& cancel) {
  auto window = std::make_shared<Window>(source_, span);
  // The window that was held before may overlap one end of the new one.
  Span rest = span;
  if (before) {
    const Span& held = before->span();
    if (held.begin <= span.begin && held.end > span.begin) {
      rest.begin += before->copy(span.begin, window->bytes());
    } else if (held.begin < span.end && held.end >= span.end) {
      const Bytes end = window->bytes().subspan(held.begin - span.begin);
      rest.end -= before->copy(held.begin, end);
    }
    before.reset();
  }
  const Bytes out = window->bytes().subspan(rest.begin - span.begin, rest.size());
  const std::size_t done = fetch(rest.begin, out, at_once, cancel);
  if (done < out.size()) window->end_at(rest.begin + done);
  return window;
}

std::size_t ReadAhead::fetch(std::uint64_t offset, Bytes out, bool at_once, Cancel& cancel) {
  if (source_->sequential()) return source_->read_up_to(offset, out, cancel);
  const ReadHints hints = source_->hints(offset, out.size());
  const int most = at_once ? std::max(hints.reads_in_flight, 1) : 1;
  const auto reads = static_cast<std::uint64_t>(most);
  const std::uint64_t share = (out.size() + reads - 1) / reads;
  const std::uint64_t piece =
      std::min(std::max(share, kSmallestPiece), std::max(hints.read_size, kSmallestPiece));
  if (piece >= out.size()) return source_->read_up_to(offset, out, cancel);
  return fetch_at_once(offset, out, piece, most, cancel);
}

std::size_t ReadAhead::fetch_at_once(std::uint64_t offset, Bytes out, std::uint64_t piece,
                                     int reads, Cancel& cancel) {
  std::vector<std::size_t> brought((out.size() + piece - 1) / piece);
  for_each_number(brought.size(), reads, cancel, [&](std::size_t number) {
    const std::uint64_t begin = number * piece;
    const Bytes part = out.subspan(begin, std::min<std::uint64_t>(piece, out.size() - begin));
    brought[number] = source_->read_up_to(offset + begin, part, cancel);
  });
  std::size_t done = 0;
  for (const std::size_t size : brought) {
    done += size;
    if (size < piece) break;
  }
  return done;
}

}  // namespace tensorizer
