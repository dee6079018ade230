#include "transfer/staging.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <array>
#include <bit>
#include <optional>
#include <set>

namespace tensorizer {

namespace {

using Direction = Staging::Direction;

void copy_now(const Elements& tensor, std::uint64_t position, const at::Tensor& bytes,
              Direction direction) {
  if (direction == Direction::Load) {
    tensor.put(position, bytes);
  } else {
    tensor.get(position, bytes);
  }
}

// The host copies, and waits for each copy.
class HostStage final : public HeapStage {
 public:
  HostStage(const std::vector<Elements>& tensors, Direction direction)
      : tensors_(tensors), direction_(direction) {}

  void pass(std::uint32_t tensor, std::uint64_t position, Bytes bytes) override {
    const at::Tensor memory =
        at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
    copy_now(tensors_[tensor], position, memory, direction_);
  }

 private:
  const std::vector<Elements>& tensors_;
  const Direction direction_;
};

// Devices copy, each on a stream of this stage's own.
class PinnedStage final : public Stage {
 public:
  PinnedStage(const std::vector<Elements>& tensors,
              const std::vector<std::unique_ptr<SideStreams>>& devices, Direction direction)
      : tensors_(tensors), devices_(devices), direction_(direction), streams_(devices.size()) {}

  Bytes take(std::size_t size) override {
    note_end();
    current_ = (current_ + 1) % pieces_.size();
    wait_for_current();
    at::Tensor& memory = pieces_[current_].memory;
    if (!memory.defined() || memory.nbytes() < size) {
      memory = at::Tensor();  // frees the old memory before it takes new
      // Allocators round to powers of two themselves, and find a piece of the same size again.
      memory = at::detail::empty_generic(
          {static_cast<std::int64_t>(std::bit_ceil(size))}, &devices_.front()->pinned_memory(),
          c10::DispatchKeySet(c10::DispatchKey::CPU), at::kByte, std::nullopt);
    }
    return Bytes(static_cast<std::byte*>(memory.mutable_data_ptr()), size);
  }

  void pass(std::uint32_t number, std::uint64_t position, Bytes bytes) override {
    const at::NoGradGuard no_grad;
    const Elements& tensor = tensors_[number];
    const auto size = static_cast<std::int64_t>(bytes.size());
    const c10::Stream* stream = stream_of(tensor.device());
    if (!stream) {
      copy_now(tensor, position, at::from_blob(bytes.data(), {size}, at::kByte), direction_);
      return;
    }
    const c10::StreamGuard guard(*stream);
    // A part of the piece, which its allocator therefore keeps until the copy is done.
    const at::Tensor& piece = pieces_[current_].memory;
    at::Tensor memory =
        piece.narrow(0, bytes.data() - static_cast<const std::byte*>(piece.const_data_ptr()), size);
    at::Tensor there = tensor.bytes(position, size);
    const bool direct = there.defined();
    if (!direct) there = at::empty({size}, at::TensorOptions(tensor.device()).dtype(at::kByte));
    if (direction_ == Direction::Load) {
      there.copy_(memory, /*non_blocking=*/true);
      if (!direct) tensor.put(position, there);
    } else {
      if (!direct) tensor.get(position, there);
      memory.copy_(there, /*non_blocking=*/true);
    }
  }

  void wait() override {
    note_end();
    wait_for_current();
  }

 private:
  // Pinned memory, and when the copies between it and each device are done.
  struct Piece {
    at::Tensor memory;
    std::vector<c10::Event> ends;
  };
  struct OwnStream {
    c10::Stream stream;
    bool used;  // since the last end was noted
  };

  const c10::Stream* stream_of(c10::Device device) {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i]->device() != device) continue;
      if (!streams_[i]) streams_[i] = OwnStream{devices_[i]->add(), false};
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

  const std::vector<Elements>& tensors_;
  const std::vector<std::unique_ptr<SideStreams>>& devices_;
  const Direction direction_;
  std::vector<std::optional<OwnStream>> streams_;  // by device
  std::array<Piece, 2> pieces_;
  std::size_t current_ = 0;
};

}  // namespace

std::uint32_t Staging::add(const at::Tensor& tensor, c10::ScalarType stored) {
  tensors_.emplace_back(tensor, stored);
  return static_cast<std::uint32_t>(tensors_.size() - 1);
}

void Staging::begin() {
  std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> seen;
  for (const Elements& tensor : tensors_) {
    const c10::Device device = tensor.device();
    if (!seen.emplace(device.type(), device.index()).second) continue;
    // Pinned memory serves all devices of a kind; those of a second kind are copied to as the host
    // copies.
    if (is_pinned() && devices_.front()->device().type() != device.type()) continue;
    if (auto streams = SideStreams::of(device)) devices_.push_back(std::move(streams));
  }
}

std::unique_ptr<Stage> Staging::make_stage() const {
  if (tensors_.empty()) return std::make_unique<HeapStage>();
  if (is_pinned()) return std::make_unique<PinnedStage>(tensors_, devices_, direction_);
  return std::make_unique<HostStage>(tensors_, direction_);
}

void Staging::finish() {
  for (const std::unique_ptr<SideStreams>& streams : devices_) streams->join();
}

}  // namespace tensorizer
