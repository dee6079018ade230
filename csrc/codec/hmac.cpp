#include "codec/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "codec/raw.h"
#include "codec/secret_bytes.h"

namespace tensorizer {

Sha256Digest sha256(ConstBytes bytes) noexcept {
  Sha256 message;
  message.update(bytes);
  return message.finish();
}

Sha256Digest hmac(ConstBytes key, ConstBytes message) noexcept {
  constexpr std::size_t kBlock = 64;
  std::array<std::byte, kBlock> inner{};
  if (key.size() > kBlock) {
    const Sha256Digest digest = sha256(key);
    std::copy(digest.begin(), digest.end(), inner.begin());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  std::array<std::byte, kBlock> outer = inner;
  for (std::byte& byte : inner) byte ^= std::byte{0x36};
  for (std::byte& byte : outer) byte ^= std::byte{0x5C};

  Sha256 first;
  first.update(inner);
  first.update(message);
  const Sha256Digest digest = first.finish();
  Sha256 second;
  second.update(outer);
  second.update(digest);
  wipe(inner);
  wipe(outer);
  return second.finish();
}

std::array<std::byte, 20> hmac_sha1(ConstBytes key, ConstBytes message) {
  std::array<std::byte, 20> digest;
  const unsigned char* done = HMAC(EVP_sha1(), key.data(), static_cast<int>(key.size()),
                                   raw(message), message.size(), raw(Bytes(digest)), nullptr);
  if (done != nullptr) return digest;
  throw Error(ErrorKind::Unavailable,
              "libcrypto provides no SHA-1, which signatures of version 2 need");
}

std::string to_hex(ConstBytes bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string to_base64(ConstBytes bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), raw(bytes),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
  const std::size_t size = std::min(text.find('='), text.size());
  const std::size_t padding = text.size() - size;
  // The decoder itself ignores spaces at the ends, and takes padding for zeros.
  const auto is_skipped = [](char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '-';
  };
  if (text.size() % 4 != 0 || padding > 2 || text.substr(size) != std::string_view("==", padding) ||
      std::ranges::any_of(text, is_skipped)) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes(text.size() / 4 * 3);
  if (EVP_DecodeBlock(raw(Bytes(bytes)), reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size())) < 0) {
    return std::nullopt;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

bool from_hex(std::string_view text, Bytes out) noexcept {
  if (text.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint8_t value = 0;
    const char* begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc() || end != begin + 2) return false;
    out[i] = static_cast<std::byte>(value);
  }
  return true;
}

}  // namespace tensorizer
