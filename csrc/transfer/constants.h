// Packages of AOTInductor that were made without their weights.
#pragma once

#include <string>

#include "transfer/fill.h"

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace tensorizer {

struct ConstantsRequest {
  // Whether a name that only the file has is an error. Programs leave out what they do not use, and
  // contain small constants themselves, so a state dict often has more. One that only the program
  // has always is.
  bool strict = false;
  Verify verify = Verify::None;
  std::int64_t threads = 0;
};

// Fills the constants of a package, made with `aot_inductor.package_constants_in_so` false, under
// the names that its program has for them: straight into the memory where the program uses them.
void load_constants(torch::inductor::AOTIModelPackageLoader& package, const std::string& uri,
                    const ConstantsRequest& request = {}, const OptionList& options = {});

}  // namespace tensorizer
