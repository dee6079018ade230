#include "io/aws/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "base/world.h"
#include "io/descriptor.h"

namespace tensorizer {

namespace {

// How often to check for the end of a program that has closed its output.
constexpr std::chrono::milliseconds kEndInterval{5};

// The settings of posix_spawn() for the program.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);

    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    // Python ignores some signals, and the child would inherit that.
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGXFSZ}) sigaddset(&signals, signal);
    posix_spawnattr_setsigdefault(&attributes, &signals);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// A running program. The destructor kills its process group if it still runs.
class Program {
 public:
  Program(const std::vector<std::string>& words, const std::string& label) : label_(label) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw Error(ErrorKind::SystemError, why("gets no pipe", errno));
    }
    output_ = Descriptor(ends[0]);
    // If the standard descriptors are closed in this process, the pipe may have one of their
    // numbers. A number above them keeps the pipe apart.
    const Descriptor write_end(fcntl(ends[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    ::close(ends[1]);
    if (!write_end) throw Error(ErrorKind::SystemError, why("gets no pipe", errno));
    fcntl(output_.get(), F_SETFL, O_NONBLOCK);

    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const SpawnSettings settings(write_end.get());
    const int failed = posix_spawnp(&process_, arguments[0], &settings.actions,
                                    &settings.attributes, arguments.data(), environ);
    if (failed != 0) {
      process_ = -1;
      throw Error(ErrorKind::InvalidArgument, why("cannot be run", failed));
    }
  }
  ~Program() {
    if (process_ < 0) return;
    kill(-process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Waits up to kPollInterval for more output, and appends it. Returns false at its end.
  bool read_some(std::string& text) {
    // Checked before the read: when the program has ended, all of its output is in the pipe.
    // Another process that inherited the pipe may never close it, so its end is not waited for.
    const bool ended = has_ended();
    pollfd waiting{output_.get(), POLLIN, 0};
    if (!ended) poll(&waiting, 1, static_cast<int>(kPollInterval.count()));
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(output_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) return true;
    if (count < 0 && errno == EAGAIN) return !ended;
    if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
    return count > 0;
  }

  bool has_ended() {
    if (process_ < 0) return true;
    const pid_t found = waitpid(process_, &status_, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) return false;
    // The host program has reaped the child itself, so its status is unknown. Treat it as success:
    // the output is checked anyway.
    if (found < 0) status_ = 0;
    process_ = -1;
    return true;
  }

  void check_end() const {
    if (WIFSIGNALED(status_)) fail("was killed by signal " + std::to_string(WTERMSIG(status_)));
    if (WEXITSTATUS(status_) != 0) {
      fail("exited with status " + std::to_string(WEXITSTATUS(status_)));
    }
  }

 private:
  std::string why(const char* what, int system_errno) const {
    return label_ + " " + what + ": " + std::strerror(system_errno);
  }
  [[noreturn]] void fail(const std::string& how) const {
    throw Error(ErrorKind::PermissionDenied, label_ + " " + how);
  }

  const std::string& label_;
  Descriptor output_;
  pid_t process_ = -1;  // until its end is known
  int status_ = 0;
};

}  // namespace

std::optional<std::vector<std::string>> split_words(std::string_view line) {
  std::vector<std::string> words;
  bool in_word = false;
  char quoted_by = '\0';
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    const char next = at + 1 < line.size() ? line[at + 1] : '\0';
    if (quoted_by == '\0' && is_space(c)) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quoted_by == '\0' && (c == '"' || c == '\'')) {
      quoted_by = c;
    } else if (c == quoted_by) {
      quoted_by = '\0';
    } else if (c == '\\' && quoted_by != '\'') {
      // Between double quotes, a backslash escapes only a double quote or a backslash.
      const bool escapes = quoted_by == '\0' || next == '"' || next == '\\';
      if (at + 1 == line.size()) return std::nullopt;
      words.back() += escapes ? next : c;
      if (escapes) ++at;
    } else {
      words.back() += c;
    }
  }
  if (quoted_by != '\0') return std::nullopt;
  return words;
}

std::string run_command(const std::vector<std::string>& words, const std::string& label,
                        const CommandLimits& limits, Cancel& cancel) {
  const Clock::time_point deadline = Clock::now() + limits.time;
  Program program(words, label);
  const auto check_limits = [&] {
    cancel.check();
    if (Clock::now() >= deadline) {
      throw Error(ErrorKind::TimedOut, label + " did not finish within " +
                                           std::to_string(limits.time.count() / 1000) + " s");
    }
  };
  std::string output;
  while (program.read_some(output)) {
    check_limits();
    if (output.size() > limits.output) {
      throw Error(ErrorKind::InvalidFormat,
                  label + " prints more than " + std::to_string(limits.output) + " bytes");
    }
  }
  while (!program.has_ended()) {
    check_limits();
    sleep_for(kEndInterval);
  }
  program.check_end();
  return output;
}

}  // namespace tensorizer
