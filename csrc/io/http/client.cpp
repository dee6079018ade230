#include "io/http/client.h"

#include <algorithm>

#include "base/error.h"

namespace tensorizer {

namespace {

// More than a request has, so that only old signatures are forgotten.
constexpr std::size_t kMostSecrets = 1000;

}  // namespace

void HttpClient::remember(const Secrets& secrets) {
  const std::lock_guard lock(mutex_);
  for (const std::string& secret : secrets) {
    const auto known = std::find(sent_.rbegin(), sent_.rend(), secret);
    if (known != sent_.rend()) sent_.erase(std::prev(known.base()));
    sent_.push_back(secret);
  }
  while (sent_.size() > std::max(kMostSecrets, secrets.size())) sent_.pop_front();
}

void HttpClient::throw_wrong(const std::string& what) const {
  throw Error(ErrorKind::Unavailable, "the server of " + label() + " " + what);
}

Secrets HttpClient::sent() const {
  const std::lock_guard lock(mutex_);
  return {sent_.begin(), sent_.end()};
}

std::string HttpClient::redacted(std::string_view text) const {
  return tensorizer::redacted(text, sent());
}

}  // namespace tensorizer
