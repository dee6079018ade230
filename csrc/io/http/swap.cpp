#include "io/http/swap.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "io/http/operation.h"
#include "io/http/retry.h"
#include "io/http/upload.h"
#include "io/place_kind.h"

namespace tensorizer {

namespace {

class Swap {
 public:
  Swap(HttpAccess access, HttpPut put, ConstBytes next, Cancel& cancel)
      : client_(std::move(access)), put_(std::move(put)), next_(next), cancel_(cancel) {}

  bool run(std::optional<ConstBytes> known) {
    std::string condition = "If-None-Match: *";
    if (known) {
      const std::optional<HttpResult> there = find();
      if (there && there->text == as_text(next_)) return true;
      if (!there || there->text != as_text(*known)) return false;
      if (!there->answer.object.has_strong_etag()) {
        client_.throw_wrong(
            "sends no ETag that tells one content of the file from another, so it cannot be told "
            "to replace only the one that is known");
      }
      condition = "If-Match: " + there->answer.object.etag;
    }
    try {
      if (store(condition)) return true;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Cancelled || !is_there()) throw;
      return true;
    }
    // An earlier try may have stored it, and its response was lost.
    return is_there();
  }

 private:
  // Returns what the server has; null if there is no file.
  std::optional<HttpResult> find() {
    bool missing = false;
    HttpOperation question;
    question.request.method = "GET";
    question.request.headers = {"Cache-Control: no-cache"};
    question.longest = kMostSwapped;
    question.is_done = [&](const HttpOutcome& outcome) { return missing = is_missing(outcome); };
    HttpTries tries(client_, "load");
    HttpResult result = operate(client_, question, tries, cancel_);
    if (missing) return std::nullopt;
    return result;
  }

  bool is_there() {
    const std::optional<HttpResult> there = find();
    return there && there->text == as_text(next_);
  }

  // Returns false if the file is not the one that the condition asks for.
  bool store(const std::string& condition) {
    bool refused = false;
    MemoryBody body({&next_, 1});
    HttpOperation operation;
    operation.request.method = "PUT";
    operation.request.headers = put_.headers;
    operation.request.headers.insert(operation.request.headers.end(), {condition, "Expect:"});
    operation.request.body = &body;
    operation.fault = put_.fault;
    operation.is_done = [&](const HttpOutcome& outcome) {
      refused = !outcome.failure && std::ranges::count(put_.refusals, outcome.answer.status) > 0;
      return refused;
    };
    HttpTries tries(client_, "save");
    operate(client_, operation, tries, cancel_);
    return !refused;
  }

  HttpClient client_;
  const HttpPut put_;
  const ConstBytes next_;
  Cancel& cancel_;
};

}  // namespace

bool swap_http_file(HttpAccess access, HttpPut put, std::optional<ConstBytes> known,
                    ConstBytes next, Cancel& cancel) {
  return Swap(std::move(access), std::move(put), next, cancel).run(known);
}

}  // namespace tensorizer
