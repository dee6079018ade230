#include "streams.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "control.h"

namespace sim_device {

namespace {

constexpr std::size_t kPoolSize = 8;

struct Queue {
  c10::Stream stream;
  std::size_t number;
  std::deque<std::function<void()>> waiting{};
  std::uint64_t given = 0;
  std::uint64_t wanted = 0;  // the position up to which work is waited or asked for
  std::uint64_t done = 0;
  Clock clock{};  // the work that is over when the next work starts
  bool has_thread = false;
};

struct Streams {
  std::mutex mutex;  // guards all members
  std::condition_variable changed;
  bool lazy = true;
  Clock host;                                  // the work that the program knows to be over
  std::vector<std::unique_ptr<Queue>> queues;  // by number
  std::array<std::vector<Queue*>, kDevices> of_device;
  std::array<std::size_t, kDevices> next_in_pool{};

  Streams() {
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      for (c10::StreamId id = 0; id <= static_cast<c10::StreamId>(kPoolSize); ++id) {
        const c10::Stream stream(c10::Stream::UNSAFE, c10::Device(kSim, device), id);
        queues.push_back(std::make_unique<Queue>(Queue{.stream = stream, .number = queues.size()}));
        of_device.at(static_cast<std::size_t>(device)).push_back(queues.back().get());
      }
    }
  }

  Queue& queue(const c10::Stream& stream) {
    TORCH_CHECK(stream.device_type() == kSim, stream, " is not a stream of this device");
    const std::vector<Queue*>& streams =
        of_device.at(static_cast<std::size_t>(stream.device_index()));
    return *streams.at(static_cast<std::size_t>(stream.id()));
  }
};

// Never destroyed, because the threads of the streams never end and may still use it.
Streams& streams() {
  static Streams* const all = new Streams;
  return *all;
}

[[noreturn]] void work_on(Queue& queue) {
  Streams& all = streams();
  std::unique_lock lock(all.mutex);
  for (;;) {
    all.changed.wait(lock, [&] { return queue.done < queue.wanted; });
    std::function<void()> work = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    lock.unlock();
    try {
      work();
    } catch (const std::exception& error) {
      violation(std::string("work of a stream failed: ") + error.what());
    }
    work = nullptr;
    lock.lock();
    ++queue.done;
    all.changed.notify_all();
  }
}

void start_thread(Queue& queue) {
  // Signals belong to the program's own threads.
  sigset_t every;
  sigset_t before;
  sigfillset(&every);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&every, fault);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  std::thread([&queue] { work_on(queue); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  queue.has_thread = true;
}

// The caller holds the mutex.
void want(Queue& queue, std::uint64_t position) {
  if (position <= queue.wanted) return;
  queue.wanted = position;
  if (!queue.has_thread) start_thread(queue);
  streams().changed.notify_all();
}

// Blocks the calling thread, which may be the thread of another stream, until the work up to
// `position` is done.
void await(std::size_t number, std::uint64_t position) {
  std::unique_lock lock(streams().mutex);
  Queue& queue = *streams().queues[number];
  want(queue, position);
  streams().changed.wait(lock, [&] { return queue.done >= position; });
}

// The caller holds the mutex.
Moment end_of(const Queue& queue) { return {queue.number, queue.given, queue.clock}; }

// The caller holds the mutex.
Moment give(Queue& queue, std::function<void()> work) {
  queue.waiting.push_back(std::move(work));
  ++queue.given;
  queue.clock.join(streams().host);
  queue.clock.set(queue.number, queue.given);
  if (!streams().lazy) want(queue, queue.given);
  return end_of(queue);
}

std::array<c10::StreamId, kDevices>& current() {
  thread_local std::array<c10::StreamId, kDevices> ids{};
  return ids;
}

}  // namespace

std::uint64_t Clock::of(std::size_t number) const {
  return number < positions_.size() ? positions_[number] : 0;
}

void Clock::set(std::size_t number, std::uint64_t position) {
  if (number >= positions_.size()) positions_.resize(number + 1);
  positions_[number] = std::max(positions_[number], position);
}

void Clock::join(const Clock& other) {
  for (std::size_t i = 0; i < other.positions_.size(); ++i) set(i, other.positions_[i]);
}

Moment enqueue(const c10::Stream& stream, std::function<void()> work) {
  const std::lock_guard lock(streams().mutex);
  return give(streams().queue(stream), std::move(work));
}

Moment end_of(const c10::Stream& stream) {
  const std::lock_guard lock(streams().mutex);
  return end_of(streams().queue(stream));
}

bool starts_after(const c10::Stream& stream, const Moment& moment) {
  const std::lock_guard lock(streams().mutex);
  return std::max(streams().queue(stream).clock.of(moment.stream),
                  streams().host.of(moment.stream)) >= moment.position;
}

void wait_in_stream(const c10::Stream& stream, const Moment& moment) {
  const std::lock_guard lock(streams().mutex);
  Queue& queue = streams().queue(stream);
  if (queue.number == moment.stream) return;
  queue.clock.join(moment.past);
  give(queue, [number = moment.stream, position = moment.position] { await(number, position); });
}

void wait_on_host(const Moment& moment) {
  await(moment.stream, moment.position);
  const std::lock_guard lock(streams().mutex);
  streams().host.join(moment.past);
}

bool is_known_over(const Moment& moment) {
  if (!is_over(moment)) return false;
  const std::lock_guard lock(streams().mutex);
  streams().host.join(moment.past);
  return true;
}

bool is_over(const Moment& moment) {
  const std::lock_guard lock(streams().mutex);
  Queue& queue = *streams().queues[moment.stream];
  if (queue.done >= moment.position) return true;
  want(queue, moment.position);
  return false;
}

void settle() {
  std::vector<Moment> ends;
  {
    const std::lock_guard lock(streams().mutex);
    for (const auto& queue : streams().queues) ends.push_back(end_of(*queue));
  }
  for (const Moment& end : ends) await(end.stream, end.position);
}

void set_lazy(bool lazy) {
  const std::lock_guard lock(streams().mutex);
  streams().lazy = lazy;
  if (lazy) return;
  for (const auto& queue : streams().queues) want(*queue, queue->given);
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kSim, device));
}

c10::Stream pool_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(streams().mutex);
  std::size_t& next = streams().next_in_pool.at(static_cast<std::size_t>(device));
  const std::size_t id = 1 + next++ % kPoolSize;
  return streams().of_device.at(static_cast<std::size_t>(device)).at(id)->stream;
}

void* handle_of(const c10::Stream& stream) {
  const auto device = static_cast<std::size_t>(stream.device_index());
  return streams().of_device.at(device).at(static_cast<std::size_t>(stream.id()));
}

c10::Stream stream_of(void* handle) { return static_cast<const Queue*>(handle)->stream; }

std::vector<c10::Stream> streams_of(c10::DeviceIndex device) {
  std::vector<c10::Stream> found;
  for (const Queue* queue : streams().of_device.at(static_cast<std::size_t>(device))) {
    found.push_back(queue->stream);
  }
  return found;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, device),
                     current().at(static_cast<std::size_t>(device)));
}

c10::Stream exchange_current_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  current().at(static_cast<std::size_t>(stream.device_index())) = stream.id();
  return before;
}

}  // namespace sim_device
