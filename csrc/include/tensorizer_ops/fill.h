// How the tensors of a module are filled from a file.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "tensorizer_ops/options.h"

namespace tensorizer {

// Which names a file must have: exactly those that are to be filled, at least those, or any.
enum class Names { Same, All, Any };

struct FillRequest {
  std::optional<c10::Device> device;  // where each tensor is, if not given
  Names names = Names::Same;
  Verify verify = Verify::None;
  std::int64_t threads = 0;  // that compute; 0 is every CPU that the process may use
  // Whether a real floating tensor may have another dtype in the file; it is cast.
  bool cast = false;
  // The dtype that real floating tensors get, with `cast`; each keeps its own if not given.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

}  // namespace tensorizer
