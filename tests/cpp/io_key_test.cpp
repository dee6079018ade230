// Keys by name: every way of naming one, and errors that do not show the key.
#include "io/key.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "codec/hmac.h"
#include "codec/secretbox.h"
#include "io_support.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr const char* kVariable = "TENSORIZER_OPS_TEST_KEY";

std::string base64(ConstBytes bytes, int variant) {
  std::string text(sodium_base64_encoded_len(bytes.size(), variant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), variant);
  text.pop_back();  // the NUL at its end
  return text;
}

class KeyTest : public IoTest {
 protected:
  ~KeyTest() override { unsetenv(kVariable); }

  std::string in_environment(const std::string& text, const std::string& kind = "env:") {
    setenv(kVariable, text.c_str(), 1);
    return kind + kVariable;
  }
  std::string in_file(std::string_view text, const std::string& kind) {
    write_file(folder_ / "secret", text);
    return kind + (folder_ / "secret").string();
  }

  void expect_key(const std::string& name, ConstBytes content) { expect(name, content, false); }
  void expect_passphrase(const std::string& name, std::string_view content) {
    expect(name, as_bytes(content), true);
  }

  // Expects a refusal whose message holds no five consecutive characters of the secret.
  Error refusal(const std::string& name, std::string_view secret,
                ErrorKind kind = ErrorKind::InvalidArgument) {
    const Error error = error_of([&] { resolve_key(name); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (std::size_t at = 0; at + 5 <= secret.size(); ++at) {
      EXPECT_FALSE(contains(error.what(), secret.substr(at, 5))) << error.what();
    }
    return error;
  }

  const std::vector<std::byte> key_ = pattern(kKeySize, 31);

 private:
  void expect(const std::string& name, ConstBytes content, bool passphrase) {
    EXPECT_TRUE(names_key(name));
    const KeySource key = resolve_key(name);
    ASSERT_TRUE(key.secret);
    EXPECT_EQ(key.passphrase, passphrase);
    EXPECT_TRUE(same(key.secret->bytes(), content)) << name;
  }
};

TEST_F(KeyTest, StandsInTheEnvironmentAsHexadecimalDigits) {
  std::string text = to_hex(key_);
  expect_key(in_environment(text), key_);
  for (char& c : text) c = static_cast<char>(toupper(c));
  expect_key(in_environment(text), key_);
}

TEST_F(KeyTest, StandsInTheEnvironmentAsBase64) {
  // A key whose encodings differ in all variants.
  std::vector<std::byte> key(kKeySize, std::byte{0xfb});
  for (const int variant :
       {sodium_base64_VARIANT_ORIGINAL, sodium_base64_VARIANT_ORIGINAL_NO_PADDING,
        sodium_base64_VARIANT_URLSAFE, sodium_base64_VARIANT_URLSAFE_NO_PADDING}) {
    expect_key(in_environment(base64(key, variant)), key);
    expect_key(in_environment(base64(key_, variant)), key_);
  }
}

TEST_F(KeyTest, OfTheEnvironmentHas32Bytes) {
  const std::string hex = to_hex(key_);
  const std::string encoded = base64(key_, sodium_base64_VARIANT_ORIGINAL);
  std::vector<std::string> wrong{"",
                                 "k",
                                 hex.substr(1),
                                 hex.substr(2),
                                 hex + "0",
                                 hex + "00",
                                 hex + "\n",
                                 " " + hex,
                                 hex.substr(0, 63) + "g",
                                 "0x" + hex,
                                 encoded + "=",
                                 encoded + "\n",
                                 " " + encoded,
                                 encoded.substr(0, 20) + "!" + encoded.substr(21)};
  for (const std::size_t size : {31, 33}) {
    wrong.push_back(base64(pattern(size, 32), sodium_base64_VARIANT_ORIGINAL));
    wrong.push_back(base64(pattern(size, 32), sodium_base64_VARIANT_URLSAFE_NO_PADDING));
  }
  for (const std::string& text : wrong) {
    const Error error = refusal(in_environment(text), text);
    EXPECT_TRUE(contains(error.what(), std::string("environment variable '") + kVariable + "'"))
        << text;
  }
}

TEST_F(KeyTest, IsAFileOf32Bytes) {
  expect_key(in_file(as_text(key_), "file:"), key_);
  // Also a key that ends with a line break.
  std::vector<std::byte> with_break = key_;
  with_break.back() = std::byte{'\n'};
  expect_key(in_file(as_text(with_break), "file:"), with_break);
  for (const std::size_t size : {0, 1, 31, 33, 64, 100'000}) {
    const std::string content(size, 'k');
    const Error error = refusal(in_file(content, "file:"), content);
    EXPECT_TRUE(contains(error.what(), "secret' must have exactly 32 bytes")) << error.what();
  }
}

TEST_F(KeyTest, IsLookedForInTheHomeFolder) {
  const char* const before = getenv("HOME");
  const std::string home = before != nullptr ? before : "";
  setenv("HOME", folder_.path().c_str(), 1);
  in_file(as_text(key_), "file:");
  expect_key("file:~/secret", key_);
  setenv("HOME", home.c_str(), 1);
}

TEST_F(KeyTest, FilesThatCannotBeReadAreNamed) {
  for (const std::string kind : {"file:", "passphrase-file:"}) {
    const std::string path = folder_ / "nothing";
    const Error missing = refusal(kind + path, {}, ErrorKind::NotFound);
    EXPECT_TRUE(contains(missing.what(), "cannot read a key from")) << missing.what();
    EXPECT_TRUE(contains(missing.what(), path)) << missing.what();
    EXPECT_EQ(missing.path(), path);
    const Error folder = error_of([&] { resolve_key(kind + folder_.path().string()); });
    EXPECT_TRUE(contains(folder.what(), folder_.path().string())) << folder.what();
  }
  // A file without an end is read only up to a limit.
  refusal("file:/dev/zero", {});
  refusal("passphrase-file:/dev/zero", {});
}

TEST_F(KeyTest, IsAwaitedFromAPipeThroughSignals) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  struct sigaction before;
  struct sigaction nothing{};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, &before);
  const int pipe = ::open(path.c_str(), O_RDWR);
  std::atomic<bool> over{false};
  {
    const OnceItWaits writer([&, reader = pthread_self()] {
      // Writes one byte at a time: before each, the reader waits, or is about to.
      for (const std::byte& byte : key_) {
        pthread_kill(reader, SIGUSR1);
        EXPECT_EQ(::write(pipe, &byte, 1), 1);
        for (int left = 1; left > 0 && !over; std::this_thread::yield())
          ioctl(pipe, FIONREAD, &left);
      }
      ::close(pipe);
    });
    expect_key("file:" + path, key_);
    over = true;
  }
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(KeyTest, IsNotAwaitedOnceTheHostIsInterrupted) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int pipe = ::open(path.c_str(), O_RDWR);
  set_interrupt_hook([] { throw Error(ErrorKind::Cancelled, "interrupted"); });
  refusal("file:" + path, {}, ErrorKind::Cancelled);
  set_interrupt_hook(nullptr);
  ::close(pipe);
}

TEST_F(KeyTest, PassphraseOfAFileEndsBeforeItsLineBreaks) {
  expect_passphrase(in_file("open sesame", "passphrase-file:"), "open sesame");
  expect_passphrase(in_file("open sesame\n", "passphrase-file:"), "open sesame");
  expect_passphrase(in_file("open sesame\r\n\n\r", "passphrase-file:"), "open sesame");
  expect_passphrase(in_file(" two\nlines \n", "passphrase-file:"), " two\nlines ");
  expect_passphrase(in_file(std::string_view("\0\xff\n", 3), "passphrase-file:"),
                    std::string_view("\0\xff", 2));
}

TEST_F(KeyTest, PassphraseOfAFileIsThereAndNotTooLong) {
  for (const std::string_view content : {"", "\n", "\r\n\r\n"}) {
    const Error error = refusal(in_file(content, "passphrase-file:"), {});
    EXPECT_TRUE(contains(error.what(), "secret' holds no passphrase")) << error.what();
  }
  const std::string longest(65536, 'p');
  expect_passphrase(in_file(longest, "passphrase-file:"), longest);
  for (const std::string& content : {longest + "p", longest + "\n"}) {
    const Error error = refusal(in_file(content, "passphrase-file:"), longest);
    EXPECT_TRUE(contains(error.what(), "has more than 65536 bytes")) << error.what();
  }
}

TEST_F(KeyTest, PassphraseOfTheEnvironmentIsTakenAsItIs) {
  for (const std::string text : {"x", " open sesame\n", "b\xc3\xa4r", "env:OTHER"}) {
    expect_passphrase(in_environment(text, "passphrase-env:"), text);
  }
  EXPECT_TRUE(contains(refusal(in_environment("", "passphrase-env:"), {}).what(), "empty"));
}

TEST_F(KeyTest, VariablesThatAreNotThereAreNamed) {
  for (const std::string kind : {"env:", "passphrase-env:"}) {
    unsetenv(kVariable);
    EXPECT_TRUE(contains(refusal(kind + kVariable, {}).what(), kVariable));
    refusal(kind, {});
    EXPECT_TRUE(contains(refusal(kind + "a\nb", {}).what(), "'a\\x0ab'"));
  }
}

TEST_F(KeyTest, IsKeptUnderAName) {
  EXPECT_TRUE(contains(refusal("named:mine", {}).what(), "no key named 'mine'"));
  set_key("mine", make_key(key_));
  expect_key("named:mine", key_);
  set_key("mine", make_passphrase(as_bytes("open sesame")));
  expect_passphrase("named:mine", "open sesame");
  int asked = 0;
  set_key("mine", [&] {
    ++asked;
    set_key("other", make_key(key_));  // a provider may set other keys
    return make_key(key_);
  });
  EXPECT_EQ(asked, 0);
  expect_key("named:mine", key_);
  expect_key("named:mine", key_);
  EXPECT_EQ(asked, 2);
  set_key("mine", [&]() -> KeySource { throw Error(ErrorKind::Unavailable, "asleep"); });
  EXPECT_EQ(kind_of([] { resolve_key("named:mine"); }), ErrorKind::Unavailable);
  set_key("mine", std::function<KeySource()>());
  refusal("named:mine", {});
  set_key("mine", std::function<KeySource()>());
  set_key("other", std::function<KeySource()>());
}

TEST_F(KeyTest, NamesMayChangeWhileOthersAreUsed) {
  set_key("steady", make_key(key_));
  std::thread changes([&] {
    for (int i = 0; i < 500; ++i) {
      set_key("moving " + std::to_string(i % 50), make_key(key_));
      set_key("moving " + std::to_string((i + 25) % 50), std::function<KeySource()>());
    }
  });
  for (int i = 0; i < 500; ++i) expect_key("named:steady", key_);
  changes.join();
  set_key("steady", std::function<KeySource()>());
}

TEST_F(KeyTest, IsNamedAndNeverGiven) {
  for (const std::string& value :
       {to_hex(key_), std::string("open sesame"), "ENV:" + to_hex(key_), "key:" + to_hex(key_),
        "passphrase:" + to_hex(key_), " env:" + to_hex(key_), std::string()}) {
    EXPECT_FALSE(names_key(value)) << value;
    const Error error = refusal(value, contains(value, "sesame") ? value : to_hex(key_));
    EXPECT_TRUE(contains(error.what(), kKeyNames)) << error.what();
  }
  for (const std::string kind :
       {"env:", "file:", "passphrase-env:", "passphrase-file:", "named:"}) {
    EXPECT_FALSE(names_key(kind));
    EXPECT_TRUE(names_key(kind + "x"));
  }
}

TEST_F(KeyTest, IsMadeOf32BytesAndAPassphraseOfAny) {
  EXPECT_FALSE(make_key(key_).passphrase);
  EXPECT_TRUE(same(make_key(key_).secret->bytes(), key_));
  for (const std::size_t size : {0, 31, 33}) {
    const Error error = error_of([&] { make_key(pattern(size)); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(contains(error.what(), "this one has " + std::to_string(size)));
  }
  EXPECT_TRUE(make_passphrase(as_bytes("x")).passphrase);
  EXPECT_EQ(kind_of([] { make_passphrase({}); }), ErrorKind::InvalidArgument);
}

}  // namespace
}  // namespace tensorizer
