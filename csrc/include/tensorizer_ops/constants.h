// AOTInductor packages that were compiled without their weights.
#pragma once

#include <cstdint>
#include <string>

#include "tensorizer_ops/fill.h"

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace tensorizer {

struct ConstantsRequest {
  // Whether a name that only the file has is an error. Programs leave out what they do not use, and
  // contain small constants themselves, so a state dict often has more. A name that only the
  // program has is always an error.
  bool strict = true;
  Verify verify = Verify::None;
  std::int64_t threads = 0;  // that compute; 0 is every CPU that the process may use
};

// Fills the constants of a package that was made with `aot_inductor.package_constants_in_so` false,
// under the names that its program has for them, directly in the memory that the program uses. The
// package must not run meanwhile. Returns the names that only the file has, if they are allowed.
// Throws what Reader::fill() throws.
IncompatibleKeys load_constants(torch::inductor::AOTIModelPackageLoader& package,
                                const std::string& uri, const ConstantsRequest& request = {},
                                const OptionList& options = {});

}  // namespace tensorizer
