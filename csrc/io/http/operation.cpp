#include "io/http/operation.h"

#include "io/xml.h"

namespace tensorizer {

namespace {

// A server may send status 200 early, to keep the connection, and report an error in the body.
class ReplyReceiver final : public TextReceiver {
 public:
  explicit ReplyReceiver(std::uint64_t longest) : longest_(longest) {}

  std::uint64_t longest() const override { return longest_; }
  void ended(HttpAnswer& answer) override {
    if (answer.status != 200 || xml_root(text) != "Error") return;
    answer.status = 500;
    answer.refusal = text;
  }

 private:
  const std::uint64_t longest_;
};

}  // namespace

HttpResult operate(HttpClient& client, HttpOperation& operation, HttpTries& tries, Cancel& cancel) {
  std::unique_ptr<HttpConnection> connection = client.take();
  HttpRequest& request = operation.request;
  for (;;) {
    ReplyReceiver receiver(operation.longest);
    if (request.body != nullptr) request.body->rewind();
    HttpOutcome outcome = tries.ask(*connection, request, receiver, cancel);
    if (!outcome.failure && outcome.answer.status >= 200 && outcome.answer.status < 300) {
      const std::string fault =
          operation.fault ? operation.fault(outcome.answer, receiver.text) : std::string();
      if (fault.empty()) {
        client.give_back(std::move(connection));
        return {outcome.answer, std::move(receiver.text)};
      }
      outcome.failure = ConnectionFailure{.what = fault, .temporary = true};
    }
    if (operation.is_done && operation.is_done(outcome)) return {};
    tries.failed(outcome, 0, cancel);
  }
}

bool is_missing(const HttpOutcome& outcome) {
  return !outcome.failure && (outcome.answer.status == 404 || outcome.answer.status == 410);
}

void remove_file(HttpClient& client, Cancel& cancel, std::vector<std::string> headers) {
  HttpOperation removal;
  removal.request.method = "DELETE";
  removal.request.headers = std::move(headers);
  removal.fault = [&](const HttpAnswer& answer, std::string_view text) {
    if (answer.status == 200 && is_page(text)) {
      client.throw_wrong(
          "answers with status 200 and an HTML page, as proxies and login pages do: the file is "
          "probably still there");
    }
    return std::string();
  };
  removal.is_done = &is_missing;
  HttpTries tries(client, "remove");
  operate(client, removal, tries, cancel);
}

std::string not_from(std::string_view store, const HttpAnswer& answer, std::string_view text,
                     std::string_view wanted) {
  const bool has_etag = !answer.header("etag").empty();
  const std::string what = is_page(text)   ? "an HTML page"
                           : !text.empty() ? "text"
                           : has_etag      ? "no text"
                                           : "neither text nor an ETag";
  return "this response is not from " + std::string(store) + ": status " +
         std::to_string(answer.status) + " and " + what +
         (wanted.empty() ? "" : ", instead of " + std::string(wanted)) +
         ": check the endpoint, and what is in front of it (a proxy, a login page)";
}

}  // namespace tensorizer
