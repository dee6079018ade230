#include "transfer/device/copy_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"

namespace tensorizer {

namespace {

// Torch 2.11 has no such query; its own error appears at the first wait then.
template <typename Backend>
bool is_capturing(const Backend& backend, const c10::Stream& stream) {
  if constexpr (requires { backend.isStreamCapturing(stream); }) {
    return backend.isStreamCapturing(stream);
  }
  return false;
}

// A backend without a pool of streams throws.
bool has_streams(const c10::impl::VirtualGuardImpl& backend, c10::Device device) {
  try {
    backend.getStreamFromGlobalPool(device);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

at::HostAllocator* find_pinned_memory(c10::DeviceType type) {
  try {
    return at::getHostAllocator(type);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

}  // namespace

c10::Event end_of(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

std::unique_ptr<CopyStreams> CopyStreams::of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl backend(device.type());
  const c10::Stream home = backend.getStream(device);
  if (is_capturing(backend, home)) {
    throw Error(ErrorKind::InvalidArgument,
                "a stream of " + device.str() +
                    " is being captured into a graph, which cannot load or save when it is "
                    "replayed: do it before the capture");
  }
  at::HostAllocator* pinned_memory = find_pinned_memory(device.type());
  if (!pinned_memory || !has_streams(backend, device)) return nullptr;
  return std::unique_ptr<CopyStreams>(new CopyStreams(home, *pinned_memory));
}

CopyStreams::CopyStreams(c10::Stream home, at::HostAllocator& pinned_memory)
    : home_(home), pinned_memory_(pinned_memory), before_(end_of(home)), copies_(add()) {}

c10::Stream CopyStreams::add() {
  const std::lock_guard lock(mutex_);
  const c10::impl::VirtualGuardImpl backend(home_.device_type());
  streams_.push_back(backend.getStreamFromGlobalPool(home_.device()));
  before_.block(streams_.back());
  return streams_.back();
}

void CopyStreams::join() {
  for (const c10::Stream& stream : streams_) {
    end_of(stream).block(home_);
  }
  joined_ = true;
}

CopyStreams::~CopyStreams() {
  if (joined_) return;
  for (const c10::Stream& stream : streams_) {
    try {
      stream.synchronize();
    } catch (...) {  // a device that has failed copies nothing any more
    }
  }
}

}  // namespace tensorizer
