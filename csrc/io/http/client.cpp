#include "io/http/client.h"

#include "base/error.h"
#include "base/redaction.h"

namespace tensorizer {

namespace {

// More than a request has, so that only those are forgotten that a server has chosen.
constexpr std::size_t kMostShort = 1000;

}  // namespace

void HttpClient::redact(const Secrets& secrets, const Secrets& passing) {
  redact_everywhere(secrets, SecretKind::Given);
  redact_everywhere(passing, SecretKind::Passing);
  const std::lock_guard lock(mutex_);
  for (const Secrets* const each : {&passing, &secrets}) {
    for (const std::string& secret : *each) {
      if (secret.size() >= kShortestEverywhere) continue;
      std::erase(short_, secret);
      short_.push_back(secret);
    }
  }
  while (short_.size() > kMostShort) short_.pop_front();
}

void HttpClient::redact(Redaction& text) const { tensorizer::redact(text, short_secrets()); }

void HttpClient::throw_wrong(const std::string& what) const {
  throw Error(ErrorKind::Unavailable, "the server of " + label() + " " + what);
}

Secrets HttpClient::short_secrets() const {
  const std::lock_guard lock(mutex_);
  return {short_.begin(), short_.end()};
}

}  // namespace tensorizer
