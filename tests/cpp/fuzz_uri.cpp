// Fuzzes URIs: of files, web servers, S3 and Redis. The first byte says which; a '$' is a secret
// where a user or a password is.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "fuzz_text.h"
#include "io/places/open.h"
#include "io/redis/address.h"
#include "io/s3/open.h"
#include "io/secret.h"
#include "io/uri.h"
#include "io/url.h"

namespace tensorizer {
namespace {

constexpr auto kInvalid = ErrorKind::InvalidArgument;

std::string escaped(std::string_view text) {
  std::string result;
  for (const unsigned char c : text) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    result += {'%', digits[c >> 4], digits[c & 15]};
  }
  return result;
}

void any(const std::string& text) {
  require(percent_decoded(escaped(text)) == text);
  if (const auto decoded = percent_decoded(text)) {
    require(decoded->size() <= text.size());
    if (!contains(text, "%")) require(*decoded == text);
  }
  Uri uri;
  if (!accepts({kInvalid}, [&] { uri = split_uri(text); })) return;
  require(is_lower_case(uri.scheme) && !contains(text, std::string_view("\0", 1)));
  if (uri.scheme.empty()) {
    require(uri.rest == text);
  } else {
    const Uri again = split_uri(uri.scheme + "://" + uri.rest);
    require(again.scheme == uri.scheme && again.rest == uri.rest);
  }
  if (accepts({kInvalid}, [&] { is_local(text); })) require(!folder_of(text).empty());
  if (uri.scheme == "file") {
    accepts({kInvalid}, [&] {
      const std::string path = decode_file_uri(uri.rest);
      require(!contains(path, std::string_view("\0", 1)) && local_path(uri) == path);
    });
  }
  if (uri.scheme == "fd") accepts({kInvalid}, [&] { require(parse_descriptor(uri.rest) >= 0); });
  require(descriptor_alias(text) >= -1);
  require(without_secrets(text).size() <= text.size() + 8);
  for (const std::string scheme : {"https", "s3", "az", "redis"}) {
    const std::string login = scheme + "://user:" + std::string(kSecret) + "@";
    require(!contains(without_secrets(login + text), kSecret));
    require(!contains(
        without_secrets(scheme + "://h?X-Amz-Signature=" + std::string(kSecret) + text), kSecret));
  }
  accepts({kInvalid}, [&] {
    const auto name = file_name_of(text);
    require(!name || (!name->empty() && !contains(*name, "/")));
  });
  accepts({kInvalid}, [&] {
    const auto beside = sibling_uri(text, "other", {});
    require(!beside || contains(*beside, "other"));
  });
}

void web(const std::string& text) {
  const auto parts = url_parts(text);
  const std::string origin = origin_of(text);
  require(parts.has_value() == !origin.empty());
  if (!parts) return;
  require(parts->scheme == "http" || parts->scheme == "https");
  require(!parts->host.empty() && is_lower_case(parts->host) && parts->path.starts_with('/'));
  require(contains(origin, parts->host));
  accepts({kInvalid},
          [&] { require(origin_of(sibling_url(text, "other.safetensors", "'x'")) == origin); });
}

// Credentials must not follow a redirect to another origin.
void redirect(std::string_view text) {
  const std::size_t space = std::min(text.find(' '), text.size());
  const std::string base =
      "http://user:" + std::string(kSecret) + "@" + std::string(text.substr(0, space));
  const std::string location(text.substr(std::min(space + 1, text.size())));
  const auto next = redirected(base, location);
  if (!next) return;
  const std::string origin = origin_of(*next);
  require(!origin.empty());
  if (origin != origin_of(base)) require(!contains(*next, kSecret));
}

void s3(std::string_view text) {
  accepts({kInvalid}, [&] {
    const S3Name name = parse_s3_name("s3", text);
    require(!name.bucket.empty() && !name.key.empty() && !contains(name.bucket, "/"));
    require(text == name.bucket + "/" + name.key);
  });
}

void redis(const std::string& scheme, const std::string& text) {
  const std::string uri = scheme + "://user:" + std::string(kSecret) + "@" + text;
  accepts({kInvalid}, [&] {
    const RedisAddress address = redis_address(uri, {});
    require(!contains(address.label, kSecret));
    require(contains(address.password, kSecret));
    require(address.database >= 0 && address.tls == (scheme == "rediss"));
    require((scheme == "unix") == !address.socket.empty());
    require(scheme == "unix" || !origin_of(address.url).empty());
  });
}

void fuzz(std::uint8_t kind, std::string_view text) {
  // A message shows the unknown scheme of a URI without the bytes that no scheme has.
  std::string letters;
  std::ranges::copy_if(text, std::back_inserter(letters),
                       [](char c) { return is_letter(c) || is_digit(c) || c == '-'; });
  if (contains(letters, kSecret)) return;
  switch (kind % 5) {
    case 0:
      return any(std::string(text));
    case 1:
      return web(std::string(text));
    case 2:
      return redirect(text);
    case 3:
      return s3(text);
    default:
      for (const char* scheme : {"redis", "rediss", "unix"}) redis(scheme, std::string(text));
  }
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0) tensorizer::fuzz(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
