#include "codec/whole_hash.h"

#include <openssl/evp.h>

#include <array>

#include "base/error.h"
#include "codec/hmac.h"

namespace tensorizer {

namespace {

void check(bool done) {
  if (done) return;
  throw Error(ErrorKind::Unavailable, "libcrypto cannot compute the hash that the server keeps");
}

}  // namespace

void WholeHash::Free::operator()(evp_md_ctx_st* context) const noexcept {
  EVP_MD_CTX_free(context);
}

WholeHash::WholeHash(WholeDigest::Hash hash, std::uint64_t size) : context_(EVP_MD_CTX_new()) {
  const bool is_git = hash == WholeDigest::Hash::GitBlob;
  check(context_ && EVP_DigestInit_ex(context_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr));
  if (!is_git) return;
  const std::string start = "blob " + std::to_string(size);
  update(ConstBytes(reinterpret_cast<const std::byte*>(start.c_str()), start.size() + 1));
}

WholeHash::WholeHash(const WholeHash& other) : context_(EVP_MD_CTX_new()) {
  check(context_ && EVP_MD_CTX_copy_ex(context_.get(), other.context_.get()));
}

void WholeHash::update(ConstBytes bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string WholeHash::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  return to_hex({reinterpret_cast<const std::byte*>(digest.data()), size});
}

}  // namespace tensorizer
