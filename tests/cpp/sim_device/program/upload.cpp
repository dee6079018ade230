// A program without Python that copies bytes to a device through a ring of pinned memory, on its
// own stream. It uses only torch's generic interfaces, so it would work on any device.
//
//   upload DEVICE BYTES [LEFT_OUT [NTH]]    prints "right" or "wrong", and the violations
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <vector>

#include "../control.h"

namespace {

constexpr std::int64_t kSlotBytes = 4096;
constexpr std::size_t kSlots = 3;

struct Slot {
  at::Tensor memory;
  c10::Event free;
};

// Returns pinned memory whose storage keeps the allocator's context. By that context a copy finds
// the block that must wait for it, also if it copies only a part. A tensor made from a pointer has
// none.
at::Tensor pinned(c10::DeviceType type, std::int64_t size) {
  return at::detail::empty_generic({size}, at::getHostAllocator(type),
                                   c10::DispatchKeySet(c10::DispatchKey::CPU), c10::kByte,
                                   std::nullopt);
}

void upload(const std::vector<std::uint8_t>& bytes, const at::Tensor& target) {
  const c10::impl::VirtualGuardImpl backend(target.device().type());
  const c10::DeviceGuard device(target.device());
  const c10::Stream home = backend.getStream(target.device());
  const c10::Stream side = backend.getStreamFromGlobalPool(target.device());

  // The memory belongs to the caller's stream, which may still have work to do on it.
  c10::Event allocated(target.device().type());
  allocated.record(home);
  allocated.block(side);
  backend.recordDataPtrOnStream(target.storage().data_ptr(), side);

  std::vector<Slot> ring;
  const auto size = static_cast<std::int64_t>(bytes.size());
  for (std::int64_t at = 0, turn = 0; at < size; at += kSlotBytes, ++turn) {
    const std::size_t number = static_cast<std::size_t>(turn) % kSlots;
    if (number == ring.size()) {
      ring.push_back({pinned(target.device().type(), kSlotBytes), c10::Event(side.device_type())});
    }
    Slot& slot = ring[number];
    slot.free.synchronize();
    const std::int64_t count = std::min(kSlotBytes, size - at);
    std::memcpy(slot.memory.mutable_data_ptr(), bytes.data() + at, static_cast<std::size_t>(count));
    const c10::StreamGuard stream(side);
    target.narrow(0, at, count).copy_(slot.memory.narrow(0, 0, count), /*non_blocking=*/true);
    slot.free.record(side);
  }

  c10::Event done(target.device().type());
  done.record(side);
  done.block(home);
}

}  // namespace

int main(int count, char** arguments) {
  const c10::Device device(arguments[1]);
  std::vector<std::uint8_t> bytes(std::stoul(arguments[2]));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i % 251);
  at::globalContext().lazyInitDevice(device.type());
  if (count > 3) {
    sim_device::skip(sim_device::counter_named(arguments[3]),
                     count > 4 ? std::stol(arguments[4]) : 0);
  }

  at::Tensor target = at::empty({static_cast<std::int64_t>(bytes.size())},
                                at::TensorOptions().dtype(c10::kByte).device(device));
  upload(bytes, target);
  const at::Tensor back = target.cpu();
  const bool right = std::memcmp(back.const_data_ptr(), bytes.data(), bytes.size()) == 0;
  std::cout << (right ? "right" : "wrong") << "\n";
  target.reset();
  for (const std::string& violation : sim_device::violations()) std::cout << violation << "\n";
}
