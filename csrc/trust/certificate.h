// X.509 certificates, and chains of them up to one that is trusted.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/ecdsa.h"

struct x509_st;

namespace tensorizer {

// By what a certificate is known: a subject alternative name, or its whole subject.
//
// The text tells which. "CN=signer,O=Example", which begins with the name of an attribute, is a
// subject as RFC 4514 writes it. What has a ':' is a URI, what has an '@' an email address, and
// anything else a DNS name. So a certificate cannot show one kind for another.
class Identity {
 public:
  // Throws Error(InvalidArgument), whose message begins with `label`, if the text is empty or has a
  // control character.
  Identity(std::string text, const std::string& label);

  const std::string& text() const noexcept { return text_; }

 private:
  friend class Certificate;
  enum class Kind { Subject, Email, Uri, Dns };

  std::string text_;
  Kind kind_;
};

// Shared when copied, and const.
class Certificate {
 public:
  // Returns null unless `der` is one certificate, of at most 64 KiB, and nothing else.
  static std::optional<Certificate> from_der(ConstBytes der);
  // Reads all certificates of a text. Throws Error(InvalidArgument) if there is none, or if one is
  // damaged. `label` begins the messages.
  static std::vector<Certificate> from_pem(std::string_view pem, const std::string& label);

  std::vector<std::byte> der() const;
  // Return names as RFC 4514 writes them.
  std::string subject() const;
  std::string issuer() const;
  // Returns subject and issuer for messages: "'CN=signer' (issued by 'CN=root')".
  std::string describe() const;
  // Returns all texts by which has_identity() finds this certificate.
  std::vector<std::string> identities() const;
  bool has_identity(const Identity& identity) const;

  // Returns the key that it certifies. Throws Error(InvalidArgument), whose message begins with
  // `label`, if it is no key that can sign bundles.
  PublicKey key(const std::string& label) const;

  // Returns why this certificate must not sign; null if it may.
  const char* unusable() const;

 private:
  friend std::optional<std::string> chain_fault(std::span<const Certificate>,
                                                std::span<const Certificate>, std::time_t);

  explicit Certificate(std::shared_ptr<x509_st> certificate) noexcept;

  std::vector<std::string> names(Identity::Kind kind) const;

  std::shared_ptr<x509_st> certificate_;
};

// Returns why the first certificate of `chain`, by means of the others, was not issued by any of
// `roots` at this time; null if it was. One of `roots` need not be self-signed.
std::optional<std::string> chain_fault(std::span<const Certificate> chain,
                                       std::span<const Certificate> roots, std::time_t time);

}  // namespace tensorizer
