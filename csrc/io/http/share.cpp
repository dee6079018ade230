#include "io/http/share.h"

#include <algorithm>

#include "base/error.h"

namespace tensorizer {

namespace {

CURLSH* new_share() {
  static const CURLcode status = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (status != CURLE_OK) throw Error(ErrorKind::Internal, "libcurl cannot be initialized");
  CURLSH* share = curl_share_init();
  if (share == nullptr) throw Error(ErrorKind::Internal, "libcurl has no memory");
  return share;
}

}  // namespace

HttpShare::HttpShare() : handle_(new_share()) {
  curl_share_setopt(handle_, CURLSHOPT_LOCKFUNC, &lock);
  curl_share_setopt(handle_, CURLSHOPT_UNLOCKFUNC, &unlock);
  curl_share_setopt(handle_, CURLSHOPT_USERDATA, this);
  curl_share_setopt(handle_, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
  curl_share_setopt(handle_, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
}

HttpShare::~HttpShare() { curl_share_cleanup(handle_); }

void HttpShare::count(CURL* easy) noexcept {
  const auto seconds = [easy](CURLINFO info) {
    curl_off_t microseconds = 0;
    curl_easy_getinfo(easy, info, &microseconds);
    return static_cast<double>(microseconds) / 1e6;
  };
  long connects = 0;
  curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &connects);
  curl_off_t bytes = 0;
  curl_easy_getinfo(easy, CURLINFO_SIZE_DOWNLOAD_T, &bytes);
  // Each of these times counts from the start of the request, and is 0 for what did not happen.
  const double lookup = seconds(CURLINFO_NAMELOOKUP_TIME_T);
  const double connect = std::max(seconds(CURLINFO_CONNECT_TIME_T), lookup);
  const double tls = std::max(seconds(CURLINFO_APPCONNECT_TIME_T), connect);
  const double first_byte = std::max(seconds(CURLINFO_STARTTRANSFER_TIME_T), tls);
  const double total = std::max(seconds(CURLINFO_TOTAL_TIME_T), first_byte);
  const std::lock_guard lock(stats_mutex_);
  stats_.requests += 1;
  stats_.connections += static_cast<std::uint64_t>(connects);
  stats_.received += static_cast<std::uint64_t>(bytes);
  stats_.lookup += lookup;
  stats_.connect += connect - lookup;
  stats_.tls += tls - connect;
  stats_.first_byte += first_byte - tls;
  stats_.transfer += total - first_byte;
}

void HttpShare::count_retry() {
  const std::lock_guard lock(stats_mutex_);
  stats_.retries += 1;
}

SourceStats HttpShare::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void HttpShare::lock(CURL*, curl_lock_data data, curl_lock_access, void* self) {
  static_cast<HttpShare*>(self)->mutexes_.at(data).lock();
}

void HttpShare::unlock(CURL*, curl_lock_data data, void* self) {
  static_cast<HttpShare*>(self)->mutexes_.at(data).unlock();
}

}  // namespace tensorizer
