// Slices of tensors that a caller asks for, as bytes to load.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "engine/load/load.h"
#include "engine/open/open_file.h"
#include "tensorizer_ops/reader.h"

namespace tensorizer {

struct TensorSlice {
  std::vector<std::int64_t> shape;
  Runs runs;  // none if the file has no data of the tensor
};

// By the place of the tensor among those that are loaded.
using TensorSlices = std::map<std::size_t, TensorSlice>;

// Returns the slices of the selected tensors. Throws InvalidArgument for a slice that does not fit
// its tensor, and for one of a tensor whose dtype is not known in advance.
TensorSlices slices_of(const OpenFile& file, std::span<const std::uint32_t> selected,
                       std::span<const SlicedDimension> dimensions, Cancel& cancel);

// Returns an item for the bytes of a slice, without a destination. It may point to the slice.
LoadItem slice_item(std::uint32_t entry, const TensorSlice& slice);

}  // namespace tensorizer
