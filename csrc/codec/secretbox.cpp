#include "codec/secretbox.h"

#include <openssl/evp.h>
#include <sodium.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "codec/raw.h"
#include "codec/secret_bytes.h"

namespace tensorizer {

namespace {

// The first block of the key stream: its first half is Poly1305's key, its second half encrypts the
// first bytes.
constexpr std::size_t kKeyStreamBlock = 64;
constexpr std::size_t kFirst = 32;
// The size of a piece, which is encrypted and then authenticated while it is in the nearest cache.
constexpr std::size_t kPiece = 16 << 10;

// libcrypto's Poly1305 is nearly twice as fast as libsodium's.
class Poly1305 {
 public:
  explicit Poly1305(ConstBytes key) : context_(EVP_MAC_CTX_new(algorithm())) {
    if (!context_ || EVP_MAC_init(context_.get(), raw(key), key.size(), nullptr) != 1) fail();
  }

  void update(ConstBytes bytes) {
    if (EVP_MAC_update(context_.get(), raw(bytes), bytes.size()) != 1) fail();
  }

  Mac finish() {
    Mac mac;
    std::size_t size = 0;
    if (EVP_MAC_final(context_.get(), raw(Bytes(mac)), &size, mac.size()) != 1) fail();
    return mac;
  }

 private:
  struct Free {
    void operator()(EVP_MAC_CTX* context) const noexcept { EVP_MAC_CTX_free(context); }
  };

  // Never freed: other threads may still encrypt when the process ends.
  static EVP_MAC* algorithm() {
    static EVP_MAC* const found = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
    if (!found) fail();
    return found;
  }

  [[noreturn]] static void fail() {
    throw Error(ErrorKind::Internal, "OpenSSL's libcrypto cannot compute Poly1305 here");
  }

  std::unique_ptr<EVP_MAC_CTX, Free> context_;
};

// The key stream of one chunk.
class KeyStream {
 public:
  KeyStream(ConstBytes key, const Nonce& nonce) : key_(raw(key)), nonce_(raw(nonce)) {
    crypto_stream_xsalsa20(raw(Bytes(block_)), block_.size(), nonce_, key_);
  }
  ~KeyStream() { wipe(block_); }
  KeyStream(const KeyStream&) = delete;
  KeyStream& operator=(const KeyStream&) = delete;

  ConstBytes mac_key() const noexcept { return ConstBytes(block_).first(kFirst); }

  // Encrypts or decrypts the first bytes of the chunk, at most kFirst of them.
  void apply_first(ConstBytes in, Bytes out) const noexcept {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] ^ block_[kFirst + i];
  }

  // Encrypts or decrypts bytes from `position` on, which is kFirst plus a multiple of
  // kKeyStreamBlock.
  void apply(std::uint64_t position, ConstBytes in, Bytes out) const noexcept {
    const std::uint64_t block = (position + kFirst) / kKeyStreamBlock;
    crypto_stream_xsalsa20_xor_ic(raw(out), raw(in), in.size(), nonce_, block, key_);
  }

 private:
  const unsigned char* key_;
  const unsigned char* nonce_;
  std::array<std::byte, kKeyStreamBlock> block_;
};

}  // namespace

Nonce random_nonce() noexcept {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

Nonce nonce_after(const Nonce& first, std::uint64_t count) noexcept {
  Nonce nonce = first;
  std::uint64_t carry = 0;
  for (std::byte& byte : nonce) {
    carry += std::to_integer<std::uint64_t>(byte) + (count & 255);
    byte = static_cast<std::byte>(carry & 255);
    carry >>= 8;
    count >>= 8;
  }
  return nonce;
}

Mac encrypt_chunk(ConstBytes key, const Nonce& nonce, ConstBytes plain, Bytes out) {
  const KeyStream stream(key, nonce);
  Poly1305 mac(stream.mac_key());
  std::size_t at = std::min(plain.size(), kFirst);
  stream.apply_first(plain.first(at), out);
  mac.update(out.first(at));
  while (at < plain.size()) {
    const std::size_t size = std::min(kPiece, plain.size() - at);
    stream.apply(at, plain.subspan(at, size), out.subspan(at, size));
    mac.update(out.subspan(at, size));
    at += size;
  }
  return mac.finish();
}

bool decrypt_chunk(ConstBytes key, const Nonce& nonce, ConstBytes mac, Bytes bytes) {
  const KeyStream stream(key, nonce);
  Poly1305 expected(stream.mac_key());
  expected.update(bytes);
  if (!is_equal_mac(expected.finish(), mac)) return false;
  const std::size_t first = std::min(bytes.size(), kFirst);
  stream.apply_first(bytes.first(first), bytes.first(first));
  if (bytes.size() > first) stream.apply(first, bytes.subspan(first), bytes.subspan(first));
  return true;
}

}  // namespace tensorizer
