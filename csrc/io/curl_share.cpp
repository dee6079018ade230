#include "io/curl_share.h"

#include "base/error.h"

namespace tensorizer {

namespace {

CURLSH* new_share() {
  static const CURLcode status = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (status != CURLE_OK) throw Error(ErrorKind::Internal, "libcurl cannot be initialized");
  CURLSH* share = curl_share_init();
  if (share == nullptr) throw Error(ErrorKind::Internal, "libcurl is out of memory");
  return share;
}

}  // namespace

CurlShare::CurlShare() : handle_(new_share()) {
  curl_share_setopt(handle_, CURLSHOPT_LOCKFUNC, &lock);
  curl_share_setopt(handle_, CURLSHOPT_UNLOCKFUNC, &unlock);
  curl_share_setopt(handle_, CURLSHOPT_USERDATA, this);
  curl_share_setopt(handle_, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
  curl_share_setopt(handle_, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
}

CurlShare::~CurlShare() { curl_share_cleanup(handle_); }

void CurlShare::lock(CURL*, curl_lock_data data, curl_lock_access, void* self) {
  static_cast<CurlShare*>(self)->mutexes_.at(data).lock();
}

void CurlShare::unlock(CURL*, curl_lock_data data, void* self) {
  static_cast<CurlShare*>(self)->mutexes_.at(data).unlock();
}

}  // namespace tensorizer
