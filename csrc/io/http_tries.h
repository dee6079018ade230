// Requests that fail, and when to ask again.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "io/http_connection.h"

namespace tensorizer {

// The tries at one piece of a file. What may go better another time is tried again, after a pause;
// what will not, or has not for too long, is an Error that says what it was.
class HttpTries {
 public:
  // Both are kept as references.
  HttpTries(const HttpOptions& options, const std::string& label);

  // After a request that did not bring all that was asked for: returns when it is time for the next
  // one, or throws.
  void failed(const std::optional<HttpFailure>& failure, const HttpAnswer& answer,
              std::uint64_t brought, Cancel& cancel);

 private:
  bool too_late() const;
  [[noreturn]] void give_up(const std::optional<HttpFailure>& failure, int status) const;
  void pause(std::optional<std::chrono::seconds> wanted, Cancel& cancel) const;

  const HttpOptions& options_;
  const std::string& label_;
  const std::chrono::steady_clock::time_point start_;
  int count_ = 0;  // in a row, without progress
  int all_ = 0;
};

}  // namespace tensorizer
