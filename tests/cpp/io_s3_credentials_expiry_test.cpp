// S3 credentials that expire or are refused: when others are fetched, and by which thread.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/world.h"
#include "s3_credentials.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using std::chrono::system_clock;

// Credentials that expire, by a clock that the test sets.
class ExpiryTest : public S3CredentialsTest {
 protected:
  void give(const std::string& expiration) {
    config("[default]\ncredential_process = " + process(expiration) + "\n");
  }
  std::string key() { return chain_.get(cancel_).key_id; }

  // How long before kExpiration the clock on the wall is.
  struct BeforeExpiration : World {
    std::atomic<system_clock::duration> before{hours(1)};
    WallClock::time_point date() noexcept override {
      return *parse_timestamp(kExpiration) - before.load();
    }
  } world_;
  std::atomic<system_clock::duration>& before_ = world_.before;
  S3CredentialsChain chain_{options_, http_};
};

TEST_F(ExpiryTest, FetchesOthersSomeMinutesBefore) {
  give(kExpiration);
  EXPECT_EQ(key(), "K1");
  before_ = minutes(6);
  EXPECT_EQ(key(), "K1");
  before_ = minutes(4);
  give("2026-01-31T13:00:00Z");
  EXPECT_EQ(key(), "K2");
  EXPECT_EQ(key(), "K2");
  before_ = -minutes(54);
  EXPECT_EQ(key(), "K2");
  before_ = -minutes(56);
  EXPECT_EQ(key(), "K3");
}

TEST_F(ExpiryTest, KeepsTheOldOnesWhileTheyHold) {
  give(kExpiration);
  EXPECT_EQ(key(), "K1");
  config("[default]\ncredential_process = false\n");
  before_ = minutes(4);
  EXPECT_EQ(key(), "K1");
  give("2026-01-31T13:00:00Z");
  EXPECT_EQ(key(), "K1") << "it does not ask again at once";
  before_ = minutes(3);
  EXPECT_EQ(key(), "K2");
  config("[default]\ncredential_process = false\n");
  before_ = -hours(2);
  EXPECT_EQ(kind_of([&] { key(); }), ErrorKind::PermissionDenied);
  give("2026-01-31T15:00:00Z");
  EXPECT_EQ(key(), "K3");
}

TEST_F(ExpiryTest, DoesNotAskAllTheTimeForWhatHasExpired) {
  before_ = -hours(1);
  give(kExpiration);
  EXPECT_EQ(key(), "K1");
  EXPECT_EQ(key(), "K1");
  before_ = -hours(1) - seconds(2);
  EXPECT_EQ(key(), "K2");
}

TEST_F(ExpiryTest, FetchesOthersThatAreRefused) {
  give("");
  EXPECT_EQ(key(), "K1");
  EXPECT_TRUE(chain_.refused("K1"));
  EXPECT_EQ(key(), "K2");
  EXPECT_TRUE(chain_.refused("K1")) << "there are others already";
  EXPECT_EQ(key(), "K2");
  config("[default]\naws_access_key_id = K2\naws_secret_access_key = s\naws_session_token = t\n");
  EXPECT_TRUE(chain_.refused("K2"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(kind_of([&] { key(); }), ErrorKind::PermissionDenied) << "they are the same";
  }
  config("[default]\naws_access_key_id = K9\naws_secret_access_key = s\n");
  EXPECT_EQ(key(), "K9");

  options_.access_key_id = options_.secret_access_key = "literal";
  EXPECT_FALSE(S3CredentialsChain(options_, http_).refused("literal"));
}

// A program that has started, and ends when the test lets it.
class HeldTest : public ExpiryTest {
 protected:
  void hold() {
    const std::string wait =
        "while [ ! -e '" + (folder_ / "go").string() + "' ]; do sleep 0.02; done";
    config("[default]\ncredential_process = sh -c \"echo > '" + (folder_ / "begun").string() +
           "'; " + wait + "; exec " + process("") + "\"\n");
  }
  void let_go() { write_file(folder_ / "go", ""); }
  static bool wait_until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + minutes(1);
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return done();
  }
};

TEST_F(HeldTest, OneThreadFetchesAndTheOthersGoOn) {
  give(kExpiration);
  EXPECT_EQ(key(), "K1");
  hold();
  before_ = minutes(4);
  std::atomic<int> old{0};
  std::atomic<int> fresh{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { ++(chain_.get(cancel_).key_id == "K1" ? old : fresh); });
  }
  EXPECT_TRUE(wait_until([&] { return old == 7; }));
  EXPECT_EQ(fresh, 0);
  let_go();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(old, 7);
  EXPECT_EQ(fresh, 1);
  EXPECT_EQ(read_file(calls()), "x\nx\n");
}

TEST_F(HeldTest, WhoWaitsForAnotherIsCancelledAlone) {
  hold();
  std::thread fetching([&] {
    Cancel other;
    EXPECT_EQ(chain_.get(other).key_id, "K1");
  });
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(folder_ / "begun"); }));
  expect_cancelled_soon([&] { key(); });
  let_go();
  fetching.join();
  EXPECT_EQ(read_file(calls()), "x\n");
}

// As in a signal handler that loads while its own thread fetches keys.
TEST_F(S3CredentialsTest, ComeToWhoInterruptsTheirFetch) {
  options_.access_key_id = "AK";
  options_.secret_access_key = "secret";
  static S3CredentialsChain* chain;
  static std::string found;
  S3CredentialsChain mine(options_, http_);
  chain = &mine;
  found.clear();
  set_interrupt_hook([] {
    set_interrupt_hook(nullptr);
    Cancel cancel;
    found = chain->get(cancel).key_id;
  });
  Cancel cancel;
  EXPECT_EQ(mine.get(cancel).key_id, "AK");
  set_interrupt_hook(nullptr);
  EXPECT_EQ(found, "AK");
}

}  // namespace
}  // namespace tensorizer
