#include "transfer/files/saving.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "engine/save/file_kind.h"
#include "engine/save/new_layout.h"
#include "io/file_pages.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/ties.h"

namespace tensorizer {

namespace {

constexpr std::array<std::byte, 16> kZeroElement{};

// Returns the address ranges that are mapped from the file that the sink overwrites.
std::vector<ConstBytes> overwritten_memory(const Sink& sink) {
  std::vector<ConstBytes> mapped;
  const std::optional<FileIdentity> file = sink.overwritten();
  if (!file) return mapped;
  for (const FilePages& pages : file_pages()) {
    if (pages.file == *file) mapped.push_back(pages.bytes);
  }
  return mapped;
}

}  // namespace

Saving prepare_saving(std::string name, const at::Tensor& tensor, Staging& staging, TensorType type,
                      std::uint16_t module_index, std::optional<c10::ScalarType> dtype) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, "tensor " + quote(name) + " cannot be saved: " + why);
  };
  if (!tensor.defined()) refuse("it is undefined");
  if (const std::string why = lacks_memory(tensor); !why.empty()) refuse(why);
  const c10::ScalarType stored = cast_type(tensor.scalar_type(), dtype);
  Saving saving;
  saving.tensor = tensor;
  saving.spec.type = type;
  saving.spec.module_index = module_index;
  saving.spec.dtype = format_dtype(stored, name);
  saving.spec.shape = tensor.sizes().vec();
  if (tensor.is_meta()) {
    // Other implementations cannot open a meta tensor without dimensions, so its element is
    // written, as zero.
    saving.spec.meta = tensor.dim() > 0 && tensor.numel() > 0;
    if (tensor.dim() == 0)
      saving.item.memory = ConstBytes(kZeroElement).first(c10::elementSize(stored));
  } else if (tensor.numel() > 0) {
    const bool is_stored = stored == tensor.scalar_type() && tensor.is_cpu();
    if (is_stored && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
      saving.item.memory = const_bytes(tensor);
    } else {
      saving.item.staged = staging.add(tensor, stored);
    }
  }
  saving.spec.name = std::move(name);
  return saving;
}

void tie_savings(std::span<Saving> savings) {
  std::vector<std::size_t> numbers;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < savings.size(); ++i) {
    const at::Tensor& tensor = savings[i].tensor;
    const bool is_stored = !tensor.is_meta() && tensor.numel() > 0;
    if (!is_stored || savings[i].spec.shape.size() > kMostTiedDimensions) continue;
    numbers.push_back(i);
    tensors.push_back(tensor);
  }
  const std::vector<std::size_t> ties = find_ties(tensors);
  for (std::size_t i = 0; i < ties.size(); ++i) {
    if (ties[i] != i) savings[numbers[i]].tied_to = numbers[ties[i]];
  }
}

std::vector<SaveItem> add_to(Layout& layout, std::span<Saving> savings) {
  std::vector<SaveItem> items;
  items.reserve(savings.size());
  std::vector<std::uint32_t> placed(savings.size());
  for (std::size_t i = 0; i < savings.size(); ++i) {
    Saving& saving = savings[i];
    if (saving.tied_to) {
      layout.tie(saving.spec, placed[*saving.tied_to]);
      continue;
    }
    placed[i] = static_cast<std::uint32_t>(layout.tensors().size());
    layout.add(std::move(saving.spec));
    items.push_back(saving.item);
  }
  return items;
}

SaveSettings save_settings(const SaveOptions& options, int threads, Staging& staging) {
  SaveSettings settings;
  settings.threads = threads;
  settings.memory_ceiling = staging.is_pinned() ? options.staging : options.memory_ceiling;
  // While some workers wait for bytes from a device, others compute and write.
  settings.moves_in_flight = staging.is_pinned() ? 2 * threads : threads;
  settings.open_access = [&staging] { return TensorAccess{.port = staging.open_port()}; };
  return settings;
}

std::unique_ptr<SharedSave> shared_save(SaveRequest request) {
  const SaveOptions options = parse_save_options(request.options);
  const Format format = format_of(request.uri, options.format);
  Cancel cancel;
  FileKind kind = file_kind(format, request.hashes, std::move(request.metadata), options, cancel);
  Staging staging;
  std::vector<TensorSpec> specs;
  specs.reserve(request.names.size());
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    specs.push_back(prepare_saving(std::move(request.names[i]), request.tensors[i], staging).spec);
    specs.back().meta = false;
  }
  if (format == Format::Safetensors) {
    std::stable_sort(specs.begin(), specs.end(), comes_first_in_safetensors);
  }
  std::unique_ptr<Layout> layout = new_layout(format, std::move(kind), 0);
  for (TensorSpec& spec : specs) layout->add(std::move(spec));
  return std::make_unique<SharedSave>(std::move(request.uri), std::move(layout), options);
}

std::unique_ptr<SharedModel> shared_model(std::string uri, const OptionList& options) {
  return std::make_unique<SharedModel>(std::move(uri), parse_save_options(options));
}

void check_not_overwritten(const Sink& sink, std::span<const Saving> savings) {
  const std::vector<ConstBytes> overwritten = overwritten_memory(sink);
  if (overwritten.empty()) return;
  for (const Saving& saving : savings) {
    if (!saving.tensor.is_cpu() || saving.tensor.numel() == 0) continue;
    const std::uintptr_t data = address_of(saving.tensor);
    for (const ConstBytes memory : overwritten) {
      if (data - reinterpret_cast<std::uintptr_t>(memory.data()) < memory.size()) {
        throw Error(ErrorKind::InvalidArgument,
                    sink.label() + " is written in place, and tensor " + quote(saving.spec.name) +
                        " is mapped from it: load it with copy=True, or save to another file");
      }
    }
  }
}

}  // namespace tensorizer
