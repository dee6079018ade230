// What the library learns from outside besides bytes: the time, and chance. A test sets a world of
// its own, in which time passes at once and a run is the same each time.
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

class World {
 public:
  virtual ~World() = default;
  virtual Clock::time_point now() noexcept = 0;
  virtual WallClock::time_point date() noexcept = 0;
  virtual std::uint32_t random_number() = 0;
  virtual void sleep_for(Clock::duration time) = 0;
  // Called where a connection waits for its server, for at most this time. Returns false to wait
  // for it in the real world.
  virtual bool wait_for_server(Clock::duration most) = 0;
  // Returns the name of the abstract socket that all connections are made to; null for the servers
  // that their URLs name.
  virtual const char* server() noexcept = 0;
};

// Sets the world for all threads; null is the real one. The world must outlive its use.
void set_world(World* world) noexcept;
// Returns null for the real one.
World* simulated_world() noexcept;

}  // namespace tensorizer
