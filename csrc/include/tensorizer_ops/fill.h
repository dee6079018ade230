// Options for filling the tensors of a module from a file.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "tensorizer_ops/options.h"

namespace tensorizer {

// Which names a file must have: exactly those of the tensors to fill, at least those, or any.
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

}  // namespace tensorizer
