// Running other programs and reading their output.
#include "io/aws/command.h"

#include <fcntl.h>
#include <signal.h>

#include <chrono>

#include "io/descriptor.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;

constexpr CommandLimits kLimits{std::chrono::seconds(20), 64 << 10};

class CommandTest : public IoTest {
 protected:
  std::string run(const std::string& script, CommandLimits limits = kLimits) {
    return run_command({"sh", "-c", script}, "the program", limits, cancel_);
  }

  // Waits until `holds` returns true, for a minute at most. Returns whether it did.
  static bool soon(const std::function<bool()>& holds) {
    for (int i = 0; i < 6000 && !holds(); ++i) std::this_thread::sleep_for(milliseconds(10));
    return holds();
  }
};

TEST_F(CommandTest, GivesWhatWasPrinted) {
  EXPECT_EQ(run("printf 'a\\nb'; echo no >&2"), "a\nb");
  EXPECT_EQ(
      run_command({"printf", "%s|", "a b", "$HOME", "; echo"}, "the program", kLimits, cancel_),
      "a b|$HOME|; echo|");
  const std::string large = run("yes | head -c 60000");
  EXPECT_EQ(large.size(), 60000U);
  EXPECT_EQ(run("exec >&-; sleep 0.2"), "") << "its end is waited for";
}

TEST_F(CommandTest, GivesItNothingOfOurs) {
  const Descriptor leaked(open("/dev/null", O_RDONLY));
  const Descriptor higher(fcntl(leaked.get(), F_DUPFD, 200));
  EXPECT_EQ(run("cat; ls /proc/self/fd"), "0\n1\n2\n3\n") << "3 is the folder that is listed";
  const auto before = signal(SIGPIPE, SIG_IGN);
  EXPECT_TRUE(contains(message_of([&] { run("kill -PIPE $$; echo ignored"); }), "by signal 13"));
  signal(SIGPIPE, before);
}

TEST_F(CommandTest, SaysHowItFailedAndNoMore) {
  for (const auto& [script, how] : std::vector<std::pair<std::string, std::string>>{
           {"echo sesame; echo sesame >&2; exit 3", "exited with status 3"},
           {"kill -KILL $$", "was killed by signal 9"}}) {
    const Error error = error_of([&, &script = script] { run(script); });
    EXPECT_EQ(error.kind(), ErrorKind::PermissionDenied);
    EXPECT_TRUE(contains(error.what(), "the program " + how)) << error.what();
    EXPECT_FALSE(contains(error.what(), "sesame"));
  }
  const Error missing =
      error_of([&] { run_command({"/no/such/sesame", "x"}, "the program", kLimits, cancel_); });
  EXPECT_EQ(missing.kind(), ErrorKind::InvalidArgument);
  EXPECT_TRUE(contains(missing.what(), "No such file")) << missing.what();
  EXPECT_FALSE(contains(missing.what(), "sesame"));
}

TEST_F(CommandTest, KeepsNoSignalFromIt) {
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  const Error error = error_of([&] { run("kill -TERM $$; echo alive"); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_TRUE(contains(error.what(), "was killed by signal 15")) << error.what();
}

TEST_F(CommandTest, KillsWhatTakesTooLong) {
  const std::string pid_file = folder_ / "pid";
  // On a busy machine, the program may be killed before it has started anything.
  for (milliseconds limit(300); read_file(pid_file).empty(); limit *= 2) {
    EXPECT_EQ(kind_of([&] {
                run("sleep 1000 & echo $! > " + pid_file + "; wait", {limit, kLimits.output});
              }),
              ErrorKind::TimedOut);
  }
  const pid_t child = std::stoi(read_file(pid_file));
  EXPECT_TRUE(soon([&] { return kill(child, 0) != 0; })) << "what it started is killed as well";
}

TEST_F(CommandTest, KillsWhatPrintsTooMuch) {
  EXPECT_EQ(kind_of([&] { run("yes"); }), ErrorKind::InvalidFormat);
}

TEST_F(CommandTest, EndsSoonWhenCancelled) {
  expect_cancelled_soon([&] { run("sleep 1000"); });
}

TEST_F(CommandTest, EndsSoonWhenCancelledWithItsOutputClosed) {
  expect_cancelled_soon([&] { run("exec >&-; sleep 1000"); });
}

TEST_F(CommandTest, DoesNotWaitForWhoKeepsThePipe) {
  // Otherwise it would exceed its time limit.
  const pid_t sleeper = std::stoi(run("sleep 1000 & echo $!"));
  EXPECT_EQ(kill(sleeper, SIGKILL), 0);
}

}  // namespace
}  // namespace tensorizer
