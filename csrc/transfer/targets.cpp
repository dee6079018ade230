#include "transfer/targets.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "transfer/blocks.h"
#include "transfer/dtype.h"
#include "transfer/memory.h"

namespace tensorizer {

namespace {

void check_output(const OpenFile& file, std::uint32_t number, const at::Tensor& output, bool cast) {
  const Entry& entry = file.entry(number);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, file.describe_entry(number) + " " + why);
  };
  if (output.layout() != c10::kStrided) refuse("needs an output that is strided");
  if (const std::string why = lacks_memory(output); !why.empty()) {
    refuse("has an output that cannot be filled: " + why);
  }
  if (!output.sizes().equals(entry.shape)) {
    refuse("has the shape " + c10::str(at::IntArrayRef(entry.shape)) + ", and its output has " +
           c10::str(output.sizes()));
  }
  if (!entry.dtype) {
    refuse("has a dtype that is stored only with its data: use load() instead");
  }
  const c10::ScalarType stored = scalar_type(*entry.dtype);
  if (!fits(stored, output.scalar_type(), cast)) {
    const bool would = fits(stored, output.scalar_type(), true);
    refuse("is " + dtype_name(stored) + ", and its output is " + dtype_name(output.scalar_type()) +
           (would ? ": cast=True casts it" : ""));
  }
  if (output.requires_grad() && at::GradMode::is_enabled()) {
    refuse("has an output that requires grad: load under torch.no_grad()");
  }
  if (at::has_internal_overlap(output) == at::MemOverlap::Yes) {
    refuse("has an output whose elements share memory: give it a clone()");
  }
}

// Throws if two outputs are the same tensor, which would hold a mix of both. Outputs that share
// memory in another way may be correct, as in a module that also keeps a view of one of its
// tensors.
void check_distinct(const OpenFile& file, std::span<const std::uint32_t> selected,
                    std::span<const at::Tensor> outputs) {
  std::unordered_multimap<const void*, std::size_t> places;
  places.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    if (output.is_meta() || output.numel() == 0) continue;
    const auto [first, last] = places.equal_range(output.const_data_ptr());
    const bool is_taken = std::any_of(first, last, [&](const auto& place) {
      const at::Tensor& other = outputs[place.second];
      return other.device() == output.device() && other.sizes() == output.sizes() &&
             other.strides() == output.strides() && other.dtype() == output.dtype() &&
             other.is_conj() == output.is_conj() && other.is_neg() == output.is_neg();
    });
    if (is_taken) {
      throw Error(ErrorKind::InvalidArgument, file.describe_entry(selected[i]) +
                                                  " has the same output as another tensor: "
                                                  "give each tensor its own");
    }
    places.emplace(output.const_data_ptr(), i);
  }
}

}  // namespace

NewTensors::NewTensors(OpenFile& file, std::span<const std::uint32_t> selected,
                       const TensorSlices& slices, const LoadRequest& request, bool headers,
                       Cancel& cancel)
    : file_(file),
      selected_(selected),
      slices_(slices),
      request_(request),
      device_(request.device.value_or(c10::Device(c10::kCPU))) {
  if (request.dtype && !is_castable(*request.dtype)) {
    throw Error(ErrorKind::InvalidArgument, std::string("dtype is ") +
                                                c10::toString(*request.dtype) +
                                                ", and must be a real floating type");
  }
  tensors_.reserve(selected.size());
  Pace pace(cancel);
  if (device_.is_meta()) {
    for (std::size_t i = 0; i < selected.size(); ++i) {
      pace.step();
      const c10::ScalarType type = type_of(selected[i], scalar_type(file.dtype(selected[i])));
      tensors_.push_back(at::empty(shape_of(i), at::TensorOptions().device(device_).dtype(type)));
    }
    return;
  }
  if (!device_.is_cpu()) at::globalContext().lazyInitDevice(device_.type());
  if (!request.copy && device_.is_cpu()) targets_.mapping = file.map();
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < selected.size(); ++i) size += item_of(i).size();
  NewMemory memory(size);
  std::vector<bool> seen(file.names().size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    pace.step();
    const std::uint32_t number = selected[i];
    const Entry& entry = file.entry(number);
    LoadItem item = item_of(i);
    if (!entry.dtype) unresolved_.push_back(tensors_.size());
    tensors_.push_back(
        naming(number, [&] { return make(shape_of(i), !seen[number], item, memory); }));
    seen[number] = true;
    // Data in place is read only to be verified.
    const bool moves = !item.in_place && (item.size() > 0 || !entry.dtype);
    if (moves || request.verify != Verify::None || headers) targets_.items.push_back(item);
  }
}

at::IntArrayRef NewTensors::shape_of(std::size_t place) const {
  const auto slice = slices_.find(place);
  return slice != slices_.end() ? at::IntArrayRef(slice->second.shape)
                                : at::IntArrayRef(file_.entry(selected_[place]).shape);
}

LoadItem NewTensors::item_of(std::size_t place) const {
  const auto slice = slices_.find(place);
  return slice != slices_.end() ? slice_item(selected_[place], slice->second)
                                : whole_tensor(file_.catalogue(), selected_[place]);
}

c10::ScalarType NewTensors::type_of(std::uint32_t number, c10::ScalarType stored) const {
  const c10::ScalarType type = cast_type(stored, request_.dtype);
  const std::uint64_t elements = file_.entry(number).memory_size() / c10::elementSize(stored);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (elements > kMost / c10::elementSize(type)) {
    throw Error(ErrorKind::InvalidFormat,
                file_.describe_entry(number) + " has " + std::to_string(elements) +
                    " elements, which are 2^63 bytes or more as " + dtype_name(type));
  }
  return type;
}

template <typename Make>
at::Tensor NewTensors::naming(std::uint32_t number, const Make& make) const {
  try {
    return make();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::OutOfMemory) throw;
    throw Error(error.kind(), file_.describe_entry(number) + ": " + std::string(error.message()));
  }
}

// Creates one tensor and sets in `item` how to fill it. No two results share memory, so only the
// first tensor of each name uses the mapping.
at::Tensor NewTensors::make(at::IntArrayRef shape, bool first, LoadItem& item, NewMemory& memory) {
  const Entry& entry = file_.entry(item.entry);
  if (!entry.dtype) {
    const at::Tensor tensor =
        allocate({static_cast<std::int64_t>(entry.data_size)}, at::kByte, memory);
    fill(tensor, at::kByte, item);
    return tensor;
  }
  const c10::ScalarType stored = scalar_type(*entry.dtype);
  const c10::ScalarType type = type_of(item.entry, stored);
  if (entry.meta) return zeros(shape, type);
  const std::uint64_t offset = entry.data_offset + item.range.position;
  if (targets_.mapping && first && type == stored && item.size() > 0 && item.runs == nullptr &&
      offset % entry.element_size == 0) {
    item.memory = targets_.mapping->bytes().subspan(offset, item.size());
    item.in_place = true;
    return mapped_tensor(targets_.mapping, item.memory, shape, type);
  }
  const at::Tensor tensor = allocate(shape, type, memory);
  if (item.size() > 0) fill(tensor, stored, item);
  return tensor;
}

at::Tensor NewTensors::allocate(at::IntArrayRef shape, c10::ScalarType type,
                                NewMemory& memory) const {
  return device_.is_cpu() ? memory.tensor(shape, type) : new_on(device_, shape, type);
}

at::Tensor NewTensors::zeros(at::IntArrayRef shape, c10::ScalarType type) const {
  if (device_.is_cpu()) return new_zeros(shape, type);
  const at::Tensor tensor = new_on(device_, shape, type);
  make_zero(tensor);
  return tensor;
}

void NewTensors::fill(const at::Tensor& tensor, c10::ScalarType stored, LoadItem& item) {
  if (device_.is_cpu() && tensor.scalar_type() == stored) {
    item.memory = tensor_bytes(tensor);
  } else {
    item.staged = StagedRange{targets_.staging.add(tensor, stored)};
  }
}

std::vector<at::Tensor> NewTensors::finish() {
  for (const std::size_t i : unresolved_) {
    const Entry& entry = file_.entry(selected_[i]);
    const c10::ScalarType stored = scalar_type(*entry.dtype);
    const c10::ScalarType type = type_of(selected_[i], stored);
    if (entry.meta) {
      tensors_[i] = naming(selected_[i], [&] { return zeros(entry.shape, type); });
      continue;
    }
    tensors_[i] = tensors_[i].view(stored).view(entry.shape);
    if (type == stored) continue;
    tensors_[i] = naming(selected_[i], [&] {
      return taking_memory(byte_size(entry.shape, type), "memory on " + device_.str(),
                           [&] { return tensors_[i].to(type); });
    });
  }
  return std::move(tensors_);
}

Targets given_tensors(OpenFile& file, std::span<const std::uint32_t> selected,
                      std::span<const at::Tensor> outputs, Verify verify, bool cast,
                      Cancel& cancel) {
  Pace pace(cancel);
  for (std::size_t i = 0; i < selected.size(); ++i) {
    pace.step();
    check_output(file, selected[i], outputs[i], cast);
  }
  check_distinct(file, selected, outputs);
  const at::NoGradGuard no_grad;
  Targets targets;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Entry& entry = file.entry(selected[i]);
    const at::Tensor& output = outputs[i];
    LoadItem item = whole_tensor(file.catalogue(), selected[i]);
    if (entry.meta) {
      make_zero(output);
    } else if (entry.data_size > 0 && !output.is_meta()) {
      const c10::ScalarType stored = scalar_type(*entry.dtype);
      if (output.device().is_cpu() && output.is_contiguous() && !output.is_conj() &&
          !output.is_neg() && output.scalar_type() == stored) {
        item.memory = tensor_bytes(output);
      } else {
        item.staged = StagedRange{targets.staging.add(output, stored)};
      }
      output.unsafeGetTensorImpl()->bump_version();
      targets.outputs.emplace_back(selected[i], output);
    }
    const bool moves = item.staged || !item.memory.empty();
    const bool checked = verify != Verify::None && entry.data_size == 0;
    if (moves || checked) targets.items.push_back(item);
  }
  return targets;
}

Targets no_tensors(OpenFile& file) {
  Targets targets;
  targets.items = file.all_items();
  return targets;
}

}  // namespace tensorizer
