#include "codec/secret_bytes.h"

#include <sodium.h>

#include <algorithm>
#include <new>

#include "codec/raw.h"

namespace tensorizer {

namespace {

// Initializes libsodium. Must come before any use of it. Thread-safe. Throws std::bad_alloc.
void start_sodium() {
  static const int started = sodium_init();
  if (started < 0) throw std::bad_alloc();
}

}  // namespace

SecretBytes::SecretBytes(std::size_t size) : size_(size) {
  start_sodium();
  memory_.reset(static_cast<std::byte*>(sodium_malloc(size)));
  if (!memory_) throw std::bad_alloc();
  std::fill_n(memory_.get(), size, std::byte{0});
}

SecretBytes::SecretBytes(ConstBytes content) : SecretBytes(content.size()) {
  std::copy(content.begin(), content.end(), memory_.get());
}

void SecretBytes::shorten(std::size_t size) noexcept {
  if (size >= size_) return;
  wipe(bytes().subspan(size));
  size_ = size;
}

void SecretBytes::Free::operator()(std::byte* memory) const noexcept { sodium_free(memory); }

bool is_equal_mac(ConstBytes a, ConstBytes b) noexcept {
  if (a.size() != b.size()) return false;
  if (a.size() == crypto_verify_16_BYTES) return crypto_verify_16(raw(a), raw(b)) == 0;
  if (a.size() == crypto_verify_32_BYTES) return crypto_verify_32(raw(a), raw(b)) == 0;
  return false;
}

void fill_random(Bytes out) noexcept {
  start_sodium();
  randombytes_buf(out.data(), out.size());
}

void wipe(Bytes bytes) noexcept { sodium_memzero(bytes.data(), bytes.size()); }

}  // namespace tensorizer
