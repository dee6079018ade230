#include "transfer/device/staging.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <set>
#include <utility>

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

// Copies through pinned memory, on the stream for copies of each device.
class PinnedPort final : public TensorPort {
 public:
  explicit PinnedPort(StagedJob& job)
      : job_(job), guard_(job.devices.front()->device()), used_(job.devices.size(), false) {
    job_.blocks->add_worker();
  }

  Bytes take(std::size_t size) override {
    give_back();
    block_ = job_.blocks->take(size, job_.devices.front()->pinned_memory());
    return tensor_bytes(block_->memory).first(size);
  }

  void put(std::uint32_t number, std::uint64_t position, Bytes bytes) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    const Elements& tensor = job_.tensors[number];
    const std::optional<std::size_t> own = job_.number_of(tensor.device());
    if (!own) {
      copy_now(job_, tensor, bytes,
               [&](const at::Tensor& memory) { tensor.put(position, memory); });
      return;
    }
    const c10::StreamGuard guard(use_copies(*own));
    at::Tensor there = tensor.bytes(position, static_cast<std::int64_t>(bytes.size()));
    const bool direct = there.defined();
    if (!direct) there = bytes_on(tensor.device(), bytes.size());
    there.copy_(part_of_block(bytes), /*non_blocking=*/true);
    if (!direct) tensor.put(position, there);
  }

  void get(std::uint32_t number, std::uint64_t position, Bytes out) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    const Elements& tensor = job_.tensors[number];
    const std::optional<std::size_t> own = job_.number_of(tensor.device());
    if (!own) {
      copy_now(job_, tensor, out, [&](const at::Tensor& memory) { tensor.get(position, memory); });
      return;
    }
    const c10::StreamGuard guard(use_copies(*own));
    at::Tensor there = tensor.bytes(position, static_cast<std::int64_t>(out.size()));
    if (!there.defined()) {
      there = bytes_on(tensor.device(), out.size());
      tensor.get(position, there);
    }
    part_of_block(out).copy_(there, /*non_blocking=*/true);
  }

  void wait() override {
    if (!block_) return;
    note_end();
    block_->wait();
  }

  void start(DeviceCheck check) override {
    const c10::InferenceMode mode(job_.inference);
    const Elements& tensor = job_.tensors[check.tensor];
    const at::Tensor bytes = tensor.bytes(check.position, static_cast<std::int64_t>(check.size));
    job_.checks[*job_.number_of(tensor.device())]->start(std::move(check), bytes);
  }

  std::vector<DeviceCheck> ended(bool wait) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    std::vector<DeviceCheck> ended;
    for (const std::unique_ptr<DeviceChecks>& checks : job_.checks) {
      if (checks) checks->take_ended(wait, ended);
    }
    return ended;
  }

 private:
  static at::Tensor bytes_on(c10::Device device, std::size_t size) {
    return new_on(device, {static_cast<std::int64_t>(size)}, at::kByte);
  }

  // Returns a view of the block, so that its allocator keeps the memory until the copy is done.
  at::Tensor part_of_block(Bytes bytes) const {
    const at::Tensor& block = block_->memory;
    return block.narrow(0, bytes.data() - const_bytes(block).data(),
                        static_cast<std::int64_t>(bytes.size()));
  }

  const c10::Stream& use_copies(std::size_t device) {
    used_[device] = true;
    return job_.devices[device]->copies();
  }

  void note_end() {
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (!used_[i]) continue;
      used_[i] = false;
      const c10::Stream& copies = job_.devices[i]->copies();
      std::vector<c10::Event>& ends = block_->ends;
      while (ends.size() <= i) ends.emplace_back(copies.device_type());
      ends[i].record(copies);
      block_->is_copied = true;
    }
  }

  void give_back() {
    if (!block_) return;
    note_end();
    job_.blocks->give_back(*std::exchange(block_, std::nullopt));
  }

  StagedJob& job_;
  // Events switch to the device of their stream and back. A new thread begins with device 0;
  // switching back to it would take memory there even if the process does not use it. So the thread
  // stays on a device of the job.
  const c10::DeviceGuard guard_;
  std::optional<PinnedBlock> block_;
  std::vector<bool> used_;  // by device: whether copies use the block since note_end()
};

}  // namespace

std::optional<std::size_t> StagedJob::number_of(c10::Device device) const {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i]->device() == device) return i;
  }
  return std::nullopt;
}

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
      job_.checks.push_back(can_check_on(device) ? std::make_unique<DeviceChecks>(*streams)
                                                 : nullptr);
      job_.devices.push_back(std::move(streams));
    } else {
      job_.homes.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
  }
}

bool Staging::can_check(std::uint32_t number) const {
  const Elements& tensor = job_.tensors[number];
  const std::optional<std::size_t> own = job_.number_of(tensor.device());
  return own && job_.checks[*own] != nullptr && tensor.is_stored();
}

std::uint64_t Staging::last_chunks() const {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < job_.checks.size(); ++i) {
    if (job_.checks[i]) most = std::max(most, last_chunks_for(job_.devices[i]->device()));
  }
  return most;
}

std::unique_ptr<TensorPort> Staging::open_port() {
  if (job_.tensors.empty()) return std::make_unique<DiscardingPort>();
  if (is_pinned()) return std::make_unique<PinnedPort>(job_);
  return std::make_unique<HostPort>(job_);
}

void Staging::finish() {
  for (const std::unique_ptr<CopyStreams>& streams : job_.devices) streams->join();
}

}  // namespace tensorizer
