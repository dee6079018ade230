#include "transfer/reader.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/error.h"
#include "engine/read_index.h"
#include "transfer/blocks.h"
#include "transfer/dtype.h"
#include "transfer/memory.h"

namespace tensorizer {

namespace {

// What a mapping must give for data to be used where it lies.
constexpr std::uint64_t kZeroCopyAlignment = 64;

}  // namespace

struct Reader::File {
  std::unique_ptr<Source> source;
  Index index;
  std::vector<std::string_view> names;
  LoadOptions options;
  std::unordered_map<std::string_view, std::uint32_t> by_name;

  File(std::unique_ptr<Source> opened, LoadOptions load_options, Cancel& cancel)
      : source(std::move(opened)),
        index(read_index(*source, cancel)),
        names(clean_names(index.entries())),
        options(load_options) {}

  const Entry& entry(std::uint32_t number) const { return index.entries()[number]; }

  std::string describe_entry(std::uint32_t number) const {
    return source->label() + ": " + describe(names[number], number);
  }
};

// One running load, so that progress() and cancel() find it.
class Reader::Job {
 public:
  explicit Job(Reader& reader) : reader_(reader) {
    const std::lock_guard lock(reader_.mutex_);
    reader_.jobs_.push_back(this);
  }
  ~Job() {
    const std::lock_guard lock(reader_.mutex_);
    std::erase(reader_.jobs_, this);
    reader_.last_progress_ = {progress.done, progress.total};
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Cancel cancel;
  Progress progress;

 private:
  Reader& reader_;
};

Reader::Reader(std::string uri, OptionList options)
    : uri_(std::move(uri)), option_list_(std::move(options)) {
  parse_load_options(option_list_);
}

Reader::Reader(at::Tensor data, OptionList options)
    : data_(std::move(data)), option_list_(std::move(options)) {
  parse_load_options(option_list_);
  if (!data_.device().is_cpu() || data_.scalar_type() != c10::ScalarType::Byte ||
      data_.layout() != c10::kStrided || data_.dim() != 1 || !data_.is_contiguous()) {
    throw Error(ErrorKind::InvalidArgument,
                "a file in memory must be a contiguous, one-dimensional uint8 tensor on the CPU");
  }
}

Reader::~Reader() = default;

std::shared_ptr<Reader::File> Reader::file() {
  const auto opened = [&]() -> std::shared_ptr<File> {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(ErrorKind::InvalidArgument, "the reader is closed");
    return file_;
  };
  if (auto file = opened()) return file;
  // Whoever comes second shall find the file, not open another; cancel() must get through
  // meanwhile.
  const std::lock_guard one_opens(opening_);
  if (auto file = opened()) return file;
  Job job(*this);
  const LoadOptions options = parse_load_options(option_list_);
  std::unique_ptr<Source> source =
      in_memory() ? memory_source(tensor_bytes(data_), std::make_shared<at::Tensor>(data_))
                  : open_source(uri_, options.source, job.cancel);
  auto file = std::make_shared<File>(std::move(source), options, job.cancel);
  const std::lock_guard lock(mutex_);
  file_ = file;
  return file;
}

std::vector<std::string> Reader::names() {
  const std::shared_ptr<File> open = file();
  return {open->names.begin(), open->names.end()};
}

std::vector<std::uint32_t> Reader::select(
    File& file, const std::optional<std::vector<std::string>>& names) const {
  std::vector<std::uint32_t> selected;
  if (!names) {
    selected.resize(file.names.size());
    for (std::uint32_t i = 0; i < selected.size(); ++i) selected[i] = i;
    return selected;
  }
  {
    const std::lock_guard lock(mutex_);
    if (file.by_name.empty()) {
      file.by_name.reserve(file.names.size());
      for (std::uint32_t i = 0; i < file.names.size(); ++i) file.by_name[file.names[i]] = i;
    }
  }
  selected.reserve(names->size());
  for (const std::string& name : *names) {
    const auto found = file.by_name.find(name);
    if (found == file.by_name.end()) {
      throw Error(ErrorKind::NoSuchTensor, file.source->label() + " has no tensor " + quote(name) +
                                               " among its " + std::to_string(file.names.size()) +
                                               "; names() lists them");
    }
    selected.push_back(found->second);
  }
  return selected;
}

std::vector<std::int64_t> Reader::shape(const std::string& name) {
  const std::shared_ptr<File> open = file();
  const auto shape = open->entry(select(*open, {{name}})[0]).shape;
  return {shape.begin(), shape.end()};
}

c10::ScalarType Reader::dtype(const std::string& name) {
  const std::shared_ptr<File> open = file();
  const std::uint32_t number = select(*open, {{name}})[0];
  const Entry& entry = open->entry(number);
  if (!entry.dtype) {
    throw Error(ErrorKind::InvalidArgument,
                open->describe_entry(number) +
                    ": its dtype stands in front of its data only, and this source gives its "
                    "bytes once: load the tensor to see it");
  }
  return scalar_type(*entry.dtype);
}

StoredTensor Reader::stored(const std::string& name) {
  const std::shared_ptr<File> open = file();
  const std::uint32_t number = select(*open, {{name}})[0];
  const Entry& entry = open->entry(number);
  if (entry.header_size() > largest_tensor_header(entry)) {
    throw Error(ErrorKind::InvalidFormat,
                open->describe_entry(number) + ": its header is too long");
  }
  Job job(*this);
  std::vector<std::byte> bytes(entry.header_size());
  const Bytes piece(bytes);
  open->source->read(entry.header_offset, {&piece, 1}, job.cancel);
  const TensorHeader header =
      parse_tensor_header(bytes, open->index.header(), entry, number, place_of(*open->source));
  return {std::string(entry.name), entry.type,          header.module_index, header.crc32,
          header.sha256,           entry.header_offset, entry.data_offset,   entry.data_size};
}

void Reader::run(File& file, std::vector<LoadItem> items, LoadSettings settings) {
  settings.memory_ceiling = file.options.memory_ceiling;
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t tensors = items.size();
  Job job(*this);
  tensorizer::load(*file.source, file.index, std::move(items), settings, job.progress, job.cancel);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  stats_.loads += 1;
  stats_.tensors += tensors;
  stats_.bytes += job.progress.total;
  stats_.seconds += seconds.count();
}

std::vector<at::Tensor> Reader::load(const std::optional<std::vector<std::string>>& names,
                                     const LoadRequest& request) {
  const std::shared_ptr<File> open = file();
  const std::vector<std::uint32_t> selected = select(*open, names);
  const c10::Device device = request.device.value_or(c10::Device(c10::kCPU));
  if (request.dtype && !is_castable(*request.dtype)) {
    throw Error(ErrorKind::InvalidArgument, std::string("dtype is ") +
                                                c10::toString(*request.dtype) +
                                                ", and must be a real floating type");
  }
  const at::NoGradGuard no_grad;

  std::vector<at::Tensor> tensors;
  tensors.reserve(selected.size());
  const auto wanted_type = [&](c10::ScalarType stored) {
    return request.dtype && is_castable(stored) ? *request.dtype : stored;
  };
  if (device.is_meta()) {
    for (const std::uint32_t number : selected) {
      const c10::ScalarType type = wanted_type(dtype(std::string(open->names[number])));
      tensors.push_back(
          at::empty(open->entry(number).shape, at::TensorOptions().device(device).dtype(type)));
    }
    return tensors;
  }

  LoadSettings settings;
  settings.verify = request.verify;
  settings.threads = parse_threads(request.threads);
  const std::shared_ptr<Mapping> mapping = request.copy ? nullptr : open->source->map();
  if (mapping) settings.mapping = mapping->bytes();
  std::vector<LoadItem> items;
  std::vector<std::unique_ptr<TensorOutput>> outputs;
  std::vector<std::size_t> unresolved;  // whose dtype comes with their data
  std::vector<bool> seen(open->names.size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const std::uint32_t number = selected[i];
    const Entry& entry = open->entry(number);
    // On the way to another device the stored type travels, and the cast happens there.
    const c10::ScalarType stored = entry.dtype ? scalar_type(*entry.dtype) : c10::ScalarType::Byte;
    const c10::ScalarType type = device.is_cpu() ? wanted_type(stored) : stored;
    LoadItem item;
    item.entry = number;
    at::Tensor tensor;
    if (!entry.dtype) {
      unresolved.push_back(i);
      tensor = new_tensor(static_cast<std::int64_t>(entry.data_size), stored);
      item.memory = tensor_bytes(tensor);
    } else if (entry.meta) {
      tensor = new_zeros(entry.shape, type);
    } else if (type != stored && entry.data_size > 0) {
      tensor = new_tensor(entry.shape, type);
      outputs.push_back(std::make_unique<TensorOutput>(tensor, stored));
      item.staged = outputs.back().get();
    } else if (mapping && entry.data_size > 0 && entry.data_offset % kZeroCopyAlignment == 0 &&
               !seen[number]) {
      const Bytes part = mapping->bytes().subspan(entry.data_offset, entry.data_size);
      tensor = mapped_tensor(mapping, part, entry.shape, type);
      item.memory = part;
      item.in_place = true;
    } else {
      tensor = new_tensor(entry.shape, type);
      item.memory = tensor_bytes(tensor);
    }
    seen[number] = true;
    tensors.push_back(std::move(tensor));
    // What lies in place moves only to be verified.
    const bool moves = !item.in_place && (entry.data_size > 0 || !entry.dtype);
    if (moves || settings.verify != Verify::None) items.push_back(item);
  }
  run(*open, std::move(items), settings);

  for (const std::size_t i : unresolved) {
    const Entry& entry = open->entry(selected[i]);
    const c10::ScalarType stored = scalar_type(*entry.dtype);
    tensors[i] =
        entry.meta ? new_zeros(entry.shape, stored) : tensors[i].view(stored).view(entry.shape);
  }
  for (at::Tensor& tensor : tensors) {
    const c10::ScalarType stored = tensor.scalar_type();
    if (!device.is_cpu()) tensor = tensor.to(device);
    if (wanted_type(stored) != stored) tensor = tensor.to(wanted_type(stored));
  }
  return tensors;
}

void Reader::load_into(const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& outputs, Verify verify,
                       std::int64_t threads) {
  if (names.size() != outputs.size()) {
    throw Error(ErrorKind::InvalidArgument, std::to_string(names.size()) + " names and " +
                                                std::to_string(outputs.size()) + " outputs");
  }
  const std::shared_ptr<File> open = file();
  const std::vector<std::uint32_t> selected = select(*open, names);
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Entry& entry = open->entry(selected[i]);
    const at::Tensor& output = outputs[i];
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorKind::InvalidArgument, open->describe_entry(selected[i]) + " " + why);
    };
    if (output.layout() != c10::kStrided) refuse("needs an output that is strided");
    if (!output.sizes().equals(entry.shape)) {
      refuse("has the shape " + c10::str(at::IntArrayRef(entry.shape)) + ", and its output has " +
             c10::str(output.sizes()));
    }
    if (!entry.dtype) {
      refuse("has a dtype that only its data tells: load it instead");
    }
    if (scalar_type(*entry.dtype) != output.scalar_type()) {
      refuse("is " + dtype_name(scalar_type(*entry.dtype)) + ", and its output is " +
             dtype_name(output.scalar_type()));
    }
    if (output.requires_grad() && at::GradMode::is_enabled()) {
      refuse("has an output that requires grad: load under torch.no_grad()");
    }
    if (at::has_internal_overlap(output) == at::MemOverlap::Yes) {
      refuse("has an output whose elements share memory: give it a clone()");
    }
  }

  const at::NoGradGuard no_grad;
  LoadSettings settings;
  settings.verify = verify;
  settings.threads = parse_threads(threads);
  std::vector<LoadItem> items;
  std::vector<std::unique_ptr<TensorOutput>> staged;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Entry& entry = open->entry(selected[i]);
    at::Tensor output = outputs[i];
    LoadItem item;
    item.entry = selected[i];
    if (entry.meta) {
      output.zero_();
    } else if (entry.data_size > 0 && !output.is_meta()) {
      if (output.device().is_cpu() && output.is_contiguous() && !output.is_conj() &&
          !output.is_neg()) {
        item.memory = tensor_bytes(output);
      } else {
        staged.push_back(std::make_unique<TensorOutput>(output, output.scalar_type()));
        item.staged = staged.back().get();
      }
      output.unsafeGetTensorImpl()->bump_version();
    }
    const bool moves = item.staged || !item.memory.empty();
    const bool checked = verify != Verify::None && entry.data_size == 0;
    if (moves || checked) items.push_back(item);
  }
  run(*open, std::move(items), settings);
}

void Reader::verify(Verify verify, std::int64_t threads) {
  // Nothing is kept: the bytes pass through scratch memory, a piece at a time.
  class Nowhere final : public StagedOutput {
    void put(std::uint64_t, ConstBytes) override {}
  };
  const std::shared_ptr<File> open = file();
  LoadSettings settings;
  settings.verify = verify;
  settings.threads = parse_threads(threads);
  Nowhere nowhere;
  const std::shared_ptr<Mapping> mapping = open->source->map();
  if (mapping) settings.mapping = mapping->bytes();
  std::vector<LoadItem> items;
  for (std::uint32_t i = 0; i < open->names.size(); ++i) {
    LoadItem item;
    item.entry = i;
    const Entry& entry = open->entry(i);
    if (entry.data_size > 0) {
      if (mapping) {
        item.memory = mapping->bytes().subspan(entry.data_offset, entry.data_size);
        item.in_place = true;
      } else {
        item.staged = &nowhere;
      }
    }
    items.push_back(item);
  }
  run(*open, std::move(items), settings);
}

std::pair<std::uint64_t, std::uint64_t> Reader::progress() const {
  const std::lock_guard lock(mutex_);
  if (jobs_.empty()) return last_progress_;
  std::pair<std::uint64_t, std::uint64_t> sum{0, 0};
  for (const Job* job : jobs_) {
    sum.first += job->progress.done;
    sum.second += job->progress.total;
  }
  return sum;
}

Reader::Stats Reader::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Reader::cancel() {
  const std::lock_guard lock(mutex_);
  for (Job* job : jobs_) job->cancel.request();
}

void Reader::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  file_.reset();
  for (Job* job : jobs_) job->cancel.request();
}

}  // namespace tensorizer
