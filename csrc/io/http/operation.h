// One operation on a file of a store: a request that is sent until it has its effect.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "io/http/client.h"
#include "io/http/retry.h"
#include "io/http/upload.h"

namespace tensorizer {

struct HttpOperation {
  HttpRequest request;
  // Returns why a response with a successful status is not one of the store's; empty if it is. A
  // status of 200 is not enough: a proxy or a login page in front of the store may send it as well.
  std::function<std::string(const HttpAnswer& answer, std::string_view text)> fault{};
  // Returns whether a try that has failed had its effect anyway; or null.
  std::function<bool(const HttpOutcome& outcome)> is_done{};
  // The most bytes of the body of the response that are received.
  std::uint64_t longest = kLongestText;
};

struct HttpResult {
  HttpAnswer answer;
  std::string text;
};

// Sends the request, with retries, until it succeeds. Throws Error if it does not. A response that
// reports an error in its body, with the root element "Error", counts as status 500.
HttpResult operate(HttpClient& client, HttpOperation& operation, HttpTries& tries, Cancel& cancel);

// Returns whether the server has answered that there is no file.
bool is_missing(const HttpOutcome& outcome);

// Removes the file of the client's endpoint, if it exists. `headers`: further lines of the request.
void remove_file(HttpClient& client, Cancel& cancel, std::vector<std::string> headers = {});

// Describes a response that is not from the store, for `fault`. `store`: "S3"; `wanted`: what the
// response should have had, or empty.
std::string not_from(std::string_view store, const HttpAnswer& answer, std::string_view text,
                     std::string_view wanted);

}  // namespace tensorizer
