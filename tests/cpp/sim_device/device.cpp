#include "device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>
#include <utility>

#include "control.h"
#include "memory.h"
#include "streams.h"

namespace sim_device {

namespace {

thread_local c10::DeviceIndex device_of_thread = 0;

using TimePoint = std::chrono::steady_clock::time_point;

struct Event {
  Event() { add(Counter::Events); }
  ~Event() { add(Counter::Events, -1); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Moment moment;
  std::shared_ptr<TimePoint> time;  // when the stream reached the event, if it measures time
};

Event& event_at(void* event) { return *static_cast<Event*>(event); }

void count_switch(c10::DeviceIndex device) {
  if (device != device_of_thread) add(Counter::DeviceSwitches);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSim; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return c10::Device(kSim, current_device()); }
  void setDevice(c10::Device device) const override { exchange_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    device_of_thread = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kSim, exchange_current_device(device.index()));
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(with_index(device).index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(with_index(device).index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    TORCH_CHECK(is_pooled(), "sim: no streams from a pool");
    return pool_stream(with_index(device).index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return pool_stream(with_index(device).index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }

  bool queryStream(const c10::Stream& stream) const override {
    return is_left_out(Counter::StreamQuery) || is_known_over(end_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check_may_wait("synchronizing a stream");
    if (!is_left_out(Counter::StreamSynchronize)) wait_on_host(end_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_may_wait("synchronizing a device");
    if (is_left_out(Counter::DeviceSynchronize)) return;
    for (const c10::Stream& stream : streams_of(device < 0 ? current_device() : device)) {
      wait_on_host(end_of(stream));
    }
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(stream); }
  // Without `override`, because torch 2.11 does not declare this function.
  bool isStreamCapturing(const c10::Stream&) const { return is_capturing(); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "sim: an event of device ", device,
                " cannot be recorded in a stream of device ", stream.device_index());
    count_switch(stream.device_index());
    if (*event == nullptr) *event = new Event;
    Event& recorded = event_at(*event);
    if (flag == c10::EventFlag::BACKEND_DEFAULT) {
      recorded.time = std::make_shared<TimePoint>();
      recorded.moment =
          enqueue(stream, [time = recorded.time] { *time = std::chrono::steady_clock::now(); });
    } else {
      recorded.moment = end_of(stream);
    }
  }
  void block(void* event, const c10::Stream& stream) const override {
    count_switch(stream.device_index());
    if (!is_left_out(Counter::EventBlock)) wait_in_stream(stream, event_at(event).moment);
  }
  bool queryEvent(void* event) const override {
    return is_left_out(Counter::EventQuery) || is_known_over(event_at(event).moment);
  }
  void synchronizeEvent(void* event) const override {
    check_may_wait("synchronizing an event");
    if (!is_left_out(Counter::EventSynchronize)) wait_on_host(event_at(event).moment);
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event != nullptr) count_switch(device);
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto elapsed = *event_at(second).time - *event_at(first).time;
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data && !is_left_out(Counter::RecordDataPtr)) use_on_stream(data.get(), stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::DeviceIndex current_device() { return device_of_thread; }

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device < kDevices, "sim: there is no device ", static_cast<int>(device), ", only ",
              static_cast<int>(kDevices));
  return device < 0 ? device_of_thread : std::exchange(device_of_thread, device);
}

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::Device(kSim, current_device());
}

}  // namespace sim_device
