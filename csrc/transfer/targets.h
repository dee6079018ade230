// Where the tensors of a load go.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/load.h"
#include "engine/open_file.h"
#include "io/mapping.h"
#include "tensorizer_ops/reader.h"
#include "transfer/memory.h"
#include "transfer/staging.h"

namespace tensorizer {

// What the engine is to fill; valid while this lives.
struct Targets {
  std::vector<LoadItem> items;
  std::shared_ptr<Mapping> mapping;
  Staging staging;
  // As in LoadSettings.
  std::function<void(std::uint32_t entry, const TensorHeader& header)> keep_header;
  // Outputs of the caller's, by their entries.
  std::vector<std::pair<std::uint32_t, at::Tensor>> outputs;
};

// Tensors that a load makes.
class NewTensors {
 public:
  // Checks the request before anything is made. `headers`: whether the headers of all tensors are
  // read, also of those for which nothing else needs them.
  NewTensors(OpenFile& file, std::span<const std::uint32_t> selected, const LoadRequest& request,
             bool headers);
  Targets& targets() noexcept { return targets_; }
  // The tensors, once the targets are filled.
  std::vector<at::Tensor> finish();

 private:
  // The type that a tensor gets. Throws where it has more bytes of that type than can be counted.
  c10::ScalarType type_of(std::uint32_t number, c10::ScalarType stored) const;
  // Names the tensor where there is no memory for it.
  template <typename Make>
  at::Tensor naming(std::uint32_t number, const Make& make) const;
  at::Tensor make(std::uint32_t number, bool first, LoadItem& item, NewMemory& memory);
  at::Tensor allocate(at::IntArrayRef shape, c10::ScalarType type, NewMemory& memory) const;
  at::Tensor zeros(at::IntArrayRef shape, c10::ScalarType type) const;
  void fill(const at::Tensor& tensor, c10::ScalarType stored, LoadItem& item);

  OpenFile& file_;
  const std::span<const std::uint32_t> selected_;
  const LoadRequest& request_;
  const c10::Device device_;
  Targets targets_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::size_t> unresolved_;  // whose dtype comes with their data
};

// Tensors that the caller gives. Every shape, dtype and output is checked before any is touched.
// With `cast`, a real floating tensor fits an output of any such dtype.
Targets given_tensors(OpenFile& file, std::span<const std::uint32_t> selected,
                      std::span<const at::Tensor> outputs, Verify verify, bool cast);

// All of the file, to be looked at and not kept.
Targets no_tensors(OpenFile& file);

}  // namespace tensorizer
