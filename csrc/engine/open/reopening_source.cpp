#include "engine/open/reopening_source.h"

#include <limits>
#include <mutex>
#include <utility>

#include "base/gate.h"
#include "base/redaction.h"

namespace tensorizer {

namespace {

class ReopeningSource final : public Source {
 public:
  ReopeningSource(OpenSource open, std::unique_ptr<Source> source)
      : open_(std::move(open)),
        label_(source->label()),
        size_(source->size()),
        headers_(source->headers()),
        source_(std::move(source)) {}

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const Gate::Entry entry(gate_, calling_thread(), cancel);
    if (offset < position_) {
      std::unique_ptr<Source> again = open_(cancel);
      const std::lock_guard lock(mutex_);
      source_.swap(again);
      position_ = 0;
    }
    // The position is unknown if the read throws. The next read then opens the source again.
    position_ = std::numeric_limits<std::uint64_t>::max();
    const std::size_t done = source_->read_up_to(offset, out, cancel);
    position_ = offset + done;
    return done;
  }

  std::optional<std::uint64_t> size() const override { return size_; }
  bool sequential() const override { return true; }
  std::vector<std::pair<std::string, std::string>> headers() const override { return headers_; }
  const std::string& label() const override { return label_; }
  void redact(Redaction& text) const override {
    const std::lock_guard lock(mutex_);
    source_->redact(text);
  }

 private:
  const OpenSource open_;
  const std::string label_;
  const std::optional<std::uint64_t> size_;
  const std::vector<std::pair<std::string, std::string>> headers_;

  // Guards what follows.
  Gate gate_{
      "this thread is already reading from the stream: code that runs during the read, such as a "
      "signal handler, cannot read from it"};
  std::uint64_t position_ = 0;
  std::unique_ptr<Source> source_;
  mutable std::mutex mutex_;  // for redact(), which may be called during a read
};

}  // namespace

std::unique_ptr<Source> reopening_source(OpenSource open, Cancel& cancel) {
  std::unique_ptr<Source> source = open(cancel);
  if (!source->sequential()) return source;
  return std::make_unique<ReopeningSource>(std::move(open), std::move(source));
}

}  // namespace tensorizer
