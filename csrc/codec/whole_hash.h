// The hashes by which stores know whole files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"

struct evp_md_ctx_st;

namespace tensorizer {

struct WholeDigest {
  enum class Hash : std::uint8_t {
    Sha256,
    GitBlob,  // the SHA-1 by which git knows a file
  };

  Hash hash = Hash::Sha256;
  std::string hex;  // in lower case

  const char* name() const { return hash == Hash::Sha256 ? "SHA-256" : "SHA-1 of git"; }
};

// The hash of a file of `size` bytes, which are fed in order.
class WholeHash {
 public:
  // Throws Error(Unavailable) if libcrypto does not provide the hash.
  WholeHash(WholeDigest::Hash hash, std::uint64_t size);
  // Continues from what has been fed to `other`.
  WholeHash(const WholeHash& other);
  WholeHash(WholeHash&&) noexcept = default;
  WholeHash& operator=(WholeHash&&) noexcept = default;

  void update(ConstBytes bytes);
  // Returns the digest in hexadecimal digits. The object must not be used afterwards.
  std::string finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };

  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace tensorizer
