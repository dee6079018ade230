// The credentials that sign requests to S3, found as AWS's own tools find them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/gate.h"
#include "base/world.h"
#include "io/aws/options.h"
#include "io/http/options.h"

namespace tensorizer {

struct S3Credentials {
  std::string key_id;
  std::string secret;
  std::string session_token;  // or empty
  bool anonymous = false;     // there are no keys, and requests are not signed
  std::optional<WallClock::time_point> expires = {};

  bool operator==(const S3Credentials&) const = default;
};

// Finds credentials, and replaces them before they expire. Thread-safe.
class S3CredentialsChain {
 public:
  // Does not search yet. `http` has the options for servers that give credentials; its headers and
  // client certificate are not sent to them.
  S3CredentialsChain(const S3Options& s3, const HttpOptions& http);

  // Returns the current credentials. A few minutes before they expire, one thread fetches new ones,
  // while other threads continue with the old ones. Throws Error: PermissionDenied if there are
  // none (the message lists where they were searched for), or the error of the configured source if
  // it gives none.
  S3Credentials get(Cancel& cancel);

  // Reports that a server considers the credentials with this key expired. Returns true if there
  // may be others: then get() fetches them, and throws Error(PermissionDenied) if they are the
  // same.
  bool refused(const std::string& key_id);

 private:
  using Moment = WallClock::time_point;

  bool hold(Moment now) const;
  void fetch(std::unique_lock<std::mutex>& lock, Cancel& cancel);
  void keep(S3Credentials fresh);

  const S3Options s3_;
  const HttpOptions http_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Doer> fetcher_;
  std::optional<S3Credentials> known_;
  bool refused_ = false;
  Moment fetch_at_;
};

}  // namespace tensorizer
