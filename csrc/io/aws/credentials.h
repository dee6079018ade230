// The keys that requests to S3 are signed with, found as AWS's own tools find them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/cancel.h"
#include "io/aws/options.h"
#include "io/http/options.h"

namespace tensorizer {

struct S3Credentials {
  std::string key_id;
  std::string secret;
  std::string session_token;  // or empty
  bool anonymous = false;     // then there are no keys, and requests are not signed
  std::optional<std::chrono::system_clock::time_point> expires = {};

  bool operator==(const S3Credentials&) const = default;
};

// Where they come from, and come from anew before they expire. Any thread.
class S3CredentialsChain {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  // Looks nowhere yet. `http` says how to speak with the servers that give credentials: its headers
  // and its own certificate are for others.
  S3CredentialsChain(const S3Options& s3, const HttpOptions& http,
                     Clock clock = &std::chrono::system_clock::now);

  // Those that hold now. Some minutes before they expire, one thread fetches others, while the rest
  // goes on with these. Throws Error: PermissionDenied where there are none, saying where they were
  // looked for; what a source of credentials says that is there and gives none.
  S3Credentials get(Cancel& cancel);

  // A server takes those with this key for expired. True where others may be got: get() fetches
  // them then, and throws Error(PermissionDenied) if they are the same.
  bool refused(const std::string& key_id);

 private:
  using Moment = std::chrono::system_clock::time_point;

  bool hold(Moment now) const;
  void fetch(std::unique_lock<std::mutex>& lock, Cancel& cancel);
  void keep(S3Credentials fresh);

  const S3Options s3_;
  const HttpOptions http_;
  const Clock clock_;

  std::mutex mutex_;
  std::condition_variable changed_;
  pid_t fetching_ = 0;  // the process in which a thread fetches
  std::thread::id fetcher_;
  std::optional<S3Credentials> known_;
  bool refused_ = false;
  Moment fetch_at_;
};

}  // namespace tensorizer
