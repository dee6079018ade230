#include "io/http/stats.h"

#include <algorithm>

namespace tensorizer {

void HttpStats::count(CURL* easy) noexcept {
  long connects = 0;
  curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &connects);
  curl_off_t bytes = 0;
  curl_easy_getinfo(easy, CURLINFO_SIZE_DOWNLOAD_T, &bytes);
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  const ConnectTimes times = connect_times(easy);
  const double connected = times.lookup + times.connect + times.tls;
  const double first_byte = std::max(seconds_of(easy, CURLINFO_STARTTRANSFER_TIME_T), connected);
  const double total = std::max(seconds_of(easy, CURLINFO_TOTAL_TIME_T), first_byte);
  const std::lock_guard lock(mutex_);
  has_answers_ |= status != 0;
  stats_.requests += 1;
  stats_.connections += static_cast<std::uint64_t>(connects);
  stats_.received += static_cast<std::uint64_t>(bytes);
  stats_.lookup += times.lookup;
  stats_.connect += times.connect;
  stats_.tls += times.tls;
  stats_.first_byte += first_byte - connected;
  stats_.transfer += total - first_byte;
}

void HttpStats::count_retry() {
  const std::lock_guard lock(mutex_);
  stats_.retries += 1;
}

bool HttpStats::has_answers() const {
  const std::lock_guard lock(mutex_);
  return has_answers_;
}

SourceStats HttpStats::so_far() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tensorizer
