#include "tensorizer_ops/constants.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <unordered_map>

#include "transfer/files/fill.h"

namespace tensorizer {

namespace {

using Package = torch::inductor::AOTIModelPackageLoader;
using Constants = std::unordered_map<std::string, at::Tensor>;

// Returns a tensor that has strides and no bytes. A package allocates its constants when it is
// given tensors to copy: it takes their strides, but its own shapes, and copies the bytes that they
// have. So tensors without bytes make it allocate memory to be filled, without a second copy of the
// weights anywhere.
at::Tensor without_bytes(at::IntArrayRef strides, c10::ScalarType type) {
  return at::empty_strided(std::vector<std::int64_t>(strides.size(), 0), strides, type);
}

template <typename AnyPackage>
void give(AnyPackage& package, Constants& constants) {
  if constexpr (requires { package.load_constants(constants, false, true, false, true); }) {
    // The tensors are on the CPU, whatever device the program runs on.
    package.load_constants(constants, false, true, false, true);
  } else {
    package.load_constants(constants, false, true);
  }
}

// Makes the package allocate its constants, and returns them with the program's shapes, to be
// filled.
Constants allocate(Package& package) {
  constexpr std::size_t kMostDimensions = 64;
  const std::vector<std::int64_t> no_strides(kMostDimensions, 0);
  Constants constants;
  for (const std::string& name : package.get_constant_fqns()) {
    constants.emplace(name, without_bytes(no_strides, at::kByte));
  }
  // The first call shows the shapes, from which the second one gets the strides.
  give(package, constants);
  for (const auto& [name, tensor] : package.get_runner()->extract_constants_map(false)) {
    constants[name] = without_bytes(c10::contiguous_strides(tensor.sizes()), tensor.scalar_type());
  }
  give(package, constants);
  return package.get_runner()->extract_constants_map(false);
}

}  // namespace

IncompatibleKeys load_constants(Package& package, const std::string& uri,
                                const ConstantsRequest& request, const OptionList& options) {
  FileReader reader(uri, options);
  reader.names();  // throws for a missing file before the package changes
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (auto& [name, tensor] : allocate(package)) {
    names.push_back(name);
    tensors.push_back(tensor);
  }
  FillRequest fill_request;
  fill_request.names = request.strict ? Names::Same : Names::All;
  fill_request.verify = request.verify;
  fill_request.threads = request.threads;
  return fill(reader, names, tensors, fill_request).keys;
}

}  // namespace tensorizer
