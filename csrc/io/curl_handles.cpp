#include "io/curl_handles.h"

#include <utility>

#include "base/cancel.h"
#include "base/error.h"
#include "base/world.h"

namespace tensorizer {

namespace {

void check(CURLMcode status) {
  if (status != CURLM_OK) throw Error(ErrorKind::Internal, curl_multi_strerror(status));
}

}  // namespace

CurlHandles::CurlHandles(std::shared_ptr<CurlShare> share)
    : share_(std::move(share)), easy_(curl_easy_init()), multi_(curl_multi_init()) {
  if (easy_ == nullptr || multi_ == nullptr ||
      curl_easy_setopt(easy_, CURLOPT_SHARE, share_->handle()) != CURLE_OK) {
    close();
    throw Error(ErrorKind::Internal, "libcurl is out of memory");
  }
  if (World* const world = simulated_world()) {
    curl_easy_setopt(easy_, CURLOPT_ABSTRACT_UNIX_SOCKET, world->server());
  }
}

CurlHandles::~CurlHandles() {
  if (are_ours()) {
    close();
  } else {
    // The handles refer to the share.
    static_cast<void>(new std::shared_ptr<CurlShare>(std::move(share_)));
  }
}

void CurlHandles::start() { check(curl_multi_add_handle(multi_, easy_)); }

void CurlHandles::stop() noexcept { curl_multi_remove_handle(multi_, easy_); }

bool CurlHandles::run() {
  int running = 0;
  check(curl_multi_perform(multi_, &running));
  return running > 0;
}

CURLcode CurlHandles::result() {
  int left = 0;
  const CURLMsg* message = curl_multi_info_read(multi_, &left);
  return message != nullptr ? message->data.result : CURLE_FAILED_INIT;
}

void CurlHandles::wait() {
  if (wait_in_simulation(kPollInterval)) return;
  curl_multi_poll(multi_, nullptr, 0, static_cast<int>(kPollInterval.count()), nullptr);
}

void CurlHandles::close() noexcept {
  stop();
  curl_multi_cleanup(std::exchange(multi_, nullptr));
  curl_easy_cleanup(std::exchange(easy_, nullptr));
}

}  // namespace tensorizer
