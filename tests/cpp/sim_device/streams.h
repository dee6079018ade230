// Streams of work, and moments in them.
//
// A stream has a thread of its own that does its work in order. A lazy device, which is what it is
// at first, does work only as far as someone waits for it or asks for it: on the host, or in a
// stream that is itself waited for. So whoever forgets to wait finds nothing done. A device that
// is not lazy works as soon as it can.
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

// How much of the work of each stream is over, as far as someone knows. This is what tells work
// that happens to be done from work that is known to be done.
class Clock {
 public:
  std::uint64_t of(std::size_t number) const;
  void set(std::size_t number, std::uint64_t position);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> positions_;  // by the number of the stream
};

// A moment in a stream: when all the work is done that it had been given at some time.
struct Moment {
  std::size_t stream = 0;  // its number
  std::uint64_t position = 0;
  Clock past;  // what is over, in all streams, once this moment is
};

// Gives a stream work to do, and returns the moment when it is done. Work that throws is a
// violation. `work` and what it holds are destroyed on the thread of the stream.
Moment enqueue(const c10::Stream& stream, std::function<void()> work);
// The moment when a stream has done all it has to do now.
Moment end_of(const c10::Stream& stream);
// Whether work that is given to `stream` now is certain to start after `moment`.
bool starts_after(const c10::Stream& stream, const Moment& moment);

// Makes the work that `stream` is given from now on wait for `moment`.
void wait_in_stream(const c10::Stream& stream, const Moment& moment);
// Blocks the calling thread until `moment` is over; from now on the host knows that it is.
void wait_on_host(const Moment& moment);
// Whether `moment` is over; if not, it will be soon. The host knows what this says.
bool is_known_over(const Moment& moment);
// The same, but nobody learns of it: for what the device does by itself.
bool is_over(const Moment& moment);
// Blocks the calling thread until all streams have done their work; nobody learns of it.
void settle();

void set_lazy(bool lazy);

c10::Stream default_stream(c10::DeviceIndex device);
// One of a few, in turn.
c10::Stream pool_stream(c10::DeviceIndex device);
std::vector<c10::Stream> streams_of(c10::DeviceIndex device);

// The stream of the calling thread.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_current_stream(const c10::Stream& stream);

}  // namespace sim_device
