#include "io/curl.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/environment.h"

namespace tensorizer {

namespace {

constexpr std::array<const char*, 5> kPlaces{
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // newer ones of these
    "/etc/ssl/ca-bundle.pem",                             // openSUSE
    "/etc/ssl/cert.pem",                                  // Alpine
};

bool is_readable(const char* file) { return file != nullptr && ::access(file, R_OK) == 0; }

// Returns the file with the authorities that this system trusts; empty if none was found. It is the
// file or folder that the environment variable CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE or SSL_CERT_FILE
// names, readable or not, or else the file that libcurl was built to use, or one where some other
// distribution of Linux keeps it: a libcurl that was built on one distribution may run on another.
std::string system_ca_bundle() {
  std::string given = environment({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"});
  if (!given.empty()) return given;
  if (const char* const own = curl_version_info(CURLVERSION_NOW)->cainfo; is_readable(own)) {
    return own;
  }
  const auto* const found = std::find_if(kPlaces.begin(), kPlaces.end(), is_readable);
  return found == kPlaces.end() ? "" : *found;
}

// Returns the environment variable that names the authorities whose path is in `message`; empty if
// there is none.
std::string ca_variable_in(std::string_view message) {
  for (const char* const name :
       {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const std::string path = environment(name);
    if (!path.empty() && message.find(path) != message.npos) return name;
  }
  return "";
}

// Returns whether the authorities whose path is in `message` are those that libcurl was built for.
bool is_own_bundle(std::string_view message) {
  const char* const own = curl_version_info(CURLVERSION_NOW)->cainfo;
  return own != nullptr && message.find(own) != message.npos;
}

// Keeps programs that this process starts from inheriting the connection.
int close_on_exec(void*, curl_socket_t socket, curlsocktype) {
  return fcntl(socket, F_SETFD, FD_CLOEXEC) == 0 ? CURL_SOCKOPT_OK : CURL_SOCKOPT_ERROR;
}

// Removes the URL of a proxy that libcurl cannot use: it quotes it whole, with the password.
std::string without_quoted(std::string_view detail) {
  const std::size_t begin = detail.find('\'');
  if (begin == detail.npos || detail.find("roxy") > begin) return std::string(detail);
  return std::string(detail.substr(0, begin)) + "'...'";
}

// Returns true for a TLS handshake that was interrupted, and false for one that failed because the
// two sides could not agree: only then does the TLS library report an error of its own.
bool is_broken_off(std::string_view detail) {
  return detail.find("error:") == detail.npos || detail.find("unexpected eof") != detail.npos;
}

// Returns true if what came in place of a TLS handshake was something else, such as plain HTTP.
bool is_no_tls(std::string_view detail) {
  return detail.find("wrong version number") != detail.npos ||
         detail.find("packet length too long") != detail.npos;
}

// Returns true if the server knows only versions of TLS that are not accepted here.
bool is_old_tls(std::string_view detail) {
  return detail.find("unsupported protocol") != detail.npos ||
         detail.find("alert protocol version") != detail.npos;
}

// Returns true if the server refused the client certificate. With TLS 1.3 it says so only after the
// handshake.
bool is_certificate_refused(std::string_view detail) {
  return detail.find("alert") != detail.npos &&
         (detail.find("certificate") != detail.npos || detail.find("unknown ca") != detail.npos);
}

}  // namespace

void set_connecting(CURL* easy, const TlsOptions& tls, double timeout) {
  set(easy, CURLOPT_NOSIGNAL, 1L);
  set(easy, CURLOPT_QUICK_EXIT, 1L);
  set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  set(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  set(easy, CURLOPT_SOCKOPTFUNCTION, &close_on_exec);
  set(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(timeout * 1000));
  const std::string authorities = tls.ca_file.empty() ? system_ca_bundle() : tls.ca_file;
  set(easy, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(authorities, ignored);
  if (is_folder) {
    set(easy, CURLOPT_CAINFO, static_cast<const char*>(nullptr));
    set(easy, CURLOPT_CAPATH, authorities.c_str());
  } else if (!authorities.empty()) {
    set(easy, CURLOPT_CAINFO, authorities.c_str());
  }
  if (!tls.ca_path.empty()) set(easy, CURLOPT_CAPATH, tls.ca_path.c_str());
  if (!tls.client_cert.empty()) set(easy, CURLOPT_SSLCERT, tls.client_cert.c_str());
  if (!tls.client_key.empty()) set(easy, CURLOPT_SSLKEY, tls.client_key.c_str());
  if (tls.insecure) {
    set(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    set(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
}

double seconds_of(CURL* easy, CURLINFO info) {
  curl_off_t microseconds = 0;
  curl_easy_getinfo(easy, info, &microseconds);
  return static_cast<double>(microseconds) / 1e6;
}

ConnectTimes connect_times(CURL* easy) {
  // Each of these times counts from the start, and is 0 for a step that did not happen.
  const double lookup = seconds_of(easy, CURLINFO_NAMELOOKUP_TIME_T);
  const double connect = std::max(seconds_of(easy, CURLINFO_CONNECT_TIME_T), lookup);
  const double tls = std::max(seconds_of(easy, CURLINFO_APPCONNECT_TIME_T), connect);
  return {lookup, connect - lookup, tls - connect};
}

ConnectionFailure failure_of(CURLcode code, std::string_view detail) {
  ConnectionFailure failure;
  // A secret whose end libcurl has cut off would not be known as one.
  const bool is_whole = !detail.empty() && detail.size() + 1 < CURL_ERROR_SIZE;
  failure.what = is_whole ? without_quoted(detail) : curl_easy_strerror(code);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      failure.timed_out = failure.temporary = true;
      // A server without TLS may wait for the rest of the handshake.
      failure.tls_mismatch = failure.what.starts_with("SSL");
      break;
    case CURLE_SSL_CACERT_BADFILE:
      if (const std::string name = ca_variable_in(detail); !name.empty()) {
        failure.what += ", which the environment variable " + name + " names";
      } else if (is_own_bundle(detail)) {
        failure.what =
            "this system has no certificate authorities where they usually are: install its "
            "package ca-certificates, or name a file of them in SSL_CERT_FILE or the option "
            "'ca_file'";
      }
      failure.is_argument = true;
      break;
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_PROXY:
      failure.is_argument = true;
      break;
    // A retry would fail in the same way.
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_CLIENTCERT:
    case CURLE_OUT_OF_MEMORY:
      break;
    case CURLE_SSL_CONNECT_ERROR:
      failure.temporary = is_broken_off(detail);
      failure.tls_mismatch = failure.temporary || is_no_tls(detail);
      if (is_no_tls(detail)) failure.what = "the server does not speak TLS";
      if (is_old_tls(detail)) failure.what = "the server offers no TLS 1.2 or later";
      break;
    case CURLE_UNSUPPORTED_PROTOCOL:
      if (detail.find("HTTP/0.9") != detail.npos) failure.what = "the response is not HTTP";
      failure.temporary = true;
      break;
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
      failure.temporary = !is_certificate_refused(detail);
      break;
    default:
      failure.temporary = true;
  }
  return failure;
}

}  // namespace tensorizer
