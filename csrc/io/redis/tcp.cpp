#include "io/redis/tcp.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/signals.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

using Clock = std::chrono::steady_clock;

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

struct Found {
  int status = 0;  // of getaddrinfo()
  int system_errno = 0;
  Addresses addresses;
};

Found look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* addresses = nullptr;
  Found found;
  found.status = getaddrinfo(host.c_str(), port.c_str(), &wanted, &addresses);
  found.system_errno = errno;
  found.addresses.reset(addresses);
  return found;
}

// The system's way to ask for a name can neither be cancelled nor told to end, so a thread of its
// own asks, and is left alone when nobody wants to know any more.
Found look_up_elsewhere(const std::string& host, const std::string& port,
                        Clock::time_point deadline, Cancel& cancel) {
  std::packaged_task<Found()> task([host, port] { return look_up(host, port, 0); });
  std::future<Found> found = task.get_future();
  {
    const SignalsBlocked blocked;
    std::thread(std::move(task)).detach();
  }
  while (found.wait_for(kPollInterval) != std::future_status::ready) {
    cancel.check();
    if (Clock::now() >= deadline) return {EAI_AGAIN, 0, nullptr};
  }
  return found.get();
}

Addresses addresses_of(const std::string& host, const std::string& port, Clock::time_point deadline,
                       const std::string& label, Cancel& cancel) {
  Found found = look_up(host, port, AI_NUMERICHOST);
  if (found.status == EAI_NONAME) found = look_up_elsewhere(host, port, deadline, cancel);
  if (found.status == 0) return std::move(found.addresses);
  const std::string what =
      "cannot find the host of " + label + ": " +
      (found.status == EAI_SYSTEM ? std::strerror(found.system_errno) : gai_strerror(found.status));
  if (found.status == EAI_AGAIN) throw TemporaryError(ErrorKind::Unavailable, what);
  throw Error(ErrorKind::Unavailable, what);
}

// The errno of connecting, or 0.
int wait_until_connected(int socket, Clock::time_point deadline, const std::string& label,
                         Cancel& cancel) {
  if (!wait_until_ready(socket, POLLOUT, label, cancel, deadline)) return ETIMEDOUT;
  int status = 0;
  socklen_t size = sizeof(status);
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &status, &size) == 0 ? status : errno;
}

}  // namespace

TcpConnection connect_tcp(const std::string& host, std::uint16_t port,
                          std::chrono::duration<double> timeout, const std::string& label,
                          Cancel& cancel) {
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + std::chrono::duration_cast<Clock::duration>(timeout);
  const Addresses addresses = addresses_of(host, std::to_string(port), deadline, label, cancel);
  const Clock::time_point found = Clock::now();
  int left = 0;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) ++left;
  int status = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next, --left) {
    Descriptor connected(
        socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol));
    if (!connected) {
      status = errno;
      continue;
    }
    status = ::connect(connected.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (status == EINPROGRESS || status == EINTR) {
      // An address that does not answer leaves time for those behind it.
      const Clock::time_point now = Clock::now();
      status = wait_until_connected(connected.get(),
                                    now + std::max(deadline - now, Clock::duration::zero()) / left,
                                    label, cancel);
    }
    if (status != 0) continue;
    const int yes = 1;
    setsockopt(connected.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(connected.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    return {std::move(connected), found - start, Clock::now() - found};
  }
  throw TemporaryError(status == ETIMEDOUT ? ErrorKind::TimedOut : ErrorKind::Unavailable,
                       "cannot connect to the server of " + label + ": " + std::strerror(status),
                       status);
}

}  // namespace tensorizer
