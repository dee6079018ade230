// Retries of HTTP requests.
#pragma once

#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/world.h"
#include "io/http/client.h"
#include "io/retry.h"

namespace tensorizer {

// Returns whether a response with this status says that a retry may succeed.
bool is_temporary(int status);

// The tries of one operation on a server. Temporary failures are retried after a back-off;
// permanent ones, and those that last too long, become an Error.
class HttpTries {
 public:
  // Keeps a reference to the client. `doing`: "load", for messages. The limits default to
  // those of the client's options.
  HttpTries(HttpClient& client, const char* doing)
      : HttpTries(client, doing, client.options().retries, client.options().timeout) {}
  // `timeout`: seconds for all of them; 0 is no limit.
  HttpTries(HttpClient& client, const char* doing, int retries, double timeout);

  // Makes one try: lets the endpoint complete the request, sends it, and tells the endpoint the
  // outcome.
  HttpOutcome ask(HttpConnection& connection, HttpRequest request, HttpReceiver& receiver,
                  Cancel& cancel);

  // Continues a paused request, within the deadline of these tries.
  HttpOutcome go_on(HttpConnection& connection, Cancel& cancel);

  // Must be called after a try that did not receive everything. Blocks until it is time for the
  // next try, or throws if there is none. `brought`: the bytes received.
  void failed(const HttpOutcome& outcome, std::uint64_t brought, Cancel& cancel);

 private:
  [[noreturn]] void give_up(const HttpOutcome& outcome) const;

  HttpClient& client_;
  const char* const doing_;
  std::optional<Clock::time_point> deadline_;
  HttpRefusal refusal_;  // of the last try
  Tries tries_;
  int recovered_ = 0;
};

}  // namespace tensorizer
