#include <algorithm>
#include <utility>

#include "io/local/open.h"
#include "io/source.h"

namespace tensorizer {

namespace {

// Takes a few milliseconds to copy.
constexpr std::size_t kBetweenChecks = 8 << 20;
// A read is a call and a copy.
constexpr std::uint64_t kCopyCost = 256;

class MemorySource : public Source {
 public:
  MemorySource(ConstBytes bytes, std::shared_ptr<const void> owner, std::string label,
               std::uint64_t start)
      : bytes_(bytes), owner_(std::move(owner)), label_(std::move(label)), start_(start) {}

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    if (offset >= bytes_.size()) return 0;
    const std::size_t size = std::min<std::uint64_t>(out.size(), bytes_.size() - offset);
    for (std::size_t at = 0; at < size; at += kBetweenChecks) {
      cancel.check();
      std::memcpy(out.data() + at, bytes_.data() + offset + at,
                  std::min(kBetweenChecks, size - at));
    }
    return size;
  }

  ReadHints hints(std::uint64_t, std::uint64_t) override {
    ReadHints hints;
    hints.read_size = kReadFromMemory;
    hints.read_cost = kCopyCost;
    return hints;
  }

  bool cache(std::uint64_t, std::uint64_t, Cancel&) override { return true; }
  std::optional<std::uint64_t> size() const override { return bytes_.size(); }
  std::uint64_t start() const override { return start_; }
  const std::string& label() const override { return label_; }

 private:
  const ConstBytes bytes_;
  const std::shared_ptr<const void> owner_;
  const std::string label_;
  const std::uint64_t start_;
};

}  // namespace

std::unique_ptr<Source> memory_source(ConstBytes bytes, std::shared_ptr<const void> owner,
                                      std::string label, std::uint64_t start) {
  return std::make_unique<MemorySource>(bytes, std::move(owner), std::move(label), start);
}

}  // namespace tensorizer
