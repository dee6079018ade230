#include "transfer/device/staging.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <bit>
#include <optional>
#include <set>

#include "transfer/device/device_checks.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

// Copies on the host in the stream that was current for the caller, and blocks until it is done.
template <typename Copy>
void copy_now(const StagedJob& job, const Elements& tensor, Bytes bytes, const Copy& copy) {
  c10::OptionalStreamGuard guard;
  for (const c10::Stream& home : job.homes) {
    if (home.device() == tensor.device()) guard.reset_stream(home);
  }
  const at::Tensor memory =
      at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
  copy(memory);
}

class HostPort final : public TensorPort {
 public:
  explicit HostPort(const StagedJob& job) : job_(job) {}

  Bytes take(std::size_t size) override { return scratch_.take(size); }
  void put(std::uint32_t number, std::uint64_t position, Bytes bytes) override {
    const c10::InferenceMode mode(job_.inference);
    const Elements& tensor = job_.tensors[number];
    copy_now(job_, tensor, bytes, [&](const at::Tensor& memory) { tensor.put(position, memory); });
  }
  void get(std::uint32_t number, std::uint64_t position, Bytes out) override {
    const c10::InferenceMode mode(job_.inference);
    const Elements& tensor = job_.tensors[number];
    copy_now(job_, tensor, out, [&](const at::Tensor& memory) { tensor.get(position, memory); });
  }
  void wait() override {}

 private:
  const StagedJob& job_;
  Scratch scratch_;
};

// Copies through pinned memory, on one stream of its own for each device.
class PinnedPort final : public TensorPort {
 public:
  explicit PinnedPort(const StagedJob& job)
      : job_(job),
        guard_(job.devices.front()->device()),
        streams_(job.devices.size()),
        checks_(job.devices.size()) {}

  Bytes take(std::size_t size) override {
    note_end();
    current_ = (current_ + 1) % pieces_.size();
    wait_for_current();
    at::Tensor& memory = pieces_[current_].memory;
    if (!memory.defined() || memory.nbytes() < size) {
      memory = at::Tensor();  // frees the old memory before it takes new
      // Allocators round up to powers of two themselves, and then find a cached piece of the same
      // size.
      memory = taking_memory(size, "pinned memory", [&] {
        return at::detail::empty_generic({static_cast<std::int64_t>(std::bit_ceil(size))},
                                         &job_.devices.front()->pinned_memory(),
                                         c10::DispatchKeySet(c10::DispatchKey::CPU), at::kByte,
                                         std::nullopt);
      });
    }
    return tensor_bytes(memory).first(size);
  }

  void put(std::uint32_t number, std::uint64_t position, Bytes bytes) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    const Elements& tensor = job_.tensors[number];
    const std::optional<std::size_t> own = number_of(tensor.device());
    if (!own) {
      copy_now(job_, tensor, bytes,
               [&](const at::Tensor& memory) { tensor.put(position, memory); });
      return;
    }
    const c10::StreamGuard guard(use_stream(*own));
    at::Tensor there = tensor.bytes(position, static_cast<std::int64_t>(bytes.size()));
    const bool direct = there.defined();
    if (!direct) there = bytes_on(tensor.device(), bytes.size());
    there.copy_(part_of_piece(bytes), /*non_blocking=*/true);
    if (!direct) tensor.put(position, there);
  }

  void get(std::uint32_t number, std::uint64_t position, Bytes out) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    const Elements& tensor = job_.tensors[number];
    const std::optional<std::size_t> own = number_of(tensor.device());
    if (!own) {
      copy_now(job_, tensor, out, [&](const at::Tensor& memory) { tensor.get(position, memory); });
      return;
    }
    const c10::StreamGuard guard(use_stream(*own));
    at::Tensor there = tensor.bytes(position, static_cast<std::int64_t>(out.size()));
    if (!there.defined()) {
      there = bytes_on(tensor.device(), out.size());
      tensor.get(position, there);
    }
    part_of_piece(out).copy_(there, /*non_blocking=*/true);
  }

  void wait() override {
    note_end();
    wait_for_current();
  }

  bool can_check(std::uint32_t number) override {
    const Elements& tensor = job_.tensors[number];
    const std::optional<std::size_t> own = number_of(tensor.device());
    return own && job_.can_check[*own] && tensor.is_stored();
  }

  void start(DeviceCheck check) override {
    const c10::InferenceMode mode(job_.inference);
    const Elements& tensor = job_.tensors[check.tensor];
    const std::size_t own = *number_of(tensor.device());
    if (!checks_[own]) checks_[own].emplace(*job_.devices[own]);
    const at::Tensor bytes = tensor.bytes(check.position, static_cast<std::int64_t>(check.size));
    checks_[own]->start(std::move(check), bytes, use_stream(own));
  }

  std::vector<DeviceCheck> ended(bool wait) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    std::vector<DeviceCheck> ended;
    for (std::optional<DeviceChecks>& checks : checks_) {
      if (checks) checks->take_ended(wait, ended);
    }
    return ended;
  }

 private:
  // Pinned memory, and the events that mark the end of the copies between it and each device.
  struct PinnedBuffer {
    at::Tensor memory;
    std::vector<c10::Event> ends;
  };
  struct OwnStream {
    c10::Stream stream;
    bool used;  // since note_end() was called last
  };

  static at::Tensor bytes_on(c10::Device device, std::size_t size) {
    return new_on(device, {static_cast<std::int64_t>(size)}, at::kByte);
  }

  // Returns a view of the piece, so that its allocator keeps the memory until the copy is done.
  at::Tensor part_of_piece(Bytes bytes) const {
    const at::Tensor& piece = pieces_[current_].memory;
    return piece.narrow(0, bytes.data() - const_bytes(piece).data(),
                        static_cast<std::int64_t>(bytes.size()));
  }

  // Returns the number of the device in the job; null if the host copies to and from it.
  std::optional<std::size_t> number_of(c10::Device device) const {
    for (std::size_t i = 0; i < job_.devices.size(); ++i) {
      if (job_.devices[i]->device() == device) return i;
    }
    return std::nullopt;
  }

  const c10::Stream& use_stream(std::size_t device) {
    if (!streams_[device]) streams_[device] = OwnStream{job_.devices[device]->add(), false};
    streams_[device]->used = true;
    return streams_[device]->stream;
  }

  void note_end() {
    for (std::optional<OwnStream>& own : streams_) {
      if (!own || !own->used) continue;
      own->used = false;
      pieces_[current_].ends.emplace_back(own->stream.device_type()).record(own->stream);
    }
  }

  void wait_for_current() {
    for (const c10::Event& end : pieces_[current_].ends) end.synchronize();
    pieces_[current_].ends.clear();
  }

  const StagedJob& job_;
  // Events switch to the device of their stream and back. A new thread begins with device 0;
  // switching back to it would take memory there even if the process does not use it. So the thread
  // stays on a device of the job.
  const c10::DeviceGuard guard_;
  std::vector<std::optional<OwnStream>> streams_;    // by device
  std::vector<std::optional<DeviceChecks>> checks_;  // by device
  std::array<PinnedBuffer, 2> pieces_;
  std::size_t current_ = 0;
};

}  // namespace

std::uint32_t Staging::add(const at::Tensor& tensor, c10::ScalarType stored) {
  job_.tensors.emplace_back(tensor, stored);
  return static_cast<std::uint32_t>(job_.tensors.size() - 1);
}

void Staging::begin() {
  std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> seen;
  job_.inference = c10::InferenceMode::is_enabled();
  for (const Elements& tensor : job_.tensors) {
    const c10::Device device = tensor.device();
    if (device.is_cpu() || !seen.emplace(device.type(), device.index()).second) continue;
    // Pinned memory serves all devices of one type. Devices of a second type are copied to and from
    // by the host.
    const bool serves = !is_pinned() || job_.devices.front()->device().type() == device.type();
    if (auto streams = serves ? CopyStreams::of(device) : nullptr) {
      job_.devices.push_back(std::move(streams));
      job_.can_check.push_back(can_check_on(device));
    } else {
      job_.homes.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
  }
}

std::unique_ptr<TensorPort> Staging::open_port() const {
  if (job_.tensors.empty()) return std::make_unique<DiscardingPort>();
  if (is_pinned()) return std::make_unique<PinnedPort>(job_);
  return std::make_unique<HostPort>(job_);
}

void Staging::finish() {
  for (const std::unique_ptr<CopyStreams>& streams : job_.devices) streams->join();
}

}  // namespace tensorizer
