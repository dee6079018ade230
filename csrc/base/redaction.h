// Keeps secrets out of text from outside: servers may repeat anywhere what was sent to them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tensorizer {

// Where a secret is from. If there are too many, a new one displaces only those of its kind.
enum class SecretKind {
  Given,    // by the user
  Passing,  // made for one request, or chosen by a server
};

// Shorter ones may be words.
inline constexpr std::size_t kShortestEverywhere = 8;

// Redacts a secret in all texts of this process from now on. A shorter one is ignored. Of thousands
// of a kind, only the latest are known. Returns true if it was not among these. Thread-safe.
bool redact_everywhere(std::string_view secret, SecretKind kind);

// A text, and where secrets are in it: at first those that redact_everywhere() has been given.
class Redaction {
 public:
  explicit Redaction(std::string_view text);

  // Adds another secret wherever it is, ignoring case. One of fewer than four characters is only
  // where it is a whole word.
  void add(std::string_view secret);

  // Returns true if the byte is part of a secret.
  bool covers(std::size_t at) const { return secret_[at]; }

  // Returns the first `size` bytes, with "..." in place of each secret.
  std::string first(std::size_t size) const;
  std::string text() const { return first(text_.size()); }

 private:
  void cover(std::size_t begin, std::size_t end);

  std::string_view text_;
  std::string lower_;
  std::vector<bool> secret_;
};

// Knows secrets.
class Redactor {
 public:
  virtual ~Redactor() = default;
  // Adds its secrets. Thread-safe.
  virtual void redact(Redaction& text) const = 0;
};

// While it lives, quote() redacts on the thread that made it, and on those that run_workers()
// starts there. For code that quotes what a server has sent, which may be what was sent to the
// server. The redactor must outlive it.
class RedactedQuotes {
 public:
  explicit RedactedQuotes(const Redactor& redactor) noexcept : RedactedQuotes(&redactor) {}
  // Null redacts nothing.
  explicit RedactedQuotes(const Redactor* redactor) noexcept;
  ~RedactedQuotes();
  RedactedQuotes(const RedactedQuotes&) = delete;
  RedactedQuotes& operator=(const RedactedQuotes&) = delete;

  // Returns the redactor of this thread, or null.
  static const Redactor* redactor() noexcept;

 private:
  const Redactor* const before_;
};

}  // namespace tensorizer
