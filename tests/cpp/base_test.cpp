// The base layer: errors, text, cursors and cancelling.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <set>
#include <thread>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/control_groups.h"
#include "base/error.h"
#include "base/hooks.h"
#include "base/redaction.h"
#include "base/utf8.h"
#include "support.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;
using namespace std::string_view_literals;

TEST(Quote, LeavesPrintableTextAsItIs) {
  EXPECT_EQ(quote(""), "''");
  EXPECT_EQ(quote("layers.0/weight \"x\""), "'layers.0/weight \"x\"'");
  EXPECT_EQ(quote("é 漢 😀"), "'é 漢 😀'");
}

TEST(Quote, RepeatsNoSecret) {
  for (const char* const secret :
       {"first-secret-of-two", "secret-of-two-more", "first-se", "twice-the-twice", "short"}) {
    redact_everywhere(secret, SecretKind::Given);
  }
  EXPECT_EQ(quote("a First-Secret-Of-Two, first-second"), "'a ..., ...cond'");
  EXPECT_EQ(quote("first-secret-of-two-more"), "'...'") << "two that overlap";
  EXPECT_EQ(quote("twice-the-twice-the-twice"), "'...'") << "with itself";
  EXPECT_EQ(quote("short first-s"), "'short first-s'");
  EXPECT_EQ(quote("x" + std::string(300, 'y') + "first-secret-of-two", 310),
            "'x" + std::string(300, 'y') + "...'");
  const std::string longer(2000, 'z');
  redact_everywhere(longer, SecretKind::Given);
  std::string many;
  for (int i = 0; i < 100; ++i) many += longer + ' ';
  EXPECT_EQ(quote(many + "first-secret-of-tw"), "'...'") << "what is shown ends before the others";
}

TEST(Quote, KnowsASecretThatBeginsAsThousandsOfOthers) {
  redact_everywhere("qqqqqqqqq-given", SecretKind::Given);
  for (std::size_t size = 8; size < 4000; ++size) {
    redact_everywhere(std::string(size, 'q'), SecretKind::Passing);
  }
  EXPECT_EQ(quote("a secret: qqqqqqqqq-given, b"), "'a secret: ..., b'");
  // The tokens of one issuer begin alike.
  for (const SecretKind kind : {SecretKind::Given, SecretKind::Passing}) {
    std::string token;
    for (std::size_t left = 40; left > 0; --left) {
      token = (kind == SecretKind::Given ? "eyJhbGci-" : "eyJ0eXAi-") + std::string(left, 'x');
      redact_everywhere(token, kind);
    }
    EXPECT_EQ(quote(token + " b"), "'... b'") << "the latest and shortest of 40";
  }
}

TEST(Quote, RepeatsNoSecretThatOverlapsOneOfTheRequest) {
  redact_everywhere("secret-of-the-user", SecretKind::Given);
  struct Short final : Redactor {
    void redact(Redaction& text) const override {
      text.add("xyz-se");
      text.add("of");
    }
  } const known;
  const RedactedQuotes quotes(known);
  EXPECT_EQ(quote("a xyz-secret-of-the-user of office"), "'a ... ... office'");
}

TEST(Quote, KnowsTheLatestSecrets) {
  redact_everywhere("given-by-the-user", SecretKind::Given);
  redact_everywhere("the-very-first-of-them", SecretKind::Passing);
  const auto redact_many = [](int begin) {
    for (int i = begin; i < begin + 4096; ++i) {
      redact_everywhere("signature-" + std::to_string(i), SecretKind::Passing);
    }
  };
  redact_many(10'000);
  EXPECT_EQ(Redaction("the-very-first-of-them signature-10000 signature-14095").text(),
            "... ... ...");
  redact_everywhere("the-very-first-of-them", SecretKind::Passing);
  redact_many(20'000);
  redact_many(30'000);
  EXPECT_EQ(Redaction("given-by-the-user signature-10000 signature-34095").text(),
            "... signature-10000 ...");
}

TEST(Quote, EscapesWhatIsNotPrintable) {
  EXPECT_EQ(quote("a \\"), "'a \\\\'");
  EXPECT_EQ(quote("it's a \\"), "\"it's a \\\\\"") << "with other quotes";
  EXPECT_EQ(quote("it's \"a\""), "'it\\'s \"a\"'");
  EXPECT_EQ(quote("a\0b\n\x1b[31m\x7f"sv), "'a\\x00b\\x0a\\x1b[31m\\x7f'");
  EXPECT_EQ(quote("\xff\xc3(\xe2\x82"), "'\\xff\\xc3(\\xe2\\x82'");
}

TEST(Quote, EscapesTheControlCharactersOfTwoBytes) {
  // U+009B starts a terminal's control sequence like ESC [ does.
  EXPECT_EQ(quote("\xc2\x9b"
                  "31m"),
            "'\\xc2\\x9b31m'");
  EXPECT_EQ(quote("\xc2\x80"), "'\\xc2\\x80'");
  EXPECT_EQ(quote("\xc2\xa0"), "'\xc2\xa0'");
}

TEST(Quote, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(quote("abcd", 4), "'abcd'");
  EXPECT_EQ(quote("abcde", 4), "'abcd...'");
  EXPECT_EQ(quote("aé😀é", 3), "'aé...'");
  EXPECT_EQ(quote("aé😀é", 4), "'aé😀...'");
  EXPECT_LT(quote(std::string(1 << 20, '\n')).size(), 1000U);
}

TEST(Quote, AlwaysGivesOneLineOfUtf8) {
  Dice dice(1);
  for (int round = 0; round < 3000; ++round) {
    std::string text(dice.below(40), '\0');
    for (char& c : text) c = static_cast<char>(dice.below(256));
    const std::string quoted = quote(text, 20);
    EXPECT_TRUE(is_utf8(quoted));
    for (const char c : quoted) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  }
}

TEST(Error, TellsItsKindFirst) {
  const Error error(ErrorKind::NotFound, "no file: x", ENOENT, "/x");
  EXPECT_EQ(error.what(), "tensorizer.NotFound: no file: x"s);
  EXPECT_EQ(error.message(), "no file: x");
  EXPECT_EQ(error.kind(), ErrorKind::NotFound);
  EXPECT_EQ(error.system_errno(), ENOENT);
  EXPECT_EQ(error.path(), "/x");
}

TEST(Error, HasANameForEveryKind) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(ErrorKind::Internal); ++i) {
    names.insert(kind_name(static_cast<ErrorKind>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorKind::Internal) + 1);
}

TEST(Error, SortsWhatTheSystemRefuses) {
  const std::vector<std::pair<int, ErrorKind>> expected{
      {ENOENT, ErrorKind::NotFound},         {ENOTDIR, ErrorKind::NotFound},
      {EACCES, ErrorKind::PermissionDenied}, {EPERM, ErrorKind::PermissionDenied},
      {EROFS, ErrorKind::PermissionDenied},  {ENOSPC, ErrorKind::OutOfSpace},
      {EDQUOT, ErrorKind::OutOfSpace},       {EIO, ErrorKind::SystemError}};
  for (const auto& [number, kind] : expected) {
    const Error error = system_error(number, "cannot open", "/a\nb");
    EXPECT_EQ(error.kind(), kind) << number;
    EXPECT_EQ(error.system_errno(), number);
    EXPECT_EQ(error.path(), "/a\nb");
    EXPECT_TRUE(error.message().starts_with("cannot open '/a\\x0ab': ")) << error.what();
  }
}

TEST(RaiseHook, DecidesWhatTheHostSees) {
  const Error error(ErrorKind::Crypto, "key");
  EXPECT_EQ(kind_of([&] { raise(error); }), ErrorKind::Crypto);
  set_raise_hook([](const Error& seen) { throw seen.kind(); });
  EXPECT_THROW(raise(error), ErrorKind);
  set_raise_hook([](const Error&) {});
  EXPECT_EQ(kind_of([&] { raise(error); }), ErrorKind::Crypto);
  set_raise_hook(nullptr);
}

TEST(AloneHook, RunsTheWork) {
  static int hooked = 0;
  int ran = 0;
  run_alone([&] { ++ran; });
  set_alone_hook([](const std::function<void()>& work) {
    ++hooked;
    work();
  });
  run_alone([&] { ++ran; });
  set_alone_hook(nullptr);
  run_alone([&] { ++ran; });
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(hooked, 1);
}

TEST(Utf8, TakesEveryCodePointAndNoSurrogate) {
  for (char32_t code = 0; code <= 0x10ffff; ++code) {
    std::string text;
    append_utf8(text, code);
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    ASSERT_EQ(utf8_sequence(text + "x"), surrogate ? 0 : text.size())
        << static_cast<std::uint32_t>(code);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8_sequence(text.substr(0, cut)), 0U);
    }
  }
}

// Counts the accepted sequences: there are no others than those that the test above made.
TEST(Utf8, TakesAsManySequencesAsThereAreCodePoints) {
  const auto count = [](std::size_t length, auto&& each) {
    std::size_t found = 0;
    each([&](const std::string& text) { found += utf8_sequence(text) == length ? 1U : 0U; });
    return found;
  };
  const auto byte = [](int value) { return static_cast<char>(value); };
  EXPECT_EQ(count(1,
                  [&](auto&& take) {
                    for (int a = 0; a < 256; ++a) take({byte(a)});
                  }),
            0x80U);
  EXPECT_EQ(count(2,
                  [&](auto&& take) {
                    for (int a = 0; a < 256; ++a) {
                      for (int b = 0; b < 256; ++b) take({byte(a), byte(b)});
                    }
                  }),
            0x800U - 0x80);
  EXPECT_EQ(count(3,
                  [&](auto&& take) {
                    for (int a = 0xe0; a < 0xf0; ++a) {
                      for (int b = 0; b < 256; ++b) {
                        for (int c = 0; c < 256; ++c) take({byte(a), byte(b), byte(c)});
                      }
                    }
                  }),
            0x10000U - 0x800 - 0x800);
  // The last two bytes follow the same rule in every sequence of four, so a few values of each
  // suffice.
  EXPECT_EQ(count(4,
                  [&](auto&& take) {
                    for (int a = 0xf0; a < 256; ++a) {
                      for (int b = 0; b < 256; ++b) {
                        for (const int c : {0x7f, 0x80, 0xbf, 0xc0}) {
                          take({byte(a), byte(b), byte(c), byte(0x80)});
                          take({byte(a), byte(b), byte(0x80), byte(c)});
                        }
                      }
                    }
                  }),
            0x100000U / 0x1000 * 4);
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("aé漢😀"));
  EXPECT_FALSE(is_utf8("aé漢😀\x80"));
  EXPECT_EQ(utf8_sequence(""), 0U);
}

TEST(Cursor, TakesFieldsInOrder) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.put(std::uint8_t{7});
  out.put(std::uint16_t{0x0102});
  out.put(std::uint64_t{0x1122334455667788});
  out.put(std::int64_t{-5});
  out.put_text<std::uint16_t>("name");
  out.put_text<std::uint8_t>("");
  out.put_bytes(as_bytes("tail"));
  EXPECT_EQ(as_text(bytes).substr(0, 5), "\x07\x02\x01\x88\x77");

  Cursor cursor(bytes);
  EXPECT_EQ(cursor.take<std::uint8_t>(), 7);
  EXPECT_EQ(cursor.take<std::uint16_t>(), 0x0102);
  EXPECT_EQ(cursor.position(), 3U);
  EXPECT_EQ(cursor.take<std::uint64_t>(), 0x1122334455667788U);
  EXPECT_EQ(cursor.take<std::int64_t>(), -5);
  EXPECT_EQ(cursor.take_text<std::uint16_t>(), "name");
  EXPECT_EQ(cursor.take_text<std::uint8_t>(), "");
  EXPECT_EQ(cursor.left(), 4U);
  EXPECT_EQ(as_text(cursor.take_bytes(4)), "tail");
  EXPECT_EQ(cursor.left(), 0U);
  EXPECT_TRUE(cursor.ok());
}

TEST(Cursor, StaysBadAfterAFieldThatDoesNotFit) {
  const auto bytes = bytes_of("\x05\0abc"s);
  Cursor cursor(bytes);
  EXPECT_EQ(cursor.take_text<std::uint16_t>(), "");
  EXPECT_FALSE(cursor.ok());
  EXPECT_EQ(cursor.left(), 0U);
  EXPECT_EQ(cursor.take<std::uint8_t>(), 0);
  EXPECT_TRUE(cursor.take_bytes(1).empty());
  EXPECT_TRUE(cursor.take_bytes(0).empty());
  EXPECT_FALSE(cursor.ok());

  Cursor short_field(ConstBytes(bytes).first(3));
  EXPECT_EQ(short_field.take<std::uint32_t>(), 0U);
  EXPECT_FALSE(short_field.ok());

  Cursor huge(bytes);
  EXPECT_TRUE(huge.take_bytes(std::numeric_limits<std::uint64_t>::max()).empty());
  EXPECT_FALSE(huge.ok());
}

TEST(AlignUp, GoesToTheNextMultiple) {
  EXPECT_EQ(align_up(0, 64), 0U);
  EXPECT_EQ(align_up(1, 64), 64U);
  EXPECT_EQ(align_up(64, 64), 64U);
  EXPECT_EQ(align_up(4097, 4096), 8192U);
}

TEST(Cancel, ThrowsOnceRequested) {
  Cancel cancel;
  cancel.check();
  EXPECT_FALSE(cancel.requested());
  std::thread([&] { cancel.request(); }).join();
  EXPECT_TRUE(cancel.requested());
  EXPECT_EQ(kind_of([&] { cancel.check(); }), ErrorKind::Cancelled);
  EXPECT_EQ(kind_of([&] { cancel.check(); }), ErrorKind::Cancelled);
}

std::atomic<int> hook_calls{0};

class InterruptHookTest : public testing::Test {
 protected:
  void SetUp() override { hook_calls = 0; }
  void TearDown() override { set_interrupt_hook(nullptr); }
};

TEST_F(InterruptHookTest, IsAskedByTheOwnerEveryNowAndThen) {
  set_interrupt_hook([] { ++hook_calls; });
  const auto start = std::chrono::steady_clock::now();
  Cancel cancel;
  while (hook_calls < 4) cancel.check();
  EXPECT_GE(std::chrono::steady_clock::now() - start, 3 * kPollInterval);
}

TEST_F(InterruptHookTest, IsNotAskedByOthers) {
  set_interrupt_hook([] { ++hook_calls; });
  Cancel cancel;
  std::thread([&] {
    for (int i = 0; i < 3; ++i) {
      cancel.check();
      std::this_thread::sleep_for(kPollInterval);
    }
  }).join();
  EXPECT_EQ(hook_calls, 0);
}

TEST_F(InterruptHookTest, ThrowsWhatTheCallerSees) {
  set_interrupt_hook([] { throw 42; });
  Cancel cancel;
  EXPECT_THROW(cancel.check(), int);
}

TEST_F(InterruptHookTest, MayRequestWhatItInterrupts) {
  static Cancel* running;
  Cancel cancel;
  running = &cancel;
  set_interrupt_hook([] { running->request(); });
  EXPECT_EQ(kind_of([&] { cancel.check(); }), ErrorKind::Cancelled);
}

TEST(ControlGroups, AreThoseOfTheProcessAndAllAbove) {
  char path[] = "/tmp/groups.XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  const std::string_view text =
      "9:name=systemd:/x\n4:cpu,memory:/pod/one\n2:memorycount:/y\nodd\n0::/slice/a/b\n1:pids:/\n";
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
  std::vector<std::string> found;
  for_each_control_group(
      "memory",
      [&](const std::string& directory, bool unified) {
        found.push_back(directory + (unified ? " 2" : " 1"));
      },
      path);
  unlink(path);
  const std::vector<std::string> expected = {
      "/sys/fs/cgroup/memory 1",   "/sys/fs/cgroup/memory/pod 1", "/sys/fs/cgroup/memory/pod/one 1",
      "/sys/fs/cgroup 2",          "/sys/fs/cgroup/slice 2",      "/sys/fs/cgroup/slice/a 2",
      "/sys/fs/cgroup/slice/a/b 2"};
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace tensorizer
