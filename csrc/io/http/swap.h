// Replaces a small file on a server, if nobody else has.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/http/client.h"

namespace tensorizer {

// How a store takes a file in one request.
struct HttpPut {
  std::vector<std::string> headers{};
  // See HttpOperation.
  std::function<std::string(const HttpAnswer& answer, std::string_view text)> fault{};
  // With which the store says that the file is not the one that it was asked to replace.
  std::vector<int> refusals{412};
};

// Replaces the file of the endpoint (swap_file() in io/places/open.h).
bool swap_http_file(HttpAccess access, HttpPut put, std::optional<ConstBytes> known,
                    ConstBytes next, Cancel& cancel);

}  // namespace tensorizer
