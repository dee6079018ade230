#include "base/world.h"

#include <atomic>
#include <random>
#include <thread>

namespace tensorizer {

namespace {

std::atomic<World*> simulated{nullptr};

Clock::time_point real_now() noexcept {
  return Clock::time_point(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

World* simulated_world() noexcept { return simulated.load(std::memory_order_acquire); }

World::World() noexcept { simulated.store(this); }
World::~World() { simulated.store(nullptr); }

Clock::time_point World::now() noexcept { return real_now(); }
WallClock::time_point World::date() noexcept { return std::chrono::system_clock::now(); }
std::uint32_t World::random_number() { return std::random_device()(); }
void World::sleep_for(Clock::duration time) { std::this_thread::sleep_for(time); }
bool World::wait_for_server(Clock::duration) { return false; }
const char* World::server() noexcept { return nullptr; }

Clock::time_point Clock::now() noexcept {
  World* const world = simulated_world();
  return world != nullptr ? world->now() : real_now();
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
  World* const world = simulated_world();
  return world != nullptr ? world->random_number() : std::random_device()();
}

bool wait_in_simulation(Clock::duration most) {
  World* const world = simulated_world();
  return world != nullptr && world->wait_for_server(most);
}

}  // namespace tensorizer
