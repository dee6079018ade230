// A world whose time, chance and servers follow from a seed, on one thread.
//
// All connections of libcurl lead to one socket of this process. Where the library waits for a
// server, the world takes what has arrived there, lets the service answer it, and passes time.
// Faults befall the requests: see Fault.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/world.h"
#include "io/descriptor.h"

namespace tensorizer::simulation {

using namespace std::chrono_literals;

// A promise that was broken.
struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

enum class Fault : std::uint8_t {
  None,
  Unheard,         // the connection breaks before the request has an effect
  Unanswered,      // it breaks after that, before or within the answer
  Silence,         // the request has no effect, and no answer comes
  SilentEffect,    // the request has its effect, and no answer comes
  Late,            // the answer comes after a while
  LateEffect,      // the request has its effect after a while, and no answer comes
  Refused,         // a temporary refusal, without an effect
  WronglyRefused,  // a temporary refusal, after the effect
  Twice,           // the request has its effect twice, and the second answer comes
  Stale,           // a replica answers that does not know the last change yet
  Count
};

inline constexpr std::size_t kFaults = static_cast<std::size_t>(Fault::Count);

// All of them, for a service to which all can happen.
inline constexpr std::array<Fault, kFaults - 1> kAllFaults = [] {
  std::array<Fault, kFaults - 1> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Fault>(i + 1);
  return all;
}();

inline const char* name_of(Fault fault) {
  constexpr const char* kNames[] = {
      "none",        "unheard", "unanswered",      "silence", "silent", "late",
      "late effect", "refused", "wrongly refused", "twice",   "stale"};
  return kNames[static_cast<std::size_t>(fault)];
}

// What a client has sent and will receive.
struct Line {
  Descriptor socket;
  std::string received;  // and not taken yet
  std::string answers;   // and not sent yet
  Clock::time_point not_before{};
  std::optional<std::size_t> breaks_after{};  // so many more bytes of answers
  std::size_t drip{};                         // the most bytes that are sent at once
  bool is_deaf = false;                       // takes no more requests
  bool silent = false;                        // neither that, nor sends answers
  bool is_over = false;
};

// Answers the requests of clients.
class Service {
 public:
  virtual ~Service() = default;
  // Takes one whole request off what a line has received. Returns false if there is none. The world
  // is asked for the fault of each request.
  virtual bool take(Line& line) = 0;
  // Called for a line that is gone.
  virtual void forget(Line&) {}
};

class SimulatedWorld final : public World {
 public:
  SimulatedWorld(std::uint64_t seed, bool verbose) : random_(seed), verbose_(verbose) {
    listen();
    most_faults_ = below(4) == 0 ? 0 : below(6);
    one_fault_in_ = 1 + below(4);
    if (below(20) == 0) most_faults_ = 1000000000;  // a server that never recovers
    if (one_in(4)) set_clock_wrong();
  }

  void serve(Service& service) { service_ = &service; }

  // ---- what the library asks for

  // Each look at the clock takes a moment, so that a loop that only looks at it ends.
  Clock::time_point now() noexcept override { return now_ += 100ns; }
  WallClock::time_point date() noexcept override { return true_date() + wrong_by_; }
  std::uint32_t random_number() override { return static_cast<std::uint32_t>(random_()); }
  void sleep_for(Clock::duration time) override {
    note("sleeps", std::to_string(time / 1ms) + " ms");
    pass(time);
    step();
  }
  bool wait_for_server(Clock::duration most) override {
    if (!step()) pass(stands_still() ? most + 20s : most);
    return true;
  }
  const char* server() noexcept override { return name_.c_str(); }

  // ---- what services ask for

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool one_in(std::uint64_t bound) { return below(bound) == 0; }

  // Returns what the clock on a server's wall shows.
  WallClock::time_point true_date() const {
    return WallClock::time_point(std::chrono::seconds(1790000000)) +
           std::chrono::duration_cast<WallClock::time_point::duration>(now_.time_since_epoch());
  }

  // Called once for each request, with the faults that can befall it.
  Fault next_fault(std::span<const Fault> kinds = kAllFaults) {
    for (auto due = at_requests_.find(++requests_); due != at_requests_.end();
         due = at_requests_.find(requests_)) {
      at_requests_.extract(due).mapped()();
    }
    if (requests_ <= spared_ || faults_ >= most_faults_ || !one_in(one_fault_in_)) {
      return Fault::None;
    }
    ++faults_;
    if (one_in(20)) set_clock_wrong();
    const Fault fault = kinds[below(kinds.size())];
    ++befell_[static_cast<std::size_t>(fault)];
    return fault;
  }
  std::uint64_t faults() const { return faults_; }
  // Lets no fault befall the first requests.
  void spare(std::uint64_t requests) { spared_ = requests; }
  // Sets how long it takes at most to bring bytes to the other side.
  void set_latency(std::chrono::microseconds latency) { latency_ = latency; }
  // Sets how many bytes a server that drips sends at once at most.
  void set_drip(std::size_t most) { most_drip_ = most; }
  // Returns whether at most `most` faults befell anything, and all were of these kinds.
  bool had_only(std::uint64_t most, std::span<const Fault> kinds) const {
    std::uint64_t count = 0;
    for (const Fault kind : kinds) count += befell_[static_cast<std::size_t>(kind)];
    return faults_ <= most && count == faults_;
  }

  bool befell(Fault kind) const { return befell_[static_cast<std::size_t>(kind)] > 0; }

  // Does something later, whoever waits for it.
  void later(std::function<void()> effect) {
    effects_.emplace(now_ + std::chrono::milliseconds(below(100000)), std::move(effect));
  }
  // Does something later, or right before one of the next `requests` requests.
  void sometime(std::uint64_t requests, std::function<void()> effect) {
    if (one_in(4)) return later(std::move(effect));
    at_requests_.emplace(requests_ + 1 + below(requests), std::move(effect));
  }
  // Does what is still to be done, and takes what is still in sockets.
  void end() {
    while (!at_requests_.empty()) at_requests_.extract(at_requests_.begin()).mapped()();
    do {
      while (!effects_.empty()) run_first_effect();
    } while (step() || !effects_.empty());
  }

  // Remembers that a promise was broken, where an exception would not get through.
  void note_broken(const std::string& promise) {
    note("BROKEN", promise);
    if (broken_.empty()) broken_ = promise;
  }
  // Returns the first broken promise, or nothing.
  const std::string& broken() const { return broken_; }

  void note(std::string_view what, std::string_view detail = {}) {
    for (const std::string_view text : {what, detail}) {
      for (const char c : text) trace_ = (trace_ ^ static_cast<unsigned char>(c)) * 1099511628211U;
    }
    if (!verbose_) return;
    std::printf("%12.6f %.*s %.*s\n", seconds(), static_cast<int>(what.size()), what.data(),
                static_cast<int>(detail.size()), detail.data());
  }
  // Returns a number that differs if anything that was noted does.
  std::uint64_t trace() const { return trace_; }
  double seconds() const { return std::chrono::duration<double>(now_.time_since_epoch()).count(); }

 private:
  static constexpr Clock::duration kLongest = 24h;

  void listen() {
    name_ = "tensorizer-simulation-" + std::to_string(getpid());
    listener_ = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // The name of an abstract socket begins with a null byte, and has no end but its length.
    std::memcpy(address.sun_path + 1, name_.data(), name_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 64) != 0) {
      throw Broken(std::string("no socket: ") + std::strerror(errno));
    }
  }

  void pass(Clock::duration time) {
    now_ += time;
    if (now_.time_since_epoch() > kLongest) throw Broken("a job does not end");
    while (!effects_.empty() && effects_.begin()->first <= now_) run_first_effect();
  }

  void run_first_effect() {
    const auto effect = effects_.extract(effects_.begin());
    note("late effect");
    effect.mapped()();
  }

  // The clock on the wall of this machine jumps.
  void set_clock_wrong() {
    constexpr std::array kMinutes{-1500, -130, -20, 0, 20, 130, 1500};
    wrong_by_ = std::chrono::minutes(kMinutes[below(kMinutes.size())]);
  }

  // Returns whether this machine stood still for a while.
  bool stands_still() {
    if (faults_ >= most_faults_ || !one_in(100)) return false;
    ++faults_;
    return true;
  }

  // Returns whether anything was received or sent.
  bool step() {
    bool moved = false;
    for (int socket = accept(); socket >= 0; socket = accept()) {
      lines_.push_back({Descriptor(socket), {}, {}});
      lines_.back().drip = one_in(4) ? 1 + below(most_drip_) : 1 << 20;
      moved = true;
    }
    for (auto line = lines_.begin(); line != lines_.end();) {
      moved = receive(*line) || moved;
      while (can_take(*line) && service_->take(*line)) moved = true;
      moved = send(*line) || moved;
      if (line->is_over) {
        service_->forget(*line);
        line = lines_.erase(line);
      } else {
        ++line;
      }
    }
    if (moved) pass(std::chrono::microseconds(below(static_cast<std::uint64_t>(latency_.count()))));
    return moved;
  }

  static bool can_take(const Line& line) { return !line.is_over && !line.silent && !line.is_deaf; }

  int accept() { return accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }

  static bool receive(Line& line) {
    char bytes[1 << 16];
    const ssize_t count = recv(line.socket.get(), bytes, sizeof(bytes), 0);
    if (count > 0) line.received.append(bytes, static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EAGAIN)) line.is_over = true;
    return count > 0;
  }

  // Sends some of the answers: all that is there, or a drip.
  bool send(Line& line) {
    if (line.is_over || line.silent || now_ < line.not_before) return false;
    std::size_t most = line.drip;
    if (line.breaks_after) most = std::min(most, *line.breaks_after);
    most = std::min(most, line.answers.size());
    if (most > 0) {
      const ssize_t sent = ::send(line.socket.get(), line.answers.data(), most, MSG_NOSIGNAL);
      if (sent <= 0) {
        line.is_over = sent == 0 || errno != EAGAIN;
        return line.is_over;
      }
      line.answers.erase(0, static_cast<std::size_t>(sent));
      if (line.breaks_after) *line.breaks_after -= static_cast<std::size_t>(sent);
    }
    if (line.breaks_after == 0U) {
      note("breaks");
      line.is_over = true;
    }
    return most > 0 || line.is_over;
  }

  std::mt19937_64 random_;
  const bool verbose_;
  std::string name_;
  Descriptor listener_;
  std::list<Line> lines_;
  std::multimap<Clock::time_point, std::function<void()>> effects_;
  std::multimap<std::uint64_t, std::function<void()>> at_requests_;
  Service* service_ = nullptr;
  Clock::time_point now_{};
  std::chrono::microseconds latency_{2000};
  std::size_t most_drip_ = 100;
  std::chrono::minutes wrong_by_{};
  std::uint64_t requests_ = 0, spared_ = 0, faults_ = 0, most_faults_ = 0, one_fault_in_ = 1;
  std::array<std::uint64_t, kFaults> befell_{};
  std::string broken_;
  std::uint64_t trace_ = 14695981039346656037U;
};

// Lets a fault befall a request. `effect` does what the request asks for and returns the answer;
// `refuse` returns a temporary refusal.
inline void answer(SimulatedWorld& world, Fault fault, Line& line, const std::string& request,
                   const std::function<std::string(bool stale)>& effect,
                   const std::function<std::string()>& refuse) {
  world.note(request, name_of(fault));
  switch (fault) {
    case Fault::Unheard:
      line.breaks_after = line.answers.size();
      line.is_deaf = true;
      return;
    case Fault::Unanswered:
      line.answers += effect(false);
      line.breaks_after = world.below(line.answers.size() + 1);
      return;
    case Fault::Silence:
      line.silent = true;
      return;
    case Fault::SilentEffect:
      static_cast<void>(effect(false));
      line.silent = true;
      return;
    case Fault::Late:
      line.answers += effect(false);
      line.not_before = world.now() + std::chrono::milliseconds(world.below(100000));
      return;
    case Fault::LateEffect:
      world.later([effect] { static_cast<void>(effect(false)); });
      line.silent = true;
      return;
    case Fault::Refused:
      line.answers += refuse();
      return;
    case Fault::WronglyRefused:
      static_cast<void>(effect(false));
      line.answers += refuse();
      return;
    case Fault::Twice:
      static_cast<void>(effect(false));
      line.answers += effect(false);
      return;
    default:
      line.answers += effect(fault == Fault::Stale);
  }
}

}  // namespace tensorizer::simulation
