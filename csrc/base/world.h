// Clocks, sleeps and random numbers. A test replaces them with a World of its own, in which a sleep
// takes no time and every run is the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace tensorizer {

// A clock that never goes back.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
};

// The clock on the wall, which may be wrong.
struct WallClock {
  using time_point = std::chrono::system_clock::time_point;

  static time_point now() noexcept;
  // Returns the seconds since 1970.
  static std::time_t seconds() noexcept;
};

// Blocks for this time. Cancel::sleep() ends early.
void sleep_for(Clock::duration time);

// Returns a number that nobody can foresee.
std::uint32_t random_number();

// Waits for a server in a test's world, for at most this time. Returns false in the real world.
bool wait_in_simulation(Clock::duration most);

// The world of all threads while an object of this class exists: as the real one, except for what a
// derived class changes. Only one may exist at a time.
class World {
 public:
  World() noexcept;
  virtual ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  virtual Clock::time_point now() noexcept;
  virtual WallClock::time_point date() noexcept;
  virtual std::uint32_t random_number();
  virtual void sleep_for(Clock::duration time);
  // Called where a connection waits for its server. Returns false to wait in the real world.
  virtual bool wait_for_server(Clock::duration most);
  // Returns the name of the abstract socket that all connections are made to; null for the servers
  // that their URLs name.
  virtual const char* server() noexcept;
};

// Returns null for the real world.
World* simulated_world() noexcept;

}  // namespace tensorizer
