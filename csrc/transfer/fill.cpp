#include "transfer/fill.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <unordered_map>

#include "base/error.h"
#include "transfer/dtype.h"
#include "transfer/ties.h"
#include "transfer/tracing.h"

namespace tensorizer {

namespace {

// One kind of mismatch, and all tensors that have it: "a, b, c".
class Complaint {
 public:
  explicit Complaint(std::string title) : title_(std::move(title)) {}
  void add(const std::string& item) { list_ += (list_.empty() ? "" : ", ") + item; }
  std::string text() const { return list_.empty() ? "" : "\n  " + title_ + ": " + list_; }

 private:
  std::string title_;
  std::string list_;
};

// Returns whether a tensor has a shape but no memory for it.
bool is_placeholder(const at::Tensor& tensor) {
  return tensor.is_meta() || tensor.storage().nbytes() < tensor.nbytes();
}

// One tensor of the module, with all of its names.
struct ModuleTensor {
  at::Tensor memory;
  std::vector<std::size_t> numbers;
  std::string in_file;  // empty when the file has none of its names
};

std::vector<ModuleTensor> match_tensors(FileReader& reader, const std::vector<std::string>& names,
                                        const std::vector<at::Tensor>& tensors,
                                        const FillRequest& request) {
  std::unordered_map<std::string, bool> used;  // the file's names
  for (std::string& name : reader.names()) used.emplace(std::move(name), false);
  const std::vector<std::size_t> ties = find_ties(tensors);
  std::map<std::size_t, ModuleTensor> by_first;
  for (std::size_t i = 0; i < names.size(); ++i) {
    ModuleTensor& tensor = by_first[ties[i]];
    tensor.memory = tensors[ties[i]];
    tensor.numbers.push_back(i);
    const auto found = used.find(names[i]);
    if (found == used.end()) continue;
    found->second = true;
    if (tensor.in_file.empty()) tensor.in_file = names[i];
  }

  Complaint missing("missing in the file");
  Complaint unexpected("only in the file");
  Complaint different("different");
  std::vector<ModuleTensor> matched;
  bool castable = false;
  for (auto& [first, tensor] : by_first) {
    if (tensor.in_file.empty()) {
      missing.add(quote(names[first]));
      continue;
    }
    const c10::ScalarType type = reader.dtype(tensor.in_file);
    const std::vector<std::int64_t> shape = reader.shape(tensor.in_file);
    const c10::ScalarType here = tensor.memory.scalar_type();
    castable = castable || (type != here && fits(type, here, true));
    if (!fits(type, here, request.cast) || tensor.memory.sizes() != at::IntArrayRef(shape)) {
      different.add(quote(tensor.in_file) + " (" + describe_shape(type, shape) + " in the file, " +
                    describe_shape(here, tensor.memory.sizes()) + " here)");
    }
    matched.push_back(std::move(tensor));
  }
  for (const std::string& name : reader.names()) {
    if (!used[name]) unexpected.add(quote(name));
  }
  const std::string complaints = (request.names != Names::Any ? missing.text() : "") +
                                 (request.names == Names::Same ? unexpected.text() : "") +
                                 different.text() +
                                 (castable && !request.cast ? "\n  cast=True casts types" : "");
  if (!complaints.empty()) {
    throw Error(ErrorKind::InvalidArgument, reader.label() + " does not fit:" + complaints);
  }
  return matched;
}

}  // namespace

std::vector<at::Tensor> fill(FileReader& reader, const std::vector<std::string>& names,
                             const std::vector<at::Tensor>& tensors, const FillRequest& request) {
  const at::NoGradGuard no_grad;
  const std::vector<ModuleTensor> matched = match_tensors(reader, names, tensors, request);
  if (request.dtype && !is_castable(*request.dtype)) {
    throw Error(ErrorKind::InvalidArgument,
                "dtype is " + dtype_name(*request.dtype) + ", and must be a real floating type");
  }
  // New tensors, by device and by the dtype that real floating tensors are cast to.
  std::map<std::pair<std::string, std::optional<c10::ScalarType>>, std::vector<const ModuleTensor*>>
      fresh;
  std::vector<std::string> kept_names;
  std::vector<at::Tensor> kept;
  for (const ModuleTensor& tensor : matched) {
    const c10::Device here =
        tensor.memory.is_meta() ? c10::Device(c10::kCPU) : tensor.memory.device();
    const c10::Device device = request.device.value_or(here);
    const c10::ScalarType type = tensor.memory.scalar_type();
    const c10::ScalarType wanted = cast_type(type, request.dtype);
    if (is_placeholder(tensor.memory) || device != here || wanted != type) {
      const bool casts = request.cast && is_castable(wanted);
      fresh[{device.str(), casts ? std::optional(wanted) : std::nullopt}].push_back(&tensor);
    } else {
      kept_names.push_back(tensor.in_file);
      kept.push_back(tensor.memory);
    }
  }
  std::vector<at::Tensor> filled = tensors;
  // Some file digests can only be checked by loading all tensors at once, so an empty selection
  // must not be loaded. But the digest of an empty file is checked.
  if (!kept.empty() || fresh.empty()) {
    reader.load_into(kept_names, kept, request.verify, request.threads, request.cast);
  }
  for (const auto& [target, wanted] : fresh) {
    std::vector<std::string> wanted_names;
    for (const ModuleTensor* tensor : wanted) wanted_names.push_back(tensor->in_file);
    LoadRequest load;
    load.device = c10::Device(target.first);
    load.dtype = target.second;
    load.verify = request.verify;
    load.threads = request.threads;
    // The module decides which of its tensors are tied, not the file.
    const std::vector<at::Tensor> loaded = reader.load(wanted_names, load, {}, Ties::Apart);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (const std::size_t number : wanted[i]->numbers) filled[number] = loaded[i];
    }
  }
  return filled;
}

}  // namespace tensorizer
