// Keys and signatures of ECDSA on the curves P-256, P-384 and P-521, computed by libcrypto.
//
// The hash is that of the curve: SHA-256, SHA-384 or SHA-512. Signatures are in DER, as X9.62 and
// DSSE have them. Keys are shared when copied, and const: any thread may use them.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/secret_bytes.h"

struct evp_pkey_st;

namespace tensorizer {

using SharedKey = std::shared_ptr<evp_pkey_st>;

class PublicKey {
 public:
  // Reads "-----BEGIN PUBLIC KEY-----". `label` begins the messages. Throws Error(InvalidArgument)
  // for everything else, private keys included, and for other curves and kinds of keys.
  static PublicKey from_pem(std::string_view pem, const std::string& label);

  // Takes a key of libcrypto that nobody else uses. Throws Error(InvalidArgument), as above.
  PublicKey(SharedKey key, const std::string& label);

  // Returns whether this key made the signature of the message that these parts make.
  bool verifies(std::initializer_list<ConstBytes> message, ConstBytes signature) const;

  const std::string& pem() const noexcept { return pem_; }
  // Returns the SHA-256 of pem() in hexadecimal digits, by which others name the key.
  const std::string& hint() const noexcept { return hint_; }

  bool operator==(const PublicKey& other) const noexcept { return pem_ == other.pem_; }

 private:
  SharedKey key_;
  std::string pem_;
  std::string hint_;
};

class PrivateKey {
 public:
  // Reads a private key, which may be encrypted with `passphrase`; a key that is not encrypted
  // needs none. Never asks for one. Throws Error(InvalidArgument) for other curves, kinds of keys
  // and texts, and Error(Crypto) if the passphrase is missing or wrong.
  static PrivateKey from_pem(const SecretBytes& pem, ConstBytes passphrase,
                             const std::string& label);

  std::vector<std::byte> sign(ConstBytes message) const;

  const PublicKey& public_key() const noexcept { return public_key_; }

 private:
  PrivateKey(SharedKey key, const std::string& label);

  SharedKey key_;
  PublicKey public_key_;
};

}  // namespace tensorizer
