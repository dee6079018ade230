// What a test sets and reads: ways to break the device on purpose, and counts of what it did.
//
// Everything here may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sim_device {

enum class Counter {
  // Calls that wait, or that make others wait for what is still in use. Each can be left out.
  EventBlock,
  EventQuery,
  EventSynchronize,
  StreamQuery,
  StreamSynchronize,
  DeviceSynchronize,
  RecordDataPtr,
  HostRecordEvent,
  // How many of these were left out.
  Skipped,
  // Copies. Those from memory that is not pinned, or that has to be converted on its way, read it
  // at once: they are staged. Where the host waited for the end of a copy, it was blocking, too.
  AsyncToDevice,
  AsyncToHost,
  Staged,
  Blocking,
  OnDevice,
  // Digests and ciphers that the device computed itself.
  OwnDigests,
  OwnCiphers,
  // Calls for an event on another device than the thread's current one. CUDA switches to it and
  // back, and the switch back takes memory on a device that the program may not use at all.
  DeviceSwitches,
  // What no correct program does: see violation().
  Violations,
  // What there is now, and the most there was.
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
// The names of all counters, in their order.
std::vector<std::string> counter_names();
// Of those, the ones that can be left out.
std::vector<std::string> wait_names();
// Throws where there is none of that name, and says which there are.
Counter counter_named(const std::string& name);

// From now on, the calls that `wait` counts do nothing: all of them, or only the n-th from now,
// where `nth` is not 0. Takes the place of what was to be skipped before.
void skip(Counter wait, std::int64_t nth);
void skip_nothing();
// Counts a call, and says whether it must do nothing.
bool is_left_out(Counter wait);

// Notes that a program did what goes wrong on a real device, if only sometimes.
void violation(const std::string& what);
std::vector<std::string> violations();

// The bytes that may be held on one device. At first it is what a small device has: a program that
// asks for much too much gets the answer of a device, and does not fill the machine.
inline constexpr std::int64_t kUsualLimit = std::int64_t{4} << 30;
void set_limit(std::int64_t bytes);
std::int64_t limit();

// Whether the device has streams beside the default one, as it has at first.
void set_pooled(bool pooled);
bool is_pooled();

// While this is set, every stream says that it is being captured, and the host must not wait.
void set_capturing(bool capturing);
bool is_capturing();
// Throws when `what`, which makes the host wait, is called during a capture.
void check_may_wait(const char* what);

// Forgets settings, counts and violations. What there is now stays counted.
void reset_control();

}  // namespace sim_device
