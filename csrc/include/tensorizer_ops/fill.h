// Options and results of filling the tensors of a module from a file.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorizer_ops/options.h"

namespace tensorizer {

// Which names a file must have: exactly those of the tensors to fill, at least those, or any. If
// there are tensors on both sides, at least one name must be the same.
enum class Names { Same, All, Any };

struct FillRequest {
  std::optional<c10::Device> device;  // each tensor's own if not given
  Names names = Names::Same;
  Verify verify = Verify::None;
  std::int64_t threads = 0;  // that compute; 0 is every CPU that the process may use
  // Whether a real floating tensor may have another dtype in the file; it is cast.
  bool cast = false;
  // The dtype that real floating tensors get, with `cast`; each keeps its own if not given.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

// The names that only one side has, where the request allows that, as load_state_dict() of torch
// returns them.
struct IncompatibleKeys {
  // Of tensors that were not filled: the first name of each.
  std::vector<std::string> missing_keys;
  std::vector<std::string> unexpected_keys;  // that only the file has
};

struct Filled {
  std::vector<at::Tensor> tensors;  // in the order in which they were given
  IncompatibleKeys keys;
};

}  // namespace tensorizer
