// Controls for tests: ways to break the device on purpose, and counters of what it did.
//
// Everything here may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sim_device {

enum class Counter {
  // Calls that wait, or that delay the reuse of memory still in use. Each can be skipped.
  EventBlock,
  EventQuery,
  EventSynchronize,
  StreamQuery,
  StreamSynchronize,
  DeviceSynchronize,
  RecordDataPtr,
  HostRecordEvent,
  // The number of these calls that were skipped.
  Skipped,
  // Copies. A copy is staged if the host's memory is not pinned, not contiguous, or has to be
  // converted: it goes through a temporary tensor, and a copy to the device has read the host's
  // memory when it returns. A copy is blocking if the host waited for its end. A copy can be both.
  AsyncToDevice,
  AsyncToHost,
  Staged,
  Blocking,
  OnDevice,
  // Digests and ciphers that the device computed itself.
  OwnDigests,
  OwnCiphers,
  // Calls on an event of a device other than the thread's current one. CUDA switches to that device
  // and back, and the switch back allocates memory on a device that the program may not use at all.
  DeviceSwitches,
  // Things that no correct program does: see violation().
  Violations,
  // Current amounts, and their peaks.
  Events,
  DeviceBlocks,
  DeviceBytes,
  DevicePeakBytes,
  PinnedBlocks,
  PinnedBytes,
  PinnedPeakBytes,
};

void add(Counter counter, std::int64_t amount = 1);
std::int64_t value(Counter counter);
// Returns the names of all counters, in the order of Counter.
std::vector<std::string> counter_names();
// Returns the names of the calls that can be skipped.
std::vector<std::string> wait_names();
// Throws if no counter has that name; the message lists all names.
Counter counter_named(const std::string& name);

// Makes the calls that `wait` counts do nothing: all of them if `nth` is 0, otherwise only the nth
// from now. Replaces the previous skip.
void skip(Counter wait, std::int64_t nth);
void skip_nothing();
// Counts a call, and returns whether it must do nothing.
bool is_left_out(Counter wait);

// Records that the program did something that fails on a real device, if only sometimes.
void violation(const std::string& what);
std::vector<std::string> violations();

// The initial limit of the bytes that can be allocated on one device, as large as a small device's
// memory: a program that asks for far too much gets a device's out-of-memory error and does not
// fill the machine's memory.
inline constexpr std::int64_t kUsualLimit = std::int64_t{4} << 30;
void set_limit(std::int64_t bytes);
std::int64_t limit();

// Sets whether the device has streams besides the default one. Initially it has.
void set_pooled(bool pooled);
bool is_pooled();

// While this is set, every stream reports that it is being captured, and the host must not wait.
void set_capturing(bool capturing);
bool is_capturing();
// Throws during a capture. `what` names a call that makes the host wait.
void check_may_wait(const char* what);

// Resets settings, counts and violations. Current amounts keep their values, and peaks start from
// them.
void reset_control();

}  // namespace sim_device
