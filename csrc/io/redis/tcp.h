// Connections over TCP.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/cancel.h"
#include "io/descriptor.h"

namespace tensorizer {

struct TcpConnection {
  Descriptor socket;  // does not wait: reads and writes on it say EAGAIN
  std::chrono::nanoseconds lookup;
  std::chrono::nanoseconds connect;
};

// Looks the host's name up and connects to the first of its addresses that answers. Throws
// TemporaryError, Error(Unavailable) for a host that does not exist, and ends within kPollInterval
// of a cancel. `label` is for messages.
TcpConnection connect_tcp(const std::string& host, std::uint16_t port,
                          std::chrono::duration<double> timeout, const std::string& label,
                          Cancel& cancel);

}  // namespace tensorizer
