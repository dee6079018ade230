#include "io/aws/credentials.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "io/aws/credential_chain.h"
#include "io/secret.h"

namespace tensorizer {

namespace {

using std::chrono::minutes;
using std::chrono::seconds;

// How long before they expire credentials are replaced. Short-lived ones are replaced in the last
// quarter of their lifetime.
constexpr minutes kAhead{5};
// The least time between two fetches, even if credentials have expired on arrival: the clock of
// this machine may be wrong.
constexpr seconds kLeast{1};
// The pause after a failed fetch, while the old credentials are valid.
constexpr seconds kPause{10};

// Removes the options that are only for S3.
HttpOptions for_others(HttpOptions http) {
  http.tls.client_cert.clear();
  http.tls.client_key.clear();
  http.max_bandwidth = 0;
  return http;
}

// Returns true if the caller gave the credentials themselves, and not references to secrets, so
// that another fetch would return the same.
bool are_literal(const S3Options& s3) {
  return !s3.access_key_id.empty() && !names_secret(s3.access_key_id) &&
         !names_secret(s3.secret_access_key) && !names_secret(s3.session_token);
}

}  // namespace

S3CredentialsChain::S3CredentialsChain(const S3Options& s3, const HttpOptions& http)
    : s3_(s3), http_(for_others(http)) {}

S3Credentials S3CredentialsChain::get(Cancel& cancel) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const Moment now = WallClock::now();
    if (hold(now) && now < fetch_at_) return *known_;
    if (!fetcher_ || !fetcher_->goes_on_beside(cancel)) {
      fetch(lock, cancel);
      if (known_ && !refused_) return *known_;
    } else if (hold(now)) {
      return *known_;
    } else {
      cancel.wait(changed_, lock);
    }
  }
}

bool S3CredentialsChain::refused(const std::string& key_id) {
  if (are_literal(s3_) || key_id.empty()) return false;
  const std::lock_guard lock(mutex_);
  if (known_ && known_->key_id == key_id) refused_ = true;
  return true;
}

bool S3CredentialsChain::hold(Moment now) const {
  return known_ && !refused_ && (!known_->expires || now < std::max(*known_->expires, fetch_at_));
}

// Unlocks the lock while it searches.
void S3CredentialsChain::fetch(std::unique_lock<std::mutex>& lock, Cancel& cancel) {
  fetcher_.emplace(cancel);
  lock.unlock();
  std::optional<S3Credentials> fresh;
  std::exception_ptr exception;
  bool may_wait = false;  // whether a later fetch may succeed
  try {
    fresh = find_s3_credentials(s3_, http_, cancel);
  } catch (const Error& error) {
    exception = std::current_exception();
    may_wait = error.kind() != ErrorKind::Cancelled;
  } catch (...) {
    exception = std::current_exception();
  }
  lock.lock();
  fetcher_.reset();
  changed_.notify_all();
  if (fresh) return keep(std::move(*fresh));
  const Moment now = WallClock::now();
  if (!may_wait || !hold(now)) std::rethrow_exception(exception);
  fetch_at_ = now + kPause;
}

void S3CredentialsChain::keep(S3Credentials fresh) {
  if (refused_ && known_ == fresh) {
    throw Error(ErrorKind::PermissionDenied,
                "S3 considers the credentials expired, and their source has no new ones");
  }
  const Moment now = WallClock::now();
  fetch_at_ = Moment::max();
  if (fresh.expires) {
    const auto ahead = std::min<Moment::duration>(kAhead, (*fresh.expires - now) / 4);
    fetch_at_ = std::max(*fresh.expires - ahead, now + kLeast);
  }
  known_ = std::move(fresh);
  refused_ = false;
}

}  // namespace tensorizer
