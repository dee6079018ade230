#include "base/redaction.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "base/world.h"

namespace tensorizer {

namespace {

// Those that begin alike are found by their first bytes.
constexpr std::size_t kStart = kShortestEverywhere;
constexpr std::size_t kLongestWord = 3;
constexpr std::size_t kMost = 4096;
// How many sizes of passing secrets that begin alike are looked for: a server can choose thousands.
constexpr std::size_t kMostPassingSizes = 16;

thread_local const Redactor* quotes_redactor = nullptr;

std::uint64_t start_of(const char* text) {
  std::uint64_t start;
  std::memcpy(&start, text, sizeof(start));
  return start;
}

// The hashes of all parts of a text, each in a time that does not depend on its size. Polynomials
// modulo 2^61 - 1, at a random place.
class Hashes {
 public:
  explicit Hashes(std::string_view text) : until_(1, 0), powers_(1, 1) {
    static const std::uint64_t place =
        (std::uint64_t{random_number()} << 28 ^ random_number()) % kPrime;
    until_.reserve(text.size() + 1);
    powers_.reserve(text.size() + 1);
    for (const char c : text) {
      until_.push_back(reduced(times(until_.back(), place) + static_cast<unsigned char>(c) + 1));
      powers_.push_back(times(powers_.back(), place));
    }
  }

  std::uint64_t of(std::size_t begin, std::size_t size) const {
    return reduced(until_[begin + size] + kPrime - times(until_[begin], powers_[size]));
  }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  __extension__ using Wide = unsigned __int128;

  static std::uint64_t reduced(std::uint64_t number) {
    return number >= kPrime ? number - kPrime : number;
  }
  static std::uint64_t times(std::uint64_t a, std::uint64_t b) {
    const Wide product = Wide{a} * b;
    return reduced(static_cast<std::uint64_t>(product & kPrime) +
                   static_cast<std::uint64_t>(product >> 61));
  }

  std::vector<std::uint64_t> until_;  // of the bytes before each place
  std::vector<std::uint64_t> powers_;
};

// The hashes of secrets, in lower case. The secrets themselves need not stay in memory.
class SecretHashes {
 public:
  // Of secrets that begin alike, only those of the `most_sizes` latest sizes are found.
  explicit SecretHashes(std::size_t most_sizes) : most_sizes_(most_sizes) {}

  // Returns false if it is known.
  bool add(std::string_view secret) {
    std::vector<std::size_t>& sizes = latest_.sizes[start_of(secret.data())];
    std::erase(sizes, secret.size());
    sizes.push_back(secret.size());
    if (sizes.size() > most_sizes_) sizes.erase(sizes.begin());
    if (!latest_.hashes.insert(Hashes(secret).of(0, secret.size())).second) return false;
    if (latest_.hashes.size() == kMost) before_ = std::exchange(latest_, {});
    return true;
  }

  // Returns the size of the longest one at a place of a text, or 0.
  std::size_t longest_at(std::size_t begin, std::string_view text,
                         std::optional<Hashes>& hashes) const {
    const std::uint64_t start = start_of(text.data() + begin);
    std::size_t longest = 0;
    for (const Generation* const known : {&latest_, &before_}) {
      const auto sizes = known->sizes.find(start);
      if (sizes == known->sizes.end()) continue;
      if (!hashes) hashes.emplace(text);
      for (const std::size_t size : sizes->second) {
        if (size <= longest || size > text.size() - begin) continue;
        if (known->hashes.contains(hashes->of(begin, size))) longest = size;
      }
    }
    return longest;
  }

 private:
  struct Generation {
    // By their first bytes, the latest last.
    std::unordered_map<std::uint64_t, std::vector<std::size_t>> sizes;
    std::unordered_set<std::uint64_t> hashes;
  };

  const std::size_t most_sizes_;
  Generation latest_;
  Generation before_;
};

struct Known {
  std::mutex mutex;
  // By SecretKind. All that is known of the user is looked for.
  std::array<SecretHashes, 2> kinds{SecretHashes(kMost), SecretHashes(kMostPassingSizes)};
};

// Never destroyed: a load may still run when the process ends. No other thread holds its lock in a
// child of fork().
Known& known() {
  static Known* const known_secrets = [] {
    pthread_atfork([] { known().mutex.lock(); }, [] { known().mutex.unlock(); },
                   [] { known().mutex.unlock(); });
    return new Known;
  }();
  return *known_secrets;
}

}  // namespace

bool redact_everywhere(std::string_view secret, SecretKind kind) {
  if (secret.size() < kStart) return false;
  const std::string lower = lower_case(secret);
  const std::lock_guard lock(known().mutex);
  return known().kinds[static_cast<std::size_t>(kind)].add(lower);
}

Redaction::Redaction(std::string_view text)
    : text_(text), lower_(lower_case(text)), secret_(text.size()) {
  std::optional<Hashes> hashes;  // few texts have what begins as a secret
  std::size_t end = 0;           // of the secrets that begin before
  const std::lock_guard lock(known().mutex);
  for (std::size_t at = 0; std::max(at + kStart, end + 1) <= lower_.size(); ++at) {
    for (const SecretHashes& secrets : known().kinds) {
      const std::size_t until = at + secrets.longest_at(at, lower_, hashes);
      if (until <= end) continue;
      cover(std::max(at, end), until);
      end = until;
    }
  }
}

void Redaction::add(std::string_view secret) {
  if (secret.empty()) return;
  const std::string wanted = lower_case(secret);
  for (std::size_t at = 0; (at = lower_.find(wanted, at)) != lower_.npos; ++at) {
    const std::size_t end = at + wanted.size();
    const bool is_part =
        (at > 0 && is_in_word(lower_[at - 1])) || (end < lower_.size() && is_in_word(lower_[end]));
    if (wanted.size() > kLongestWord || !is_part) cover(at, end);
  }
}

void Redaction::cover(std::size_t begin, std::size_t end) {
  std::fill(secret_.begin() + static_cast<std::ptrdiff_t>(begin),
            secret_.begin() + static_cast<std::ptrdiff_t>(end), true);
}

std::string Redaction::first(std::size_t size) const {
  std::string out;
  for (std::size_t at = 0; at < std::min(size, text_.size()); ++at) {
    if (!covers(at)) {
      out += text_[at];
    } else if (at == 0 || !covers(at - 1)) {
      out += "...";
    }
  }
  return out;
}

RedactedQuotes::RedactedQuotes(const Redactor* redactor) noexcept
    : before_(std::exchange(quotes_redactor, redactor)) {}

RedactedQuotes::~RedactedQuotes() { quotes_redactor = before_; }

const Redactor* RedactedQuotes::redactor() noexcept { return quotes_redactor; }

}  // namespace tensorizer
