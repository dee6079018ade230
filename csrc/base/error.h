// Makes errors of failed system calls, and quotes text from outside for messages.
//
// An Error (tensorizer_ops/error.h) is thrown where the fault is found, and translated once: at the
// border in ops, or in python/core.
#pragma once

#include <string>
#include <string_view>

#include "tensorizer_ops/error.h"

namespace tensorizer {

// Returns the Error for a failed system call. `doing` says what was tried: "cannot open".
Error system_error(int system_errno, const std::string& doing, const std::string& path);

// Returns `text` in single quotes, with everything escaped that is not printable UTF-8, and cut
// after `limit` bytes. So a hostile name cannot break or flood a message, or repeat a secret of
// base/struck.h.
std::string quote(std::string_view text, std::size_t limit = 200);

// Knows secrets.
class Redactor {
 public:
  virtual ~Redactor() = default;
  // Returns `text` with "..." in place of every secret. Thread-safe.
  virtual std::string redacted(std::string_view text) const = 0;
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
