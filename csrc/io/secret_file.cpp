#include "io/secret_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/cancel.h"
#include "base/error.h"
#include "io/descriptor.h"
#include "io/uri.h"

namespace tensorizer {

SecretBytes read_secret_file(const std::string& path, std::size_t most, const std::string& what) {
  constexpr std::chrono::seconds kPatience{10};  // with whoever has a pipe open
  const auto fail = [&] { throw system_error(errno, "cannot read " + what + " from", path); };
  Cancel cancel;  // for the host's signals
  // A pipe into which nobody writes is empty, and none to wait for.
  const Descriptor file = open_descriptor(AT_FDCWD, expand_home(path), O_RDONLY | O_NONBLOCK);
  if (!file) fail();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  SecretBytes content(most + 1);
  std::size_t have = 0;
  while (have < most + 1) {
    const ssize_t got = ::read(file.get(), content.bytes().data() + have, most + 1 - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (wait_until_ready(file.get(), POLLIN, path, cancel, deadline)) continue;
      errno = ETIMEDOUT;
    }
    if (got < 0) fail();
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  content.shorten(have);
  return content;
}

}  // namespace tensorizer
