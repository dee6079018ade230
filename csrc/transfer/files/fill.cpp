#include "transfer/files/fill.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/redaction.h"
#include "transfer/files/tracing.h"
#include "transfer/files/wrappers.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/held_memory.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/ties.h"

namespace tensorizer {

namespace {

// One kind of mismatch, and all tensors that have it: "a, b, c".
class Complaint {
 public:
  explicit Complaint(std::string title) : title_(std::move(title)) {}
  Complaint(std::string title, const std::vector<std::string>& names)
      : Complaint(std::move(title)) {
    for (const std::string& name : names) add(quote(name));
  }
  void add(const std::string& item) { list_ += (list_.empty() ? "" : ", ") + item; }
  std::string text() const { return list_.empty() ? "" : "\n  " + title_ + ": " + list_; }

 private:
  std::string title_;
  std::string list_;
};

[[noreturn]] void throw_does_not_fit(FileReader& reader, const std::string& complaints) {
  throw Error(ErrorKind::InvalidArgument, reader.label() + " does not fit:" + complaints);
}

// One tensor of the module, with all of its names.
struct ModuleTensor {
  at::Tensor memory;
  std::vector<std::size_t> numbers;
  // Its names in the file, one of each group that the file ties. The data of the first fills the
  // tensor, and the others must have the same.
  std::vector<std::string> in_file;
};

struct Matches {
  std::vector<ModuleTensor> tensors;
  IncompatibleKeys keys;
};

// Returns what to complain of if not all names are on both sides.
std::string describe_names(const Matches& found, Names wanted, bool file_is_empty) {
  const auto& [missing, unexpected] = found.keys;
  const bool nothing = found.tensors.empty() && !missing.empty() && !file_is_empty;
  std::string text;
  if (nothing) text += "\n  no name is on both sides";
  if (wanted != Names::Any || nothing) text += Complaint("missing in the file", missing).text();
  if (wanted == Names::Same || nothing) text += Complaint("only in the file", unexpected).text();
  return text.empty() ? text : text + wrapper_hint(missing, unexpected);
}

void refuse_not_plain(const std::vector<std::string>& names,
                      const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (const std::string why = is_not_plain(tensors[i]); !why.empty()) {
      throw Error(ErrorKind::InvalidArgument,
                  "tensor " + quote(names[i]) + " cannot be filled: " + why);
    }
  }
}

Matches match_tensors(FileReader& reader, const std::vector<std::string>& names,
                      const std::vector<at::Tensor>& tensors, const FillRequest& request) {
  const std::shared_ptr<OpenFile> file = reader.file_for_all();
  std::unordered_map<std::string, bool> used;  // the file's names
  for (const std::string_view name : file->names()) used.emplace(name, false);
  const std::vector<std::size_t> ties = find_ties(tensors);
  std::map<std::size_t, ModuleTensor> by_first;
  for (std::size_t i = 0; i < names.size(); ++i) {
    ModuleTensor& tensor = by_first[ties[i]];
    tensor.memory = tensors[ties[i]];
    tensor.numbers.push_back(i);
    const auto in_file = used.find(names[i]);
    if (in_file == used.end()) continue;
    in_file->second = true;
    const auto entry = [&](const std::string& name) {
      return file->entry_number(file->find(name));
    };
    const auto is_tied = [&](const std::string& other) { return entry(other) == entry(names[i]); };
    if (std::none_of(tensor.in_file.begin(), tensor.in_file.end(), is_tied)) {
      tensor.in_file.push_back(names[i]);
    }
  }

  Matches found;
  Complaint different("different");
  bool castable = false;
  for (auto& [first, tensor] : by_first) {
    if (tensor.in_file.empty()) {
      found.keys.missing_keys.push_back(names[first]);
      continue;
    }
    const c10::ScalarType here = tensor.memory.scalar_type();
    for (const std::string& name : tensor.in_file) {
      const std::uint32_t number = file->find(name);
      const c10::ScalarType type = scalar_type(file->dtype(number));
      const auto stored = file->entry(number).shape;
      const std::vector<std::int64_t> shape(stored.begin(), stored.end());
      castable = castable || (type != here && fits(type, here, true));
      if (!fits(type, here, request.cast) || tensor.memory.sizes() != at::IntArrayRef(shape)) {
        different.add(quote(name) + " (" + describe_shape(type, shape) + " in the file, " +
                      describe_shape(here, tensor.memory.sizes()) + " here)");
      }
    }
    found.tensors.push_back(std::move(tensor));
  }
  for (const std::string_view given : file->names()) {
    std::string name(given);
    if (!used[name]) found.keys.unexpected_keys.push_back(std::move(name));
  }
  const std::string complaints = describe_names(found, request.names, used.empty()) +
                                 different.text() +
                                 (castable && !request.cast ? "\n  cast=True casts types" : "");
  if (!complaints.empty()) throw_does_not_fit(reader, complaints);
  return found;
}

using ModuleTensors = std::vector<const ModuleTensor*>;

std::vector<std::string> names_in_file(const ModuleTensors& tensors) {
  std::vector<std::string> names;
  for (const ModuleTensor* const tensor : tensors) {
    names.insert(names.end(), tensor->in_file.begin(), tensor->in_file.end());
  }
  return names;
}

// Returns the memory of each tensor, and new memory for each further name.
std::vector<at::Tensor> outputs_for(const ModuleTensors& tensors) {
  std::vector<at::Tensor> outputs;
  for (const ModuleTensor* const tensor : tensors) {
    const at::Tensor& memory = tensor->memory;
    outputs.push_back(memory);
    for (std::size_t i = 1; i < tensor->in_file.size(); ++i) {
      outputs.push_back(taking_memory(memory.nbytes(), "memory on " + memory.device().str(),
                                      [&] { return at::empty(memory.sizes(), memory.options()); }));
    }
  }
  return outputs;
}

// Returns what was loaded for the first name of each tensor. `loaded` belongs to names_in_file().
// Throws if another name of the same tensor has other data, which the module would lose.
std::vector<at::Tensor> one_for_each(FileReader& reader, const ModuleTensors& tensors,
                                     const std::vector<at::Tensor>& loaded) {
  Complaint different("different in the file, and one tensor here");
  std::vector<at::Tensor> first;
  auto next = loaded.begin();
  for (const ModuleTensor* const tensor : tensors) {
    const std::vector<std::string>& names = tensor->in_file;
    first.push_back(*next++);
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (has_same_bytes(first.back(), *next++)) continue;
      different.add(quote(names.front()) + " and " + quote(names[i]));
    }
  }
  if (!different.text().empty()) throw_does_not_fit(reader, different.text());
  return first;
}

}  // namespace

Filled fill(FileReader& reader, const std::vector<std::string>& names,
            const std::vector<at::Tensor>& tensors, const FillRequest& request) {
  const at::NoGradGuard no_grad;
  const HeldMemory held(tensors);
  refuse_not_plain(names, held.tensors());
  const std::shared_ptr<const Redactor> redactor = reader.redactor();
  const RedactedQuotes quotes(*redactor);
  Matches matched = match_tensors(reader, names, held.tensors(), request);
  if (request.dtype && !is_castable(*request.dtype)) {
    throw Error(ErrorKind::InvalidArgument,
                "dtype is " + dtype_name(*request.dtype) + ", and must be a real floating type");
  }
  // New tensors, by device and by the dtype that real floating tensors are cast to.
  std::map<std::pair<std::string, std::optional<c10::ScalarType>>, ModuleTensors> fresh;
  ModuleTensors kept;
  for (const ModuleTensor& tensor : matched.tensors) {
    const c10::Device here =
        tensor.memory.is_meta() ? c10::Device(c10::kCPU) : tensor.memory.device();
    const c10::Device device = request.device.value_or(here);
    const c10::ScalarType type = tensor.memory.scalar_type();
    const c10::ScalarType wanted = cast_type(type, request.dtype);
    if (lacks_memory_for_all(tensor.memory) || device != here || wanted != type) {
      const bool casts = request.cast && is_castable(wanted);
      fresh[{device.str(), casts ? std::optional(wanted) : std::nullopt}].push_back(&tensor);
    } else {
      kept.push_back(&tensor);
    }
  }
  Filled filled{tensors, std::move(matched.keys)};
  for (const auto& [target, wanted] : fresh) {
    LoadRequest load;
    load.device = c10::Device(target.first);
    load.dtype = target.second;
    load.verify = request.verify;
    load.threads = request.threads;
    // The module decides which of its tensors are tied, not the file.
    const std::vector<at::Tensor> made =
        one_for_each(reader, wanted, reader.load(names_in_file(wanted), load, {}, Ties::Apart));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (const std::size_t number : wanted[i]->numbers) filled.tensors[number] = made[i];
    }
  }
  // Some file digests can only be checked by loading all tensors at once, so an empty selection
  // must not be loaded. But the digest of an empty file is checked.
  if (!kept.empty() || fresh.empty()) {
    const std::vector<at::Tensor> outputs = outputs_for(kept);
    reader.load_into(names_in_file(kept), outputs, request.verify, request.threads, request.cast);
    one_for_each(reader, kept, outputs);
  }
  return filled;
}

}  // namespace tensorizer
