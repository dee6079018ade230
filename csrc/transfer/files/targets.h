// The destinations of a load: which tensors are filled, and through which memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/load/load.h"
#include "engine/open/open_file.h"
#include "io/mapping.h"
#include "tensorizer_ops/reader.h"
#include "transfer/device/staging.h"
#include "transfer/files/slices.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

// How a load treats tensors that are tied in the file: they share memory, or each has its own.
enum class Ties : std::uint8_t { Shared, Apart };

// An output whose data the load puts into another output of the same type, or of the file's type.
struct TiedOutput {
  at::Tensor output;
  at::Tensor loaded;
};

// What the engine fills. Must outlive the load, because it owns the mapping and the staging.
struct Targets {
  std::vector<LoadItem> items;
  std::shared_ptr<Mapping> mapping;
  Staging staging;
  // Called as LoadSettings::keep_details is.
  std::function<void(std::uint32_t entry, const TensorDetails& details)> keep_details;
  // The tensors that the caller passed to be filled, with the numbers of their entries.
  std::vector<std::pair<std::uint32_t, at::Tensor>> outputs;
  std::vector<TiedOutput> tied;  // to be copied when the others are filled
};

// The tensors that a load creates.
class NewTensors {
 public:
  // Checks the request before it allocates anything. `headers` says whether to read the headers of
  // all tensors, including those that nothing else requires. The references must outlive the load.
  NewTensors(OpenFile& file, std::span<const std::uint32_t> selected, const TensorSlices& slices,
             const LoadRequest& request, Ties ties, bool headers, Cancel& cancel);
  Targets& targets() noexcept { return targets_; }
  // Returns the tensors. Call it once, after the targets have been filled.
  std::vector<at::Tensor> finish(Cancel& cancel);

 private:
  // Returns the dtype that a tensor gets. Throws Error(InvalidFormat) if the tensor would have 2^63
  // bytes or more in that dtype.
  c10::ScalarType type_of(std::uint32_t number, c10::ScalarType stored) const;
  // Calls `make`, and adds the tensor's name to an Error(OutOfMemory).
  template <typename Make>
  at::Tensor naming(std::uint32_t number, const Make& make) const;
  // Return the shape and the bytes that are loaded of the tensor at a place.
  at::IntArrayRef shape_of(std::size_t place) const;
  LoadItem item_of(std::size_t place) const;
  // Returns the place of a tensor that has another name and the same data, and is loaded in whole;
  // null if this one must be loaded.
  std::optional<std::size_t> tied_to(std::size_t place);
  at::Tensor make(at::IntArrayRef shape, bool first, LoadItem& item, NewMemory& memory);
  at::Tensor allocate(at::IntArrayRef shape, c10::ScalarType type, NewMemory& memory,
                      std::uint64_t shift = 0) const;
  at::Tensor zeros(at::IntArrayRef shape, c10::ScalarType type) const;
  void fill(const at::Tensor& tensor, c10::ScalarType stored, LoadItem& item);

  OpenFile& file_;
  const std::span<const std::uint32_t> selected_;
  const TensorSlices& slices_;
  const LoadRequest& request_;
  const c10::Device device_;
  Targets targets_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::size_t> unresolved_;  // tensors whose dtype is read with their data
  std::unordered_map<std::uint32_t, std::size_t> whole_;     // by entry, if the file has ties
  std::vector<std::pair<std::size_t, std::size_t>> copies_;  // the places to copy to and from
};

// Throws for an output that cannot be filled. With `cast`, a real floating tensor fits an output of
// any real floating dtype.
void check_outputs(const OpenFile& file, std::span<const std::uint32_t> selected,
                   std::span<const at::Tensor> outputs, bool cast, Cancel& cancel);

// Returns targets for tensors that the caller passes, after check_outputs().
Targets given_tensors(OpenFile& file, std::span<const std::uint32_t> selected,
                      std::span<const at::Tensor> outputs, Verify verify);

// Returns targets for ranges of elements, counted in row-major order, each from a start on to the
// size of its output. Outputs may have another real floating dtype. Ranges with an output on the
// meta device are only checked. Without `arrived`, or with a LoadItem::arrived for each range.
Targets ranges_of_tensors(OpenFile& file, std::span<const std::uint32_t> selected,
                          std::span<const std::int64_t> starts, std::span<const at::Tensor> outputs,
                          std::span<std::uint8_t> arrived);

// Sets the outputs of the given entries to zero, because they may hold incomplete or unverified
// data, and those that still have to be copied. Ignores failures: the caller already has an error
// to report.
void blank(const Targets& targets, const std::vector<bool>& entries) noexcept;

// Copies the outputs of tied tensors from those that are filled and verified. On an error, sets the
// others to zero if the load `checks` anything.
void copy_tied(const Targets& targets, bool checks, Cancel& cancel);

}  // namespace tensorizer
