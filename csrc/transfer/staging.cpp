#include "transfer/staging.h"

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

#include "transfer/device_codec.h"
#include "transfer/memory.h"

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
class PinnedPort final : public TensorPort, private DeviceCodec {
 public:
  explicit PinnedPort(const StagedJob& job)
      : job_(job), guard_(job.devices.front()->device()), streams_(job.devices.size()) {
    for (const auto& streams : job.devices) {
      has_codec_.push_back(has_device_codec(streams->device()));
    }
  }

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
    return Bytes(static_cast<std::byte*>(memory.mutable_data_ptr()), size);
  }

  void put(std::uint32_t number, std::uint64_t position, Bytes bytes) override {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    const Elements& tensor = job_.tensors[number];
    const c10::Stream* stream = stream_of(tensor.device());
    if (!stream) {
      copy_now(job_, tensor, bytes,
               [&](const at::Tensor& memory) { tensor.put(position, memory); });
      return;
    }
    const c10::StreamGuard guard(*stream);
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
    const c10::Stream* stream = stream_of(tensor.device());
    if (!stream) {
      copy_now(job_, tensor, out, [&](const at::Tensor& memory) { tensor.get(position, memory); });
      return;
    }
    const c10::StreamGuard guard(*stream);
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

  DeviceCodec* codec(std::uint32_t number) override {
    const Elements& tensor = job_.tensors[number];
    if (!tensor.all_bytes().defined() || tensor.all_bytes().numel() == 0) return nullptr;
    for (std::size_t i = 0; i < job_.devices.size(); ++i) {
      if (job_.devices[i]->device() == tensor.device()) return has_codec_[i] ? this : nullptr;
    }
    return nullptr;
  }

 private:
  // The methods below are only called for tensors for which codec() returned this.
  template <typename Work>
  auto on_stream_of(std::uint32_t number, const Work& work) {
    const c10::InferenceMode mode(job_.inference);
    const at::NoGradGuard no_grad;
    const Elements& tensor = job_.tensors[number];
    const c10::StreamGuard guard(*stream_of(tensor.device()));
    return work(tensor.all_bytes());
  }

  Digests digest(std::uint32_t number, const DigestStart& start) override {
    return on_stream_of(number,
                        [&](const at::Tensor& bytes) { return digest_on_device(bytes, start); });
  }

  bool decrypt(std::uint32_t number, std::uint64_t position, std::uint64_t size,
               const ChunkKey& key, ConstBytes mac) override {
    return on_stream_of(number, [&](const at::Tensor& bytes) {
      return decrypt_on_device(part_of(bytes, position, size), key, mac);
    });
  }

  Mac encrypt(std::uint32_t number, std::uint64_t position, Bytes out,
              const ChunkKey& key) override {
    return on_stream_of(number, [&](const at::Tensor& bytes) {
      return encrypt_on_device(part_of(bytes, position, out.size()), part_of_piece(out), key);
    });
  }

  static at::Tensor part_of(const at::Tensor& bytes, std::uint64_t position, std::uint64_t size) {
    return bytes.narrow(0, static_cast<std::int64_t>(position), static_cast<std::int64_t>(size));
  }

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
    return piece.narrow(0, bytes.data() - static_cast<const std::byte*>(piece.const_data_ptr()),
                        static_cast<std::int64_t>(bytes.size()));
  }

  const c10::Stream* stream_of(c10::Device device) {
    for (std::size_t i = 0; i < job_.devices.size(); ++i) {
      if (job_.devices[i]->device() != device) continue;
      if (!streams_[i]) streams_[i] = OwnStream{job_.devices[i]->add(), false};
      streams_[i]->used = true;
      return &streams_[i]->stream;
    }
    return nullptr;
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
  std::vector<std::optional<OwnStream>> streams_;  // by device
  std::vector<bool> has_codec_;                    // by device
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
