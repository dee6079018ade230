#include "control.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>

namespace sim_device {

namespace {

constexpr std::array kNames = {
    "event.block",
    "event.query",
    "event.synchronize",
    "stream.query",
    "stream.synchronize",
    "device.synchronize",
    "record_data_ptr",
    "host.record_event",
    "skipped",
    "copies.async_to_device",
    "copies.async_to_host",
    "copies.staged",
    "copies.blocking",
    "copies.on_device",
    "codec.digests",
    "codec.ciphers",
    "device.switches",
    "violations",
    "events",
    "device.blocks",
    "device.bytes",
    "device.peak_bytes",
    "pinned.blocks",
    "pinned.bytes",
    "pinned.peak_bytes",
};
static_assert(kNames.size() == static_cast<std::size_t>(Counter::PinnedPeakBytes) + 1);

// Limits the memory that messages take when a program fails in a loop.
constexpr std::size_t kViolationsKept = 100;

struct Skip {
  Counter wait;
  std::int64_t nth;
  std::int64_t seen = 0;
};

std::array<std::atomic<std::int64_t>, kNames.size()> counters;
std::atomic<std::int64_t> byte_limit{kUsualLimit};
std::atomic<bool> pooled{true};
std::atomic<bool> capture{false};

std::mutex mutex;  // guards the variables below
std::optional<Skip> skipped;
// Never destroyed, because the threads of the streams never end and may still use it.
std::vector<std::string>& kept_violations = *new std::vector<std::string>;

std::atomic<std::int64_t>& slot(Counter counter) {
  return counters[static_cast<std::size_t>(counter)];
}

void raise_peak(Counter peak, std::int64_t now) {
  std::int64_t before = slot(peak);
  while (now > before && !slot(peak).compare_exchange_weak(before, now)) {
  }
}

}  // namespace

void add(Counter counter, std::int64_t amount) {
  const std::int64_t now = slot(counter) += amount;
  if (counter == Counter::DeviceBytes) raise_peak(Counter::DevicePeakBytes, now);
  if (counter == Counter::PinnedBytes) raise_peak(Counter::PinnedPeakBytes, now);
}

std::int64_t value(Counter counter) { return slot(counter); }

std::vector<std::string> counter_names() { return {kNames.begin(), kNames.end()}; }

std::vector<std::string> wait_names() {
  return {kNames.begin(), kNames.begin() + static_cast<std::size_t>(Counter::Skipped)};
}

Counter counter_named(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  TORCH_CHECK_VALUE(found != kNames.end(), "no counter is named ", name, ", but ",
                    c10::Join(", ", kNames));
  return static_cast<Counter>(found - kNames.begin());
}

void skip(Counter wait, std::int64_t nth) {
  TORCH_CHECK_VALUE(wait < Counter::Skipped, kNames[static_cast<std::size_t>(wait)],
                    " is not a call that can be left out");
  const std::lock_guard lock(mutex);
  skipped = Skip{wait, nth};
}

void skip_nothing() {
  const std::lock_guard lock(mutex);
  skipped.reset();
}

bool is_left_out(Counter wait) {
  add(wait);
  const std::lock_guard lock(mutex);
  if (!skipped || skipped->wait != wait) return false;
  ++skipped->seen;
  if (skipped->nth != 0 && skipped->nth != skipped->seen) return false;
  add(Counter::Skipped);
  return true;
}

void violation(const std::string& what) {
  add(Counter::Violations);
  const std::lock_guard lock(mutex);
  if (kept_violations.size() < kViolationsKept) kept_violations.push_back(what);
}

std::vector<std::string> violations() {
  const std::lock_guard lock(mutex);
  return kept_violations;
}

void set_limit(std::int64_t bytes) { byte_limit = bytes; }
std::int64_t limit() { return byte_limit; }

void set_pooled(bool is) { pooled = is; }
bool is_pooled() { return pooled; }

void set_capturing(bool capturing) { capture = capturing; }
bool is_capturing() { return capture; }

void check_may_wait(const char* what) {
  TORCH_CHECK(!is_capturing(), "sim: ", what, " is not permitted when a stream is capturing");
}

void reset_control() {
  skip_nothing();
  set_limit(kUsualLimit);
  set_pooled(true);
  set_capturing(false);
  for (Counter counter{}; counter < Counter::Events;
       counter = static_cast<Counter>(static_cast<int>(counter) + 1)) {
    slot(counter) = 0;
  }
  slot(Counter::DevicePeakBytes) = value(Counter::DeviceBytes);
  slot(Counter::PinnedPeakBytes) = value(Counter::PinnedBytes);
  const std::lock_guard lock(mutex);
  kept_violations.clear();
}

}  // namespace sim_device
