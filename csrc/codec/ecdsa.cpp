#include "codec/ecdsa.h"

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "codec/hmac.h"
#include "codec/libcrypto_errors.h"
#include "codec/raw.h"

namespace tensorizer {

namespace {

struct Curve {
  std::string_view group;  // as libcrypto calls it
  const EVP_MD* (*hash)();
};

constexpr std::array kCurves{
    Curve{"prime256v1", EVP_sha256},
    Curve{"secp384r1", EVP_sha384},
    Curve{"secp521r1", EVP_sha512},
};

constexpr std::size_t kLargestPem = std::size_t{1} << 20;
constexpr const char* kExpectedKey = "expected is one of the curves P-256, P-384 or P-521";

using Memory = std::unique_ptr<BIO, decltype(&BIO_free)>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

[[noreturn]] void refuse_key(const std::string& label, const std::string& what) {
  throw Error(ErrorKind::InvalidArgument, label + ": " + what);
}

void check_size(std::size_t pem, const std::string& label) {
  if (pem > kLargestPem) refuse_key(label, "this is too large for a key as PEM");
}

Memory reader_of(ConstBytes text) {
  Memory memory(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

SharedKey shared(EVP_PKEY* key) { return SharedKey(key, EVP_PKEY_free); }

// Returns null unless the key is on one of the curves.
const Curve* curve_of(const EVP_PKEY* key) {
  if (EVP_PKEY_get_base_id(key) != EVP_PKEY_EC) return nullptr;
  std::array<char, 64> group{};
  std::size_t size = 0;
  if (EVP_PKEY_get_group_name(key, group.data(), group.size(), &size) != 1) return nullptr;
  const auto* const found =
      std::ranges::find(kCurves, std::string_view(group.data(), size), &Curve::group);
  return found == kCurves.end() ? nullptr : found;
}

std::string kind_of_key(const EVP_PKEY* key) {
  const int kind = EVP_PKEY_get_base_id(key);
  if (kind == EVP_PKEY_EC) {
    std::array<char, 64> group{};
    std::size_t size = 0;
    if (EVP_PKEY_get_group_name(key, group.data(), group.size(), &size) == 1) {
      return "a key on the curve " + std::string(group.data(), size);
    }
    return "a key on a curve without a name";
  }
  const char* const name = EVP_PKEY_get0_type_name(key);
  return name == nullptr ? "a key of an unknown kind" : "a key of the kind " + std::string(name);
}

// Says what a text is in which no key was found.
std::string kind_of_text(std::string_view text) {
  const auto has = [&](std::string_view part) { return text.find(part) != text.npos; };
  if (has("PRIVATE KEY-----")) return "a private key";
  if (has("-----BEGIN PUBLIC KEY-----")) return "a damaged public key";
  if (has("-----BEGIN CERTIFICATE-----")) return "a certificate";
  if (has("-----BEGIN ")) return "PEM of another kind";
  return "no PEM";
}

struct Passphrase {
  ConstBytes bytes;
  bool asked = false;
};

// Called by libcrypto, which asks on the terminal if there is no such function.
int give_passphrase(char* out, int size, int, void* given) {
  auto& passphrase = *static_cast<Passphrase*>(given);
  passphrase.asked = true;
  if (passphrase.bytes.empty() || passphrase.bytes.size() > static_cast<std::size_t>(size)) {
    return -1;
  }
  std::memcpy(out, passphrase.bytes.data(), passphrase.bytes.size());
  return static_cast<int>(passphrase.bytes.size());
}

DigestContext digest_context() {
  DigestContext context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

}  // namespace

PublicKey::PublicKey(SharedKey key, const std::string& label) : key_(std::move(key)) {
  const NoErrorsLeft cleared;
  if (curve_of(key_.get()) == nullptr) {
    refuse_key(label, "this is " + kind_of_key(key_.get()) + "; " + kExpectedKey);
  }
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> check(
      EVP_PKEY_CTX_new_from_pkey(nullptr, key_.get(), nullptr), EVP_PKEY_CTX_free);
  if (check == nullptr) throw std::bad_alloc();
  if (EVP_PKEY_public_check(check.get()) != 1) {
    refuse_key(label, "the public key is damaged: its point is no key of its curve");
  }
  // A point has two encodings, and a key must have one hint.
  if (EVP_PKEY_set_utf8_string_param(key_.get(), OSSL_PKEY_PARAM_EC_POINT_CONVERSION_FORMAT,
                                     OSSL_PKEY_EC_POINT_CONVERSION_FORMAT_UNCOMPRESSED) != 1) {
    throw Error(ErrorKind::Internal, label + ": libcrypto cannot encode the public key");
  }
  const Memory out(BIO_new(BIO_s_mem()), BIO_free);
  char* text = nullptr;
  if (out == nullptr || PEM_write_bio_PUBKEY(out.get(), key_.get()) != 1) throw std::bad_alloc();
  const long size = BIO_get_mem_data(out.get(), &text);
  pem_.assign(text, static_cast<std::size_t>(size));
  hint_ = to_hex(sha256(as_bytes(pem_)));
}

PublicKey PublicKey::from_pem(std::string_view pem, const std::string& label) {
  const NoErrorsLeft cleared;
  check_size(pem.size(), label);
  Passphrase none;
  SharedKey key =
      shared(PEM_read_bio_PUBKEY(reader_of(as_bytes(pem)).get(), nullptr, give_passphrase, &none));
  if (key == nullptr) {
    refuse_key(label, "this is " + kind_of_text(pem) +
                          "; expected is a public key as PEM ('-----BEGIN PUBLIC KEY-----')");
  }
  constexpr std::string_view kBegin = "-----BEGIN PUBLIC KEY-----";
  if (pem.find(kBegin, pem.find(kBegin) + 1) != pem.npos) {
    refuse_key(label, "there are several keys in one text; give each as one of its own");
  }
  return PublicKey(std::move(key), label);
}

bool PublicKey::verifies(std::initializer_list<ConstBytes> message, ConstBytes signature) const {
  const NoErrorsLeft cleared;
  const DigestContext context = digest_context();
  return EVP_DigestVerifyInit(context.get(), nullptr, curve_of(key_.get())->hash(), nullptr,
                              key_.get()) == 1 &&
         std::ranges::all_of(message,
                             [&](ConstBytes part) {
                               return EVP_DigestVerifyUpdate(context.get(), part.data(),
                                                             part.size()) == 1;
                             }) &&
         EVP_DigestVerifyFinal(context.get(), raw(signature), signature.size()) == 1;
}

PrivateKey::PrivateKey(SharedKey key, const std::string& label)
    : key_(std::move(key)), public_key_(key_, label) {}

PrivateKey PrivateKey::from_pem(const SecretBytes& pem, ConstBytes passphrase,
                                const std::string& label) {
  const NoErrorsLeft cleared;
  check_size(pem.bytes().size(), label);
  Passphrase given{passphrase};
  SharedKey key = shared(
      PEM_read_bio_PrivateKey(reader_of(pem.bytes()).get(), nullptr, give_passphrase, &given));
  if (key == nullptr && given.asked) {
    throw Error(ErrorKind::Crypto,
                label + (passphrase.empty()
                             ? ": the private key is encrypted, and no passphrase was given"
                             : ": the passphrase of the private key is wrong, or it is damaged"));
  }
  if (key == nullptr) {
    const std::string_view text = as_text(pem.bytes());
    const bool damaged = text.find("PRIVATE KEY-----") != text.npos;
    const std::string kind =
        text.find("-----BEGIN PUBLIC KEY-----") != text.npos ? "a public key" : kind_of_text(text);
    refuse_key(label, "this is " + (damaged ? std::string("a damaged private key") : kind) +
                          "; expected is a private key as PEM");
  }
  return PrivateKey(std::move(key), label);
}

std::vector<std::byte> PrivateKey::sign(ConstBytes message) const {
  const NoErrorsLeft cleared;
  const DigestContext context = digest_context();
  std::vector<std::byte> signature(static_cast<std::size_t>(EVP_PKEY_get_size(key_.get())));
  std::size_t size = signature.size();
  if (EVP_DigestSignInit(context.get(), nullptr, curve_of(key_.get())->hash(), nullptr,
                         key_.get()) != 1 ||
      EVP_DigestSign(context.get(), raw(Bytes(signature)), &size, raw(message), message.size()) !=
          1) {
    throw Error(ErrorKind::Internal, "libcrypto cannot sign with this key");
  }
  signature.resize(size);
  return signature;
}

}  // namespace tensorizer
