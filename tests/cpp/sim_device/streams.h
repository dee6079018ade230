// Streams of work, and moments in them.
//
// Each stream has its own thread, which does its work in order. The device is initially lazy: it
// does work only as far as it is waited for or asked for, by the host or by a stream that is itself
// waited for. So a program that forgets to wait finds nothing done. A device that is not lazy works
// as soon as it can.
//
// Everything here may be called from any thread. Streams live as long as the process.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace sim_device {

inline constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kDevices = 2;

// A vector clock: how much of the work of each stream is known to be over, to the host or to a
// stream. It distinguishes work that is known to be done from work that only happens to be done.
class Clock {
 public:
  std::uint64_t of(std::size_t number) const;
  void set(std::size_t number, std::uint64_t position);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> positions_;  // by the number of the stream
};

// A moment in a stream: the point at which all work that it had been given by some time is done.
struct Moment {
  std::size_t stream = 0;  // its number
  std::uint64_t position = 0;
  Clock past;  // the work of all streams that is over once this moment is
};

// Gives a stream work, and returns the moment when it is done. Work that throws is a violation.
// `work` and what it holds are destroyed on the stream's thread.
Moment enqueue(const c10::Stream& stream, std::function<void()> work);
// Returns the moment when a stream has done all work that it has now.
Moment end_of(const c10::Stream& stream);
// Returns whether work that is given to `stream` now is certain to start after `moment`.
bool starts_after(const c10::Stream& stream, const Moment& moment);

// Makes the work that `stream` is given from now on wait for `moment`.
void wait_in_stream(const c10::Stream& stream, const Moment& moment);
// Blocks the calling thread until `moment` is over. The host knows from then on that it is.
void wait_on_host(const Moment& moment);
// Returns whether `moment` is over, which the host knows from then on. If it is not, starts the
// work up to it.
bool is_known_over(const Moment& moment);
// Like is_known_over(), but the host's knowledge does not change: for what the device does itself.
bool is_over(const Moment& moment);
// Blocks the calling thread until all streams have done their work. The host's knowledge does not
// change.
void settle();

void set_lazy(bool lazy);

c10::Stream default_stream(c10::DeviceIndex device);
// Returns one of a fixed set of streams, in turn.
c10::Stream pool_stream(c10::DeviceIndex device);
std::vector<c10::Stream> streams_of(c10::DeviceIndex device);

// Return the handle of a stream, by which a library without torch knows it, and its stream.
void* handle_of(const c10::Stream& stream);
c10::Stream stream_of(void* handle);

// Returns the calling thread's current stream on `device`.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_current_stream(const c10::Stream& stream);

}  // namespace sim_device
