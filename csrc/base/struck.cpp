#include "base/struck.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"

namespace tensorizer {

namespace {

// Those that begin alike are found by their first bytes.
constexpr std::size_t kStart = 8;
constexpr std::size_t kMost = 4096;

class Struck {
 public:
  bool add(std::string_view secret) {
    if (secret.size() < kStart) return false;
    std::string lower = lower_case(secret);
    const std::lock_guard lock(mutex_);
    if (!latest_[lower.substr(0, kStart)].insert(std::move(lower)).second) return false;
    if (++count_ == kMost) {
      before_ = std::exchange(latest_, {});
      count_ = 0;
    }
    return true;
  }

  std::string without(std::string_view text) {
    const std::string lower = lower_case(text);
    const std::lock_guard lock(mutex_);
    std::string out;
    std::size_t end = 0;  // of the secrets that begin before
    for (std::size_t at = 0; at < text.size(); ++at) {
      const std::size_t size = longest_at(std::string_view(lower).substr(at));
      if (size > 0 && at >= end) out += "...";
      end = std::max(end, at + size);
      if (at >= end) out += text[at];
    }
    return out;
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  using Known = std::unordered_map<std::string, std::unordered_set<std::string>>;

  std::size_t longest_at(std::string_view text) const {
    std::size_t longest = 0;
    if (text.size() < kStart || (latest_.empty() && before_.empty())) return longest;
    const std::string start(text.substr(0, kStart));
    for (const Known* const known : {&latest_, &before_}) {
      const auto alike = known->find(start);
      if (alike == known->end()) continue;
      for (const std::string& each : alike->second) {
        if (text.starts_with(each)) longest = std::max(longest, each.size());
      }
    }
    return longest;
  }

  std::mutex mutex_;
  Known latest_;           // in lower case, by their first bytes
  Known before_;           // those that were added before the latest
  std::size_t count_ = 0;  // in `latest_`
};

// Never destroyed: a load may still run when the process ends. No other thread holds its lock in a
// child of fork().
Struck& known() {
  static Struck* const struck = [] {
    pthread_atfork([] { known().lock(); }, [] { known().unlock(); }, [] { known().unlock(); });
    return new Struck;
  }();
  return *struck;
}

}  // namespace

bool strike(std::string_view secret) { return known().add(secret); }

std::string struck(std::string_view text) { return known().without(text); }

}  // namespace tensorizer
