#include "io/named_secret.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "base/cancel.h"
#include "base/error.h"
#include "base/world.h"
#include "io/descriptor.h"
#include "io/uri.h"

namespace tensorizer {

std::optional<SecretReference> parse_secret_reference(std::string_view text) noexcept {
  constexpr std::pair<std::string_view, SecretPlace> kPlaces[] = {{"env:", SecretPlace::Variable},
                                                                  {"file:", SecretPlace::File},
                                                                  {"named:", SecretPlace::Named}};
  for (const auto& [prefix, place] : kPlaces) {
    if (text.starts_with(prefix)) {
      return SecretReference{place, text.substr(prefix.size())};
    }
  }
  return std::nullopt;
}

std::string_view read_secret_variable(const std::string& name, const std::string& what) {
  const char* found = name.find('\0') == name.npos ? std::getenv(name.c_str()) : nullptr;
  if (found != nullptr) return found;
  throw Error(ErrorKind::InvalidArgument,
              what + " cannot be read from the environment, which has no variable " + quote(name));
}

std::chrono::milliseconds secret_pipe_patience{10000};

SecretBytes read_secret_file(const std::string& path, std::size_t most, const std::string& what) {
  const auto fail = [&] { throw system_error(errno, "cannot read " + what + " from", path); };
  Cancel cancel;  // for the host's signals
  // O_NONBLOCK: a pipe without a writer reads as empty, instead of blocking the open.
  const Descriptor file = open_descriptor(AT_FDCWD, expand_home(path), O_RDONLY | O_NONBLOCK);
  if (!file) fail();
  const auto deadline = Clock::now() + secret_pipe_patience;
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
