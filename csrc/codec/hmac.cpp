#include "codec/hmac.h"

#include <algorithm>

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
  return second.finish();
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

}  // namespace tensorizer
