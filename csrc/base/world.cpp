#include "base/world.h"

#include <atomic>
#include <random>
#include <thread>

namespace tensorizer {

namespace {
std::atomic<World*> simulated{nullptr};
}  // namespace

void set_world(World* world) noexcept { simulated.store(world); }

World* simulated_world() noexcept { return simulated.load(std::memory_order_acquire); }

Clock::time_point Clock::now() noexcept {
  if (World* const world = simulated_world()) return world->now();
  return time_point(std::chrono::steady_clock::now().time_since_epoch());
}

WallClock::time_point WallClock::now() noexcept {
  World* const world = simulated_world();
  return world != nullptr ? world->date() : std::chrono::system_clock::now();
}

std::time_t WallClock::seconds() noexcept { return std::chrono::system_clock::to_time_t(now()); }

void sleep_for(Clock::duration time) {
  if (World* const world = simulated_world()) {
    world->sleep_for(time);
  } else {
    std::this_thread::sleep_for(time);
  }
}

std::uint32_t random_number() {
  if (World* const world = simulated_world()) return world->random_number();
  return std::random_device()();
}

}  // namespace tensorizer
