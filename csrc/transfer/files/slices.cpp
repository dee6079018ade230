#include "transfer/files/slices.h"

#include <c10/util/StringUtil.h>

#include "base/error.h"

namespace tensorizer {

namespace {

// The parts of all dimensions of one tensor; a dimension without a slice has a step of 0.
using Parts = std::vector<DimensionPart>;

bool lies_within(const SlicedDimension& slice, std::int64_t size) {
  if (slice.start < 0 || slice.length < 0 || slice.step < 1 || slice.start > size) return false;
  if (slice.length == 0) return true;
  return slice.start < size && slice.length - 1 <= (size - 1 - slice.start) / slice.step;
}

void take(const OpenFile& file, std::uint32_t number, const SlicedDimension& slice, Parts& parts) {
  const auto shape = file.entry(number).shape;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, file.describe_entry(number) + " has the shape " +
                                                c10::str(c10::IntArrayRef(shape)) + why);
  };
  if (slice.dimension < 0 || slice.dimension >= static_cast<std::int64_t>(shape.size())) {
    refuse(", and no dimension " + std::to_string(slice.dimension));
  }
  const auto dimension = static_cast<std::size_t>(slice.dimension);
  if (parts[dimension].step > 0) {
    refuse(", and two slices of dimension " + std::to_string(slice.dimension));
  }
  if (!lies_within(slice, shape[dimension])) {
    refuse(", and dimension " + std::to_string(slice.dimension) + " does not have " +
           std::to_string(slice.length) + " elements from " + std::to_string(slice.start) +
           " on with a step of " + std::to_string(slice.step));
  }
  parts[dimension] = {static_cast<std::uint64_t>(slice.start),
                      static_cast<std::uint64_t>(slice.length),
                      static_cast<std::uint64_t>(slice.step)};
}

TensorSlice slice_of(const OpenFile& file, std::uint32_t number, Parts& parts) {
  const Entry& entry = file.entry(number);
  file.dtype(number);
  std::vector<std::int64_t> shape;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    DimensionPart& part = parts[i];
    if (part.step == 0) part = {0, static_cast<std::uint64_t>(entry.shape[i])};
    shape.push_back(static_cast<std::int64_t>(part.length));
  }
  // Of a tensor without data nothing is loaded, and its shape may have any size.
  if (entry.data_size == 0) return {std::move(shape), Runs({}, 0, {})};
  Runs runs(entry.shape, entry.element_size, parts);
  return {std::move(shape), std::move(runs)};
}

}  // namespace

TensorSlices slices_of(const OpenFile& file, std::span<const std::uint32_t> selected,
                       std::span<const SlicedDimension> dimensions, Cancel& cancel) {
  Pace pace(cancel);
  std::map<std::size_t, Parts> parts;
  for (const SlicedDimension& slice : dimensions) {
    pace.step();
    if (slice.tensor < 0 || slice.tensor >= static_cast<std::int64_t>(selected.size())) {
      throw Error(ErrorKind::InvalidArgument,
                  "a slice is of tensor number " + std::to_string(slice.tensor) + " of the " +
                      std::to_string(selected.size()) + " names: they are numbered from 0 on");
    }
    const auto place = static_cast<std::size_t>(slice.tensor);
    const std::uint32_t number = selected[place];
    Parts& known = parts.try_emplace(place, file.entry(number).shape.size(), DimensionPart{0, 0, 0})
                       .first->second;
    take(file, number, slice, known);
  }
  TensorSlices slices;
  for (auto& [place, known] : parts) {
    pace.step();
    slices.emplace(place, slice_of(file, selected[place], known));
  }
  return slices;
}

LoadItem slice_item(std::uint32_t entry, const TensorSlice& slice) {
  LoadItem item{entry, slice.runs.range()};
  if (!slice.runs.is_one_run()) item.runs = &slice.runs;
  return item;
}

}  // namespace tensorizer
