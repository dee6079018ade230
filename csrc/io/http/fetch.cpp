#include "io/http/fetch.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "io/http/client.h"
#include "io/http/retry.h"
#include "io/http/upload.h"

namespace tensorizer {

namespace {

constexpr std::size_t kLongest = 64 << 10;

class Taker final : public HttpReceiver {
 public:
  explicit Taker(const HttpQuestion& question) : question_(question) {}

  bool head(const HttpAnswer& answer) override {
    reply = {answer.status, {}};
    return true;
  }
  bool body(ConstBytes bytes) override {
    reply.body += as_text(bytes);
    if (reply.body.size() <= kLongest) return true;
    throw Error(ErrorKind::Unavailable,
                question_.label + " answers with more than " + std::to_string(kLongest) + " bytes");
  }

  bool is_temporary() const {
    return question_.is_temporary != nullptr && question_.is_temporary(reply);
  }
  bool is_final() const { return !tensorizer::is_temporary(reply.status) && !is_temporary(); }

  HttpReply reply;

 private:
  const HttpQuestion& question_;
};

class FetchEndpoint final : public HttpEndpoint {
 public:
  FetchEndpoint(const Taker& taker, std::string label) : taker_(taker), label_(std::move(label)) {}

  void complete(HttpRequest&, Cancel&) override {}
  HttpRefusal learn(const HttpRequest&, const HttpOutcome&) override {
    HttpRefusal refusal;
    refusal.temporary = taker_.is_temporary();
    return refusal;
  }
  const std::string& label() const override { return label_; }

 private:
  const Taker& taker_;
  const std::string label_;
};

}  // namespace

HttpReply http_fetch(const HttpQuestion& question, const HttpOptions& options, Cancel& cancel) {
  Taker taker(question);
  HttpClient client({std::make_unique<FetchEndpoint>(taker, question.label),
                     std::make_shared<HttpPool>(options)});
  HttpTries tries(client, "ask");
  const std::unique_ptr<HttpConnection> connection = client.take();
  for (;;) {
    taker.reply = {};
    const ConstBytes text = as_bytes(question.body);
    MemoryBody body({&text, 1});
    HttpRequest request = question.request;
    request.follow_redirects = request.log_in = false;
    if (!question.body.empty()) {
      request.body = &body;
      // A body this short is sent without waiting for a "100 Continue".
      request.headers.emplace_back("Expect:");
    }
    const HttpOutcome outcome = tries.ask(*connection, request, taker, cancel);
    if (!outcome.failure && taker.is_final()) {
      taker.reply.short_secrets = client.short_secrets();
      return std::move(taker.reply);
    }
    tries.failed(outcome, 0, cancel);
  }
}

}  // namespace tensorizer
