#include "io/key.h"

#include <sodium.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "codec/secretbox.h"
#include "io/secret_file.h"

namespace tensorizer {

namespace {

constexpr std::string_view kVariable = "env:";
constexpr std::string_view kFile = "file:";
constexpr std::string_view kPassphraseVariable = "passphrase-env:";
constexpr std::string_view kPassphraseFile = "passphrase-file:";
constexpr std::string_view kNamed = "named:";

constexpr std::size_t kLongestPassphrase = 64 << 10;

struct NamedKeys {
  std::mutex mutex;
  std::unordered_map<std::string, std::function<KeySource()>> keys;
};

// Never destroyed: a load may still run when the process ends.
NamedKeys& named_keys() {
  static auto* const named = new NamedKeys;
  return *named;
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::InvalidArgument, what); }

std::string_view variable(const std::string& name) {
  const char* found = std::getenv(name.c_str());
  if (found != nullptr) return found;
  refuse("a key shall come from the environment, which has no " + quote(name));
}

KeySource key_from_environment(const std::string& name) {
  const std::string_view text = variable(name);
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
  refuse("the variable " + quote(name) +
         " of the environment holds no key: that would be 64 hexadecimal digits, or base64 of 32 "
         "bytes");
}

KeySource key_from_file(const std::string& path) {
  SecretBytes key = read_secret_file(path, kKeySize, "a key");
  if (key.bytes().size() != kKeySize) {
    refuse("the key file " + quote(path) + " has not exactly 32 bytes");
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
  if (size == 0) refuse("the passphrase file " + quote(path) + " holds none");
  content.shorten(size);
  return {std::make_shared<SecretBytes>(std::move(content)), true};
}

KeySource key_from_names(const std::string& name) {
  std::function<KeySource()> provide;
  {
    NamedKeys& named = named_keys();
    const std::lock_guard lock(named.mutex);
    const auto found = named.keys.find(name);
    if (found != named.keys.end()) provide = found->second;
  }
  if (!provide) refuse("no key has the name " + quote(name) + ": keys.add() gives it one");
  return provide();
}

}  // namespace

KeySource make_key(ConstBytes key) {
  if (key.size() != kKeySize) {
    refuse("a key has 32 bytes, and this one has " + std::to_string(key.size()));
  }
  return {std::make_shared<SecretBytes>(key), false};
}

KeySource make_passphrase(ConstBytes passphrase) {
  if (passphrase.empty()) refuse("a passphrase may not be empty");
  return {std::make_shared<SecretBytes>(passphrase), true};
}

bool names_key(std::string_view value) noexcept {
  for (const std::string_view kind :
       {kVariable, kFile, kPassphraseVariable, kPassphraseFile, kNamed}) {
    if (value.starts_with(kind)) return value.size() > kind.size();
  }
  return false;
}

KeySource resolve_key(const std::string& value) {
  const auto behind = [&](std::string_view kind) { return value.substr(kind.size()); };
  if (value.starts_with(kVariable)) return key_from_environment(behind(kVariable));
  if (value.starts_with(kFile)) return key_from_file(behind(kFile));
  if (value.starts_with(kPassphraseVariable)) {
    return make_passphrase(as_bytes(variable(behind(kPassphraseVariable))));
  }
  if (value.starts_with(kPassphraseFile)) return passphrase_from_file(behind(kPassphraseFile));
  if (value.starts_with(kNamed)) return key_from_names(behind(kNamed));
  refuse(std::string("a key is named, and never given: it must be ") + kKeyNames);
}

void set_key(const std::string& name, std::function<KeySource()> provide) {
  NamedKeys& named = named_keys();
  const std::lock_guard lock(named.mutex);
  if (provide) {
    named.keys[name] = std::move(provide);
  } else {
    named.keys.erase(name);
  }
}

void set_key(const std::string& name, KeySource key) {
  set_key(name, [key = std::move(key)] { return key; });
}

}  // namespace tensorizer
