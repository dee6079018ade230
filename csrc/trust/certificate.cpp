#include "trust/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "codec/libcrypto_errors.h"
#include "codec/raw.h"

namespace tensorizer {

namespace {

// Of certificates between the one that signs and the trusted one.
constexpr int kLongestChain = 8;
// RSA of 2048 bits, curves of 224 bits, and no SHA-1.
constexpr int kSecurityLevel = 2;

// Each name in a certificate takes many times the memory of its bytes.
constexpr std::size_t kMostBytes = 64 << 10;

using Memory = std::unique_ptr<BIO, decltype(&BIO_free)>;

int no_passphrase(char*, int, int, void*) { return -1; }

std::shared_ptr<X509> shared(X509* certificate) {
  return std::shared_ptr<X509>(certificate, X509_free);
}

std::string text_of(const X509_NAME* name) {
  const Memory out(BIO_new(BIO_s_mem()), BIO_free);
  // Leaves UTF-8 as it is.
  constexpr unsigned long kFlags =
      XN_FLAG_RFC2253 & ~static_cast<unsigned long>(ASN1_STRFLGS_ESC_MSB);
  if (out == nullptr || X509_NAME_print_ex(out.get(), name, 0, kFlags) < 0) throw std::bad_alloc();
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

// Absent extensions allow everything.
bool may_sign_code(X509* certificate) {
  const std::uint32_t usage = X509_get_extended_key_usage(certificate);
  return usage == UINT32_MAX || (usage & (XKU_CODE_SIGN | XKU_ANYEKU)) != 0;
}

bool is_attribute(std::string_view name) {
  const auto is_part = [](char c) { return is_letter(c) || is_digit(c) || c == '.'; };
  return !name.empty() && std::ranges::all_of(name, is_part) &&
         OBJ_txt2nid(std::string(name).c_str()) != NID_undef;
}

}  // namespace

Identity::Identity(std::string text, const std::string& label) : text_(std::move(text)) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::InvalidArgument, label + ": " + what);
  };
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (text_.empty()) refuse("an identity of a signer is empty");
  if (std::ranges::any_of(text_, is_control)) {
    refuse("the identity " + quote(text_) + " of a signer has a control character");
  }
  const NoErrorsLeft cleared;
  const auto has = [&](char c) { return text_.find(c) != text_.npos; };
  if (has('=') && is_attribute(std::string_view(text_).substr(0, text_.find('=')))) {
    kind_ = Kind::Subject;
  } else {
    kind_ = has(':') ? Kind::Uri : has('@') ? Kind::Email : Kind::Dns;
  }
}

Certificate::Certificate(std::shared_ptr<x509_st> certificate) noexcept
    : certificate_(std::move(certificate)) {}

std::optional<Certificate> Certificate::from_der(ConstBytes der) {
  const NoErrorsLeft cleared;
  if (der.size() > kMostBytes) return std::nullopt;
  const unsigned char* begin = raw(der);
  const unsigned char* const end = begin + der.size();
  Certificate found(shared(d2i_X509(nullptr, &begin, static_cast<long>(der.size()))));
  if (found.certificate_ == nullptr || begin != end) return std::nullopt;
  return found;
}

std::vector<Certificate> Certificate::from_pem(std::string_view pem, const std::string& label) {
  const NoErrorsLeft cleared;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::InvalidArgument, label + ": " + what);
  };
  if (pem.size() > INT_MAX) refuse("this is too large for certificates as PEM");
  const Memory in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  if (in == nullptr) throw std::bad_alloc();
  std::vector<Certificate> found;
  while (X509* const next = PEM_read_bio_X509(in.get(), nullptr, no_passphrase, nullptr)) {
    found.emplace_back(Certificate(shared(next)));
  }
  const unsigned long error = ERR_peek_last_error();
  if (ERR_GET_LIB(error) != ERR_LIB_PEM || ERR_GET_REASON(error) != PEM_R_NO_START_LINE) {
    refuse("certificate " + std::to_string(found.size() + 1) + " is damaged");
  }
  if (found.empty()) {
    refuse("there is no certificate as PEM ('-----BEGIN CERTIFICATE-----')");
  }
  return found;
}

std::vector<std::byte> Certificate::der() const {
  const int size = i2d_X509(certificate_.get(), nullptr);
  if (size < 0) throw std::bad_alloc();
  std::vector<std::byte> der(static_cast<std::size_t>(size));
  unsigned char* out = raw(Bytes(der));
  i2d_X509(certificate_.get(), &out);
  return der;
}

std::string Certificate::subject() const {
  return text_of(X509_get_subject_name(certificate_.get()));
}

std::string Certificate::issuer() const {
  return text_of(X509_get_issuer_name(certificate_.get()));
}

std::string Certificate::describe() const {
  std::string name = subject();
  if (name.empty()) {
    const std::vector<std::string> others = identities();
    if (!others.empty()) name = others.front();
  }
  return quote(name) + " (issued by " + quote(issuer()) + ")";
}

std::vector<std::string> Certificate::names(Identity::Kind kind) const {
  if (kind == Identity::Kind::Subject) {
    std::string name = subject();
    return name.empty() ? std::vector<std::string>() : std::vector{std::move(name)};
  }
  const NoErrorsLeft cleared;
  const int wanted = kind == Identity::Kind::Email ? GEN_EMAIL
                     : kind == Identity::Kind::Uri ? GEN_URI
                                                   : GEN_DNS;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> all(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate_.get(), NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  std::vector<std::string> found;
  for (int i = 0; all != nullptr && i < sk_GENERAL_NAME_num(all.get()); ++i) {
    int type = 0;
    const void* const value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(all.get(), i), &type);
    if (type != wanted) continue;
    const auto* const text = static_cast<const ASN1_STRING*>(value);
    found.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                       static_cast<std::size_t>(ASN1_STRING_length(text)));
  }
  return found;
}

std::vector<std::string> Certificate::identities() const {
  std::vector<std::string> all;
  using Kind = Identity::Kind;
  for (const Kind kind : {Kind::Subject, Kind::Email, Kind::Uri, Kind::Dns}) {
    for (std::string& name : names(kind)) all.push_back(std::move(name));
  }
  return all;
}

bool Certificate::has_identity(const Identity& identity) const {
  const std::vector<std::string> all = names(identity.kind_);
  return std::ranges::find(all, identity.text_) != all.end();
}

PublicKey Certificate::key(const std::string& label) const {
  const NoErrorsLeft cleared;
  // A copy, because PublicKey changes its key, and other threads may use the certificate.
  EVP_PKEY* const certified = X509_get0_pubkey(certificate_.get());
  SharedKey key(certified == nullptr ? nullptr : EVP_PKEY_dup(certified), EVP_PKEY_free);
  if (key == nullptr) {
    throw Error(ErrorKind::InvalidArgument, label + ": the key in the certificate of " +
                                                describe() + " is damaged or of an unknown kind");
  }
  return PublicKey(std::move(key), label);
}

const char* Certificate::unusable() const {
  const NoErrorsLeft cleared;
  X509* const certificate = certificate_.get();
  if ((X509_get_extension_flags(certificate) & EXFLAG_INVALID) != 0) {
    return "an extension of it is malformed";
  }
  const std::uint32_t usage = X509_get_key_usage(certificate);
  if (usage != UINT32_MAX && (usage & KU_DIGITAL_SIGNATURE) == 0) {
    return "its key usage has no digitalSignature";
  }
  if (!may_sign_code(certificate)) return "its extended key usage has no codeSigning";
  return nullptr;
}

std::optional<std::string> chain_fault(std::span<const Certificate> chain,
                                       std::span<const Certificate> roots, std::time_t time) {
  const NoErrorsLeft cleared;
  const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                      X509_STORE_free);
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> context(
      X509_STORE_CTX_new(), X509_STORE_CTX_free);
  // Not owned: certificates are shared by those who call this.
  const auto free_list = [](STACK_OF(X509)* list) { sk_X509_free(list); };
  const std::unique_ptr<STACK_OF(X509), decltype(free_list)> others(sk_X509_new_null(), free_list);
  if (store == nullptr || context == nullptr || others == nullptr) throw std::bad_alloc();
  for (const Certificate& root : roots) {
    if (X509_STORE_add_cert(store.get(), root.certificate_.get()) != 1) throw std::bad_alloc();
  }
  for (const Certificate& other : chain.subspan(1)) {
    if (sk_X509_push(others.get(), other.certificate_.get()) == 0) throw std::bad_alloc();
  }
  if (X509_STORE_CTX_init(context.get(), store.get(), chain.front().certificate_.get(),
                          others.get()) != 1) {
    throw std::bad_alloc();
  }
  X509_VERIFY_PARAM* const rules = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN);
  X509_VERIFY_PARAM_set_auth_level(rules, kSecurityLevel);
  X509_VERIFY_PARAM_set_depth(rules, kLongestChain);
  X509_VERIFY_PARAM_set_time(rules, time);
  if (X509_verify_cert(context.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(context.get());
    std::string fault =
        error == X509_V_OK ? "it could not be checked" : X509_verify_cert_error_string(error);
    X509* const at = X509_STORE_CTX_get_current_cert(context.get());
    if (at != nullptr && at != chain.front().certificate_.get()) {
      fault += " (the certificate of " + quote(text_of(X509_get_subject_name(at))) + ")";
    }
    return fault;
  }
  // An intermediate that may only issue certificates for something else cannot issue these.
  const STACK_OF(X509)* const found = X509_STORE_CTX_get0_chain(context.get());
  for (int i = 1; i + 1 < sk_X509_num(found); ++i) {
    X509* const issuer = sk_X509_value(found, i);
    if (!may_sign_code(issuer)) {
      return "the extended key usage of " + quote(text_of(X509_get_subject_name(issuer))) +
             " has no codeSigning";
    }
  }
  return std::nullopt;
}

}  // namespace tensorizer
