#include "transfer/files/targets.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "transfer/memory/blocks.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/ties.h"

namespace tensorizer {

namespace {

// The least size of a page, and a multiple of every block of a file (Source::block()).
constexpr std::uint64_t kPage = 4096;

void check_memory(const OpenFile& file, std::uint32_t number, const at::Tensor& output) {
  if (const std::string why = lacks_memory(output); !why.empty()) {
    throw Error(ErrorKind::InvalidArgument,
                file.describe_entry(number) + " has an output that cannot be filled: " + why);
  }
}

void check_output(const OpenFile& file, std::uint32_t number, const at::Tensor& output, bool cast) {
  const Entry& entry = file.entry(number);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, file.describe_entry(number) + " " + why);
  };
  check_memory(file, number, output);
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
  if (at::has_internal_overlap(output) == at::MemOverlap::Yes) {
    refuse("has an output whose elements share memory: give it a clone()");
  }
}

// Makes an output the destination of an item.
void set_output(const at::Tensor& output, c10::ScalarType stored, LoadItem& item,
                Targets& targets) {
  if (output.device().is_cpu() && output.is_contiguous() && !output.is_conj() && !output.is_neg() &&
      output.scalar_type() == stored) {
    item.memory = tensor_bytes(output);
  } else {
    item.staged = StagedRange{targets.staging.add(output, stored)};
  }
  output.unsafeGetTensorImpl()->bump_version();
  targets.outputs.emplace_back(item.entry, output);
}

// Sets an output to zero. One output that cannot be zeroed must not keep the others from it.
void blank(const at::Tensor& output) noexcept {
  try {
    make_zero(output);
  } catch (...) {
  }
}

// Returns whether two names are different and have the same data in the file.
bool are_tied(const OpenFile& file, std::uint32_t a, std::uint32_t b) {
  return a != b && file.entry_number(a) == file.entry_number(b);
}

// Throws if two outputs are the same tensor, unless the file ties them.
void check_distinct(const OpenFile& file, std::span<const std::uint32_t> selected,
                    std::span<const at::Tensor> outputs) {
  const std::vector<std::size_t> ties = find_ties(outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (ties[i] == i || outputs[i].is_meta() || outputs[i].numel() == 0) continue;
    if (are_tied(file, selected[ties[i]], selected[i])) continue;
    throw Error(ErrorKind::InvalidArgument, file.describe_entry(selected[i]) +
                                                " has the same output as another tensor: "
                                                "give each tensor its own");
  }
}

// Returns, for each entry that is tied in the file, the place of the output to load it into: the
// first that has its dtype, from which any other output can be copied, or else the first.
std::unordered_map<std::uint32_t, std::size_t> outputs_to_load(
    OpenFile& file, std::span<const std::uint32_t> selected, std::span<const at::Tensor> outputs) {
  std::unordered_map<std::uint32_t, std::size_t> places;
  if (file.catalogue().ties().empty()) return places;
  const auto is_stored = [&](std::size_t place) {
    return outputs[place].scalar_type() == scalar_type(*file.entry(selected[place]).dtype);
  };
  for (std::size_t i = 0; i < selected.size(); ++i) {
    if (outputs[i].is_meta()) continue;
    std::size_t& place = places.try_emplace(file.entry_number(selected[i]), i).first->second;
    if (!is_stored(place) && is_stored(i)) place = i;
  }
  return places;
}

// Returns whether an output can be copied to another one of the same data as if that were loaded.
bool holds_all(const at::Tensor& loaded, const at::Tensor& output, DType stored) {
  return loaded.scalar_type() == scalar_type(stored) ||
         loaded.scalar_type() == output.scalar_type();
}

}  // namespace

NewTensors::NewTensors(OpenFile& file, std::span<const std::uint32_t> selected,
                       const TensorSlices& slices, const LoadRequest& request, Ties ties,
                       bool headers, Cancel& cancel)
    : file_(file),
      selected_(selected),
      slices_(slices),
      request_(request),
      device_(request.device.value_or(c10::Device(c10::kCPU))) {
  if (request.dtype && !is_castable(*request.dtype)) {
    throw Error(ErrorKind::InvalidArgument,
                "dtype is " + dtype_name(*request.dtype) + ", and must be a real floating type");
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
  if (!targets_.mapping && file.options().source.file_access == FileAccess::Mapped) {
    throw Error(ErrorKind::InvalidArgument,
                file.source().label() +
                    ": option 'io' is 'mmap', and these tensors cannot be pages of the file: that "
                    "takes a file that is not encrypted, the CPU, and neither copy=True nor the "
                    "option 'trust'");
  }
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < selected.size(); ++i) size += item_of(i).size();
  NewMemory memory(size);
  std::vector<bool> seen(file.catalogue().entries().size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    pace.step();
    const std::uint32_t number = selected[i];
    const Entry& entry = file.entry(number);
    if (const std::optional<std::size_t> other = tied_to(i)) {
      if (ties == Ties::Shared) {
        tensors_.push_back(same_memory(tensors_[*other]));
        continue;
      }
      const c10::ScalarType type = tensors_[*other].scalar_type();
      tensors_.push_back(naming(number, [&] { return allocate(entry.shape, type, memory); }));
      copies_.emplace_back(i, *other);
      continue;
    }
    LoadItem item = item_of(i);
    if (!entry.dtype) unresolved_.push_back(tensors_.size());
    tensors_.push_back(
        naming(number, [&] { return make(shape_of(i), !seen[item.entry], item, memory); }));
    seen[item.entry] = true;
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
  const std::uint32_t entry = file_.entry_number(selected_[place]);
  return slice != slices_.end() ? slice_item(entry, slice->second)
                                : whole_tensor(file_.catalogue(), entry);
}

std::optional<std::size_t> NewTensors::tied_to(std::size_t place) {
  if (file_.catalogue().ties().empty() || slices_.contains(place)) return std::nullopt;
  const std::uint32_t entry = file_.entry_number(selected_[place]);
  const std::size_t first = whole_.try_emplace(entry, place).first->second;
  if (!are_tied(file_, selected_[first], selected_[place])) return std::nullopt;
  return first;
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
// first tensor of each entry uses the mapping.
at::Tensor NewTensors::make(at::IntArrayRef shape, bool first, LoadItem& item, NewMemory& memory) {
  const Entry& entry = file_.catalogue().entries()[item.entry];
  if (!entry.dtype) {
    const at::Tensor tensor =
        allocate({static_cast<std::int64_t>(entry.data_size)}, at::kByte, memory);
    fill(tensor, at::kByte, item);
    return tensor;
  }
  const c10::ScalarType stored = scalar_type(*entry.dtype);
  const c10::ScalarType type = type_of(file_.catalogue().number_of(item.entry), stored);
  if (entry.meta) return zeros(shape, type);
  const std::uint64_t offset = entry.data_offset + item.range.position;
  if (targets_.mapping && first && type == stored && item.size() > 0 && item.runs == nullptr &&
      offset % entry.element_size == 0) {
    item.memory = targets_.mapping->bytes().subspan(offset, item.size());
    item.in_place = true;
    return mapped_tensor(targets_.mapping, item.memory, shape, type);
  }
  const std::uint64_t shift = offset % std::min<std::uint64_t>(file_.source().block(), kPage);
  const bool fits = type == stored && item.runs == nullptr && shift % entry.element_size == 0;
  const at::Tensor tensor = allocate(shape, type, memory, fits ? shift : 0);
  if (item.size() > 0) fill(tensor, stored, item);
  return tensor;
}

at::Tensor NewTensors::allocate(at::IntArrayRef shape, c10::ScalarType type, NewMemory& memory,
                                std::uint64_t shift) const {
  return device_.is_cpu() ? memory.tensor(shape, type, shift) : new_on(device_, shape, type);
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

std::vector<at::Tensor> NewTensors::finish(Cancel& cancel) {
  for (const auto& [to, from] : copies_) copy_elements(tensors_[to], tensors_[from], cancel);
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

void check_outputs(const OpenFile& file, std::span<const std::uint32_t> selected,
                   std::span<const at::Tensor> outputs, bool cast, Cancel& cancel) {
  Pace pace(cancel);
  for (std::size_t i = 0; i < selected.size(); ++i) {
    pace.step();
    check_output(file, selected[i], outputs[i], cast);
  }
  check_distinct(file, selected, outputs);
}

Targets given_tensors(OpenFile& file, std::span<const std::uint32_t> selected,
                      std::span<const at::Tensor> outputs, Verify verify) {
  const at::NoGradGuard no_grad;
  Targets targets;
  const auto loaded = outputs_to_load(file, selected, outputs);
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Entry& entry = file.entry(selected[i]);
    const at::Tensor& output = outputs[i];
    const auto first = loaded.find(file.entry_number(selected[i]));
    if (first != loaded.end() && are_tied(file, selected[i], selected[first->second])) {
      const at::Tensor& other = outputs[first->second];
      if (output.is_meta() || MemoryKey(output) == MemoryKey(other)) continue;
      if (holds_all(other, output, *entry.dtype)) {
        targets.tied.push_back({output, other});
        continue;
      }
    }
    LoadItem item = whole_tensor(file.catalogue(), file.entry_number(selected[i]));
    if (entry.meta) {
      make_zero(output);
    } else if (entry.data_size > 0 && !output.is_meta()) {
      set_output(output, scalar_type(*entry.dtype), item, targets);
    }
    const bool moves = item.staged || !item.memory.empty();
    const bool checked = verify != Verify::None && entry.data_size == 0;
    if (moves || checked) targets.items.push_back(item);
  }
  return targets;
}

Targets ranges_of_tensors(OpenFile& file, std::span<const std::uint32_t> selected,
                          std::span<const std::int64_t> starts, std::span<const at::Tensor> outputs,
                          std::span<std::uint8_t> arrived) {
  const at::NoGradGuard no_grad;
  Targets targets;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Entry& entry = file.entry(selected[i]);
    const at::Tensor& output = outputs[i];
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorKind::InvalidArgument, file.describe_entry(selected[i]) + " " + why);
    };
    check_memory(file, selected[i], output);
    const c10::ScalarType stored = scalar_type(file.dtype(selected[i]));
    const std::uint64_t element_size = c10::elementSize(stored);
    const std::uint64_t elements = entry.data_size / element_size;
    const auto start = static_cast<std::uint64_t>(starts[i]);
    const auto count = static_cast<std::uint64_t>(output.numel());
    if (starts[i] < 0 || start > elements || count > elements - start) {
      refuse("has " + std::to_string(elements) + " elements, and not " + std::to_string(count) +
             " from " + std::to_string(starts[i]) + " on");
    }
    if (!fits(stored, output.scalar_type(), /*cast=*/true)) {
      refuse("is " + dtype_name(stored) + ", and its output is " +
             dtype_name(output.scalar_type()));
    }
    LoadItem item{file.entry_number(selected[i]), {start * element_size, count * element_size}};
    if (!arrived.empty()) {
      item.arrived = &arrived[i];
      *item.arrived = item.size() == 0 ? 1 : 0;
    }
    if (item.size() == 0) continue;
    if (!output.is_meta()) set_output(output, stored, item, targets);
    targets.items.push_back(item);
  }
  return targets;
}

void blank(const Targets& targets, const std::vector<bool>& entries) noexcept {
  for (const auto& [entry, output] : targets.outputs) {
    if (entries[entry]) blank(output);
  }
  for (const TiedOutput& tied : targets.tied) blank(tied.output);
}

void copy_tied(const Targets& targets, bool checks, Cancel& cancel) {
  const at::NoGradGuard no_grad;
  std::size_t done = 0;
  try {
    for (const TiedOutput& tied : targets.tied) {
      copy_elements(tied.output, tied.loaded, cancel);
      ++done;
    }
  } catch (...) {
    for (; checks && done < targets.tied.size(); ++done) blank(targets.tied[done].output);
    throw;
  }
}

}  // namespace tensorizer
