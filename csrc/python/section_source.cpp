#include "python/section_source.h"

#include <algorithm>
#include <limits>

namespace tensorizer {

namespace {

class SectionSource final : public Source {
 public:
  SectionSource(std::shared_ptr<Source> whole, std::uint64_t start,
                std::optional<std::uint64_t> end)
      : whole_(std::move(whole)),
        start_(start),
        end_(end.value_or(std::numeric_limits<std::uint64_t>::max())) {}

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    if (offset >= end_) return 0;
    const std::uint64_t size = std::min<std::uint64_t>(out.size(), end_ - offset);
    return whole_->read_up_to(offset, out.first(size), cancel);
  }
  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t wanted = total_size(pieces);
    const std::uint64_t there = offset < end_ ? end_ - offset : 0;
    if (wanted > there) throw_source_ended(label(), offset + there, wanted - there);
    whole_->read(offset, pieces, cancel);
  }
  bool read_anew(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return whole_->read_anew(offset, out, cancel);
  }
  std::optional<std::uint64_t> size() const override {
    const std::optional<std::uint64_t> size = whole_->size();
    return size ? std::optional(std::min(*size, end_)) : std::nullopt;
  }
  std::optional<std::string> version() const override { return whole_->version(); }
  void confirm(Cancel& cancel) override { whole_->confirm(cancel); }
  std::uint64_t start() const override { return start_; }
  bool remote() const override { return whole_->remote(); }
  ReadHints hints(std::uint64_t offset, std::uint64_t length) override {
    return whole_->hints(offset, length);
  }
  SourceStats stats() const override { return whole_->stats(); }
  std::vector<std::pair<std::string, std::string>> headers() const override {
    return whole_->headers();
  }
  const std::string& label() const override { return whole_->label(); }
  std::string redacted(std::string_view text) const override { return whole_->redacted(text); }

 private:
  const std::shared_ptr<Source> whole_;
  const std::uint64_t start_;
  const std::uint64_t end_;
};

}  // namespace

std::unique_ptr<Source> section_source(std::shared_ptr<Source> whole, std::uint64_t start,
                                       std::optional<std::uint64_t> end) {
  return std::make_unique<SectionSource>(std::move(whole), start, end);
}

}  // namespace tensorizer
