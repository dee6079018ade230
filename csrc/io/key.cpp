#include "io/key.h"

#include <sodium.h>

#include "base/error.h"
#include "codec/secretbox.h"
#include "io/named_secret.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPassphrase = "passphrase-";

constexpr std::size_t kLongestPassphrase = 64 << 10;

// Never destroyed: a load may still run when the process ends.
NameTable<std::function<KeySource()>>& named_keys() {
  static auto* const named = new NameTable<std::function<KeySource()>>;
  return *named;
}

// A parsed name of a key, or of a passphrase that a key is derived from.
struct KeyReference {
  SecretReference secret;
  bool passphrase;
};

std::optional<KeyReference> parse_key_reference(std::string_view value) noexcept {
  const bool passphrase = value.starts_with(kPassphrase);
  const auto secret = parse_secret_reference(value.substr(passphrase ? kPassphrase.size() : 0));
  if (!secret || (passphrase && secret->place == SecretPlace::Named)) return std::nullopt;
  return KeyReference{*secret, passphrase};
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::InvalidArgument, what); }

KeySource key_from_environment(const std::string& name) {
  const std::string_view text = read_secret_variable(name, "a key");
  SecretBytes key(kKeySize);
  auto* const out = reinterpret_cast<unsigned char*>(key.bytes().data());
  const auto decoded = [&](auto&& decode) {
    std::size_t size = 0;
    const char* end = nullptr;
    return decode(&size, &end) == 0 && size == kKeySize && end == text.data() + text.size();
  };
  const bool hex = decoded([&](std::size_t* size, const char** end) {
    return sodium_hex2bin(out, kKeySize, text.data(), text.size(), nullptr, size, end);
  });
  for (const int variant :
       {sodium_base64_VARIANT_ORIGINAL, sodium_base64_VARIANT_ORIGINAL_NO_PADDING,
        sodium_base64_VARIANT_URLSAFE, sodium_base64_VARIANT_URLSAFE_NO_PADDING}) {
    if (hex || decoded([&](std::size_t* size, const char** end) {
          return sodium_base642bin(out, kKeySize, text.data(), text.size(), nullptr, size, end,
                                   variant);
        })) {
      return {std::make_shared<SecretBytes>(std::move(key)), false};
    }
  }
  refuse("environment variable " + quote(name) +
         " does not hold a key: expected 64 hexadecimal digits, or base64 of 32 bytes");
}

KeySource key_from_file(const std::string& path) {
  SecretBytes key = read_secret_file(path, kKeySize, "a key");
  if (key.bytes().size() != kKeySize) {
    refuse("the key file " + quote(path) + " must have exactly 32 bytes");
  }
  return {std::make_shared<SecretBytes>(std::move(key)), false};
}

KeySource passphrase_from_file(const std::string& path) {
  SecretBytes content = read_secret_file(path, kLongestPassphrase, "a key");
  std::size_t size = content.bytes().size();
  if (size > kLongestPassphrase) {
    refuse("the passphrase file " + quote(path) + " has more than 65536 bytes");
  }
  const auto is_break = [&](std::byte byte) {
    return byte == std::byte{'\n'} || byte == std::byte{'\r'};
  };
  while (size > 0 && is_break(content.bytes()[size - 1])) --size;
  if (size == 0) refuse("the passphrase file " + quote(path) + " holds no passphrase");
  content.shorten(size);
  return {std::make_shared<SecretBytes>(std::move(content)), true};
}

KeySource key_from_names(const std::string& name) {
  const std::optional<std::function<KeySource()>> provide = named_keys().find(name);
  if (!provide) refuse("there is no key named " + quote(name) + ": add it with keys.add()");
  return (*provide)();
}

}  // namespace

KeySource make_key(ConstBytes key) {
  if (key.size() != kKeySize) {
    refuse("a key must have 32 bytes, and this one has " + std::to_string(key.size()));
  }
  return {std::make_shared<SecretBytes>(key), false};
}

KeySource make_passphrase(ConstBytes passphrase) {
  if (passphrase.empty()) refuse("a passphrase may not be empty");
  return {std::make_shared<SecretBytes>(passphrase), true};
}

bool names_key(std::string_view value) noexcept {
  const std::optional<KeyReference> reference = parse_key_reference(value);
  return reference && !reference->secret.name.empty();
}

KeySource resolve_key(const std::string& value) {
  const std::optional<KeyReference> reference = parse_key_reference(value);
  if (!reference) {
    refuse(std::string("a key is given by its name, not by its value: it must be ") + kKeyNames);
  }
  const std::string name(reference->secret.name);
  switch (reference->secret.place) {
    case SecretPlace::Variable:
      return reference->passphrase ? make_passphrase(as_bytes(read_secret_variable(name, "a key")))
                                   : key_from_environment(name);
    case SecretPlace::File:
      return reference->passphrase ? passphrase_from_file(name) : key_from_file(name);
    case SecretPlace::Named:
      break;
  }
  return key_from_names(name);
}

void set_key(const std::string& name, std::function<KeySource()> provide) {
  if (provide) {
    named_keys().set(name, std::move(provide));
  } else {
    named_keys().forget(name);
  }
}

void set_key(const std::string& name, KeySource key) {
  set_key(name, [key = std::move(key)] { return key; });
}

}  // namespace tensorizer
