// Requests that fail, and when to ask again.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "io/http/client.h"
#include "io/retry.h"

namespace tensorizer {

// The tries at one thing that is asked of a server. What may go better another time is tried again,
// after a pause; what will not, or has not for too long, is an Error that says what it was.
class HttpTries {
 public:
  // Keeps a reference. `doing`: "load" or "save". The limits are the options', or others.
  HttpTries(HttpClient& client, const char* doing)
      : HttpTries(client, doing, client.options().retries, client.options().timeout) {}
  // `timeout`: seconds for all of them; 0 is no limit.
  HttpTries(HttpClient& client, const char* doing, int retries, double timeout);

  // One try: the request is completed and asked, and the place has learned from what came of it.
  HttpOutcome ask(HttpConnection& connection, HttpRequest request, HttpReceiver& receiver,
                  Cancel& cancel);

  // The same request goes on after a pause, as a part of these tries.
  HttpOutcome go_on(HttpConnection& connection, Cancel& cancel);

  // After a try that did not bring all that was asked for: returns when it is time for the next
  // one, or throws.
  void failed(const HttpOutcome& outcome, std::uint64_t brought, Cancel& cancel);

 private:
  [[noreturn]] void give_up(const HttpOutcome& outcome) const;

  HttpClient& client_;
  const char* const doing_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  HttpRefusal refusal_;  // of the last try
  Secrets secrets_;      // that it showed
  Tries tries_;
  int recovered_ = 0;
};

}  // namespace tensorizer
