// One try of the library, in a world of its own.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "io/option.h"
#include "simulated_world.h"

namespace tensorizer::simulation {

struct Try {
  explicit Try(std::uint64_t seed, bool verbose) : world(seed, verbose) {}

  std::string some_bytes(std::uint64_t most) {
    std::string bytes(1 + world.below(most), '\0');
    for (char& byte : bytes) byte = static_cast<char>(world.random_number());
    return bytes;
  }

  // Runs a job, and returns whether it succeeded. Only an Error may end it.
  bool succeeds(const std::function<void()>& job) {
    try {
      job();
      world.note("succeeds");
      return true;
    } catch (const Error& error) {
      world.note("fails", error.what());
      if (error.kind() == ErrorKind::Internal)
        throw Broken(std::string("internal: ") + error.what());
      return false;
    }
  }

  SimulatedWorld world;
  Cancel cancel;
  OptionList options{{"connections", "1"}, {"stall_timeout", "10"}, {"force_http", "true"}};
};

inline void require(bool kept, const std::string& promise) {
  if (!kept) throw Broken(promise);
}

}  // namespace tensorizer::simulation
