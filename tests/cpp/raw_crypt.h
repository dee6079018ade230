// Builds encrypted tensors field by field, from the description of the format and with libsodium
// alone, so that they can test the library independently.
#pragma once

#include <sodium.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec/argon2.h"
#include "codec/secretbox.h"
#include "raw_file.h"
#include "support.h"

namespace tensorizer::testing_support {

// Returns a pointer for libsodium, which is not null even if `bytes` is empty.
inline unsigned char* out(Bytes bytes) {
  static unsigned char none;
  return bytes.empty() ? &none : reinterpret_cast<unsigned char*>(bytes.data());
}
inline const unsigned char* in(ConstBytes bytes) {
  return out({const_cast<std::byte*>(bytes.data()), bytes.size()});
}

inline Nonce nonce_of(std::uint32_t seed) {
  Nonce nonce;
  const std::vector<std::byte> bytes = pattern(kNonceSize, seed);
  std::copy(bytes.begin(), bytes.end(), nonce.begin());
  return nonce;
}

inline KeyDerivation derivation_of(std::uint32_t salt, Argon2Cost cost = {1, 8192}) {
  KeyDerivation derivation{cost, {}};
  const std::vector<std::byte> bytes = pattern(kSaltSize, salt);
  std::copy(bytes.begin(), bytes.end(), derivation.salt.begin());
  return derivation;
}

// Concatenates fields.
class RawFields {
 public:
  template <std::integral T>
  RawFields& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  RawFields& put(ConstBytes bytes) {
    text_ += as_text(bytes);
    return *this;
  }
  RawFields& put(std::string_view text) {
    text_ += text;
    return *this;
  }
  operator std::string() const { return text_; }

 private:
  std::string text_;
};

// Returns an entry: its size, its kind and its body.
inline std::string crypt_entry(std::uint16_t kind, std::string_view body) {
  return RawFields().put(std::uint64_t{sizeof(kind) + body.size()}).put(kind).put(body);
}

inline std::string crypt_section(const std::vector<std::string>& entries) {
  RawFields section;
  section.put(static_cast<std::uint16_t>(entries.size()));
  for (const std::string& entry : entries) section.put(entry);
  return section;
}

inline std::string derivation_body(Argon2Cost cost, ConstBytes salt, std::uint16_t method = 1,
                                   std::int32_t algorithm = 2) {
  return RawFields()
      .put(method)
      .put(cost.passes)
      .put(cost.memory)
      .put(algorithm)
      .put(static_cast<std::uint16_t>(salt.size()))
      .put(salt);
}
inline std::string derivation_body(const KeyDerivation& derivation) {
  return derivation_body(derivation.cost, derivation.salt);
}

// `macs` are concatenated. `count` is the number of MACs that the body claims to have.
inline std::string chunked_body(std::uint64_t chunk_size, const Nonce& nonce, std::uint64_t count,
                                std::string_view macs) {
  return RawFields().put(chunk_size).put(nonce).put(count).put(macs);
}
inline std::string sequential_body(const Nonce& nonce, std::string_view mac) {
  return RawFields().put(nonce).put(mac);
}

// Encrypted chunks, and their MACs.
struct SealedChunks {
  std::string data;
  std::string macs;
  std::uint64_t count = 0;
};

inline SealedChunks seal(ConstBytes plain, ConstBytes key, Nonce nonce, std::uint64_t chunk_size) {
  SealedChunks sealed;
  for (std::size_t at = 0; at < plain.size(); at += chunk_size) {
    const ConstBytes chunk = plain.subspan(at, std::min(chunk_size, plain.size() - at));
    std::vector<std::byte> bytes(chunk.size());
    Mac mac;
    if (crypto_secretbox_detached(out(bytes), out(mac), in(chunk), chunk.size(), in(nonce),
                                  in(key)) != 0) {
      throw std::logic_error("libsodium");
    }
    sodium_increment(out(nonce), nonce.size());
    sealed.data += as_text(bytes);
    sealed.macs += as_text(mac);
    ++sealed.count;
  }
  return sealed;
}

// How another program might have encrypted a tensor of bytes. With a chunk size of 0, one MAC
// covers all of it (kind 3). The hashes are those of the plaintext.
struct Sealing {
  std::vector<std::byte> key;
  std::uint64_t chunk_size = 0;
  std::uint32_t nonce = 1;
  std::optional<KeyDerivation> derivation = {};
};

inline RawTensor sealed_tensor(const std::string& name, ConstBytes plain, const Sealing& how) {
  const Nonce nonce = nonce_of(how.nonce);
  const std::uint64_t chunk_size = how.chunk_size > 0 ? how.chunk_size : plain.size();
  const SealedChunks sealed = seal(plain, how.key, nonce, chunk_size);
  std::vector<std::string> entries;
  if (how.derivation) entries.push_back(crypt_entry(1, derivation_body(*how.derivation)));
  if (plain.empty()) {
    entries.clear();
  } else if (how.chunk_size > 0) {
    entries.push_back(crypt_entry(2, chunked_body(chunk_size, nonce, sealed.count, sealed.macs)));
  } else {
    entries.push_back(crypt_entry(3, sequential_body(nonce, sealed.macs)));
  }
  return {.name = name,
          .dtype = "|u1",
          .shape = {plain.size()},
          .data = sealed.data,
          .crypt = crypt_section(entries),
          .hashed = std::string(as_text(plain))};
}

// Derives a key that nothing cancels.
inline SharedSecret derive_key(ConstBytes passphrase, const KeyDerivation& derivation) {
  Cancel cancel;
  return tensorizer::derive_key(passphrase, derivation, cancel);
}

}  // namespace tensorizer::testing_support
