#include "transfer/files/file_reader.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/redaction.h"
#include "base/world.h"
#include "engine/open/open_model.h"
#include "engine/rewrite/file_digest.h"
#include "engine/rewrite/update.h"
#include "transfer/files/cast.h"
#include "transfer/files/file_reader_job.h"
#include "transfer/files/verify_memory.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

// Returns the tensor, if a file can lie in it.
const at::Tensor& checked_file(const at::Tensor& data) {
  const std::string why = lacks_memory(data);
  if (!why.empty() || !data.is_cpu() || data.scalar_type() != c10::ScalarType::Byte ||
      data.dim() != 1 || !data.is_contiguous() || data.is_neg()) {
    throw Error(ErrorKind::InvalidArgument,
                "a file in memory must be a contiguous, one-dimensional uint8 tensor on the CPU" +
                    (why.empty() ? "" : ": " + why));
  }
  return data;
}

}  // namespace

FileReader::FileReader(std::string uri, OptionList options, std::shared_ptr<Source> opened)
    : uri_(std::move(uri)), option_list_(std::move(options)), source_(std::move(opened)) {
  parse_load_options(option_list_);
}

FileReader::FileReader(const at::Tensor& data, OptionList options)
    : held_(std::make_shared<HeldMemory>(std::span(&data, 1))),
      data_(checked_file(held_->tensors()[0])),
      bytes_(const_bytes(data_)),
      option_list_(std::move(options)) {
  parse_load_options(option_list_);
}

FileReader::FileReader(std::shared_ptr<Source> source, OptionList options)
    : given_(true), option_list_(std::move(options)), source_(std::move(source)) {
  parse_load_options(option_list_);
}

FileReader::~FileReader() = default;

std::shared_ptr<Source> FileReader::open(const LoadOptions& options, Cancel& cancel) {
  if (data_.defined()) {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(ErrorKind::InvalidArgument, "the reader is closed");
    return memory_source(bytes_, held_, "the tensor that holds the file");
  }
  if (source_) return std::move(source_);
  if (!given_) return open_model(uri_, options, cancel);
  throw Error(ErrorKind::InvalidArgument,
              "this reader failed to open its file before, and cannot open it again");
}

void FileReader::check_memory() const {
  if (!data_.defined() || const_bytes(data_).data() == bytes_.data()) return;
  throw Error(ErrorKind::InvalidArgument,
              "the tensor that holds the file has other memory than when it was opened, as after "
              "share_memory_(): open it again");
}

std::shared_ptr<OpenFile> FileReader::file(Wants wants, Cancel* given) {
  check_memory();
  const auto opened = [&]() -> std::shared_ptr<OpenFile> {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(ErrorKind::InvalidArgument, "the reader is closed");
    if (file_) check_wants(file_->source(), wants);
    return file_;
  };
  if (auto file = opened()) return file;
  // A second thread must find this file instead of opening another one, so one thread opens at a
  // time. `mutex_` stays unlocked meanwhile, so that cancel() gets through.
  Job job = given != nullptr ? Job(*this, *given) : Job(*this);
  const Gate::Entry one_opens(opening_, calling_thread(), job.cancel);
  if (auto file = opened()) return file;
  const LoadOptions options = parse_load_options(option_list_);
  auto file = std::make_shared<OpenFile>(open(options, job.cancel), options, job.cancel, wants);
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(ErrorKind::Cancelled, "the reader was closed while it opened its file");
  file_ = file;
  return file;
}

std::string FileReader::label() { return file_for_all()->source().label(); }

std::shared_ptr<const Redactor> FileReader::redactor() {
  const std::shared_ptr<OpenFile> open = file_for_all();
  return {open, &open->source()};
}

std::vector<std::string> FileReader::names() {
  const std::shared_ptr<OpenFile> open = file();
  return {open->names().begin(), open->names().end()};
}

std::vector<std::int64_t> FileReader::shape(const std::string& name) {
  const std::shared_ptr<OpenFile> open = file();
  const auto shape = open->entry(open->find(name)).shape;
  return {shape.begin(), shape.end()};
}

c10::ScalarType FileReader::dtype(const std::string& name) {
  const std::shared_ptr<OpenFile> open = file();
  return scalar_type(open->dtype(open->find(name)));
}

StoredTensor FileReader::stored(const std::string& name) {
  const std::shared_ptr<OpenFile> open = file();
  const std::uint32_t number = open->find(name);
  const Entry& entry = open->entry(number);
  const NamedEntry named = open->catalogue().named(number);
  const Tie* const tie = open->catalogue().tie(number);
  Job job(*this);
  std::vector<std::byte> bytes;
  const TensorDetails details = open->read_details(number, bytes, job.cancel);
  const std::optional<Digest>& crc32 = details.digests[Hash::Crc32];
  return {std::string(named.name),
          named.type,
          tie != nullptr ? tie->module_index : details.module_index,
          crc32 ? std::optional(crc32_of(*crc32)) : std::nullopt,
          details.digests[Hash::Sha256],
          entry.header_offset,
          entry.data_offset,
          entry.data_size};
}

std::vector<ListedTensor> FileReader::list() {
  const std::shared_ptr<OpenFile> open = file();
  std::vector<ListedTensor> list;
  const std::vector<NamedEntry> names = all_names(open->catalogue());
  list.reserve(names.size());
  for (const NamedEntry& named : names) {
    const Entry& entry = open->catalogue().entries()[named.entry];
    list.push_back({std::string(named.name), named.type, entry.header_offset, entry.data_offset,
                    entry.data_size, entry.memory_size(),
                    open->catalogue().number_of(named.entry)});
  }
  return list;
}

std::optional<Metadata> FileReader::metadata() { return file()->metadata(); }

FormatInfo FileReader::format() { return file()->catalogue().info(); }

bool FileReader::header_suffices(std::uint32_t number) const {
  return suffice(headers_.digests(number), parse_load_options(option_list_));
}

bool FileReader::matches(std::uint32_t number, const at::Tensor& tensor) {
  Job job(*this);
  const at::NoGradGuard no_grad;
  const HeldMemory held(std::span(&tensor, 1));
  if (!header_suffices(number)) {
    return has_same_bytes(held.tensors()[0], load_to_compare(*file(), number), job.cancel);
  }
  const at::Tensor bytes = row_major_bytes(held.tensors()[0], "the tensor in memory").cpu();
  if (const auto found = headers_.matches(number, const_bytes(bytes), job.cancel)) return *found;
  throw Error(ErrorKind::InvalidArgument,
              "tensor " + std::to_string(number) +
                  " of the file has nothing to verify: it was saved without hashes, and convert() "
                  "writes a copy with hashes");
}

void FileReader::verify_memory(const std::vector<std::string>& names,
                               const std::vector<at::Tensor>& tensors, Verify verify) {
  const std::shared_ptr<OpenFile> open = file();
  Job job(*this);
  const auto load = [&](std::uint32_t number) { return load_to_compare(*open, number); };
  tensorizer::verify_memory(*open, names, tensors, verify, load, job.cancel);
}

at::Tensor FileReader::load_to_compare(OpenFile& file, std::uint32_t number) {
  // Without hashes in the file, its signature or the digest in the options verifies the bytes.
  const bool is_verified = file.options().digest || file.source().signed_as();
  LoadRequest request;
  if (is_verified) request.verify = Verify::All;
  return load(file, {&number, 1}, request, Ties::Shared, /*headers=*/false)[0];
}

at::Tensor FileReader::bytes(std::uint64_t offset, std::uint64_t size) {
  const std::shared_ptr<OpenFile> open = file();
  Job job(*this);
  const at::Tensor tensor = NewMemory(size).tensor({static_cast<std::int64_t>(size)}, at::kByte);
  const Bytes piece = tensor_bytes(tensor);
  open->source_for(offset, offset + size, job.cancel)->read(offset, {&piece, 1}, job.cancel);
  return tensor;
}

void FileReader::need_until(const std::string& name, std::int64_t element) {
  const std::shared_ptr<OpenFile> open = file();
  const std::uint32_t number = open->find(name);
  const std::uint64_t size = dtype_info(open->dtype(number)).size;
  open->need_until(number, static_cast<std::uint64_t>(element) * size);
}

std::uint64_t FileReader::chunk_size(Verify verify) { return file()->chunk_size(verify); }

std::tuple<std::int64_t, at::Tensor> FileReader::chunk_digests(const std::string& name) {
  const std::shared_ptr<OpenFile> open = file();
  const std::size_t entry = open->entry_number(open->find(name));
  const std::uint64_t chunk = open->chunk_size(Verify::All);
  const ConstBytes digests =
      chunk != 0 ? open->catalogue().chunk_digests().digests(entry) : ConstBytes();
  const std::size_t count = digests.size() / kSha256Size;
  const at::Tensor rows =
      NewMemory(digests.size())
          .tensor({static_cast<std::int64_t>(count), static_cast<std::int64_t>(kSha256Size)},
                  at::kByte);
  std::ranges::copy(digests, tensor_bytes(rows).begin());
  return {static_cast<std::int64_t>(chunk), rows};
}

std::optional<std::string> FileReader::remote_version() {
  const std::shared_ptr<OpenFile> open = file();
  return open->source().remote() ? open->source().version() : std::nullopt;
}

std::optional<std::string> FileReader::signed_as() { return file()->source().signed_as(); }

void FileReader::detach_if_signed(const std::vector<at::Tensor>& tensors) {
  if (!signed_as()) return;
  const HeldMemory held(tensors);
  detach_from_files(held.tensors());
}

bool FileReader::can_map() { return file()->map() != nullptr; }

void FileReader::prefetch(const std::optional<std::vector<std::string>>& names) {
  Cancel own;
  prefetch(names, own);
}

void FileReader::prefetch(const std::optional<std::vector<std::string>>& names, Cancel& given) {
  const std::shared_ptr<OpenFile> open = file(Wants::Parts, &given);
  Job job(*this, given);
  open->prefetch(open->select(names), job.progress, job.cancel);
}

void FileReader::verify(Verify verify, std::int64_t threads) {
  const std::shared_ptr<OpenFile> open = file_for_all();
  Job job(*this);
  const auto begin = Clock::now();
  verify_file(*open, verify, parse_threads(threads), job.progress, job.cancel);
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  counters_.add(open->source(), job.progress, open->catalogue().entries().size(), seconds.count());
}

std::string FileReader::digest(std::int64_t threads, std::int64_t version, bool listed) {
  const std::shared_ptr<OpenFile> open = file_for_all();
  Job job(*this);
  const auto begin = Clock::now();
  const DigestRequest request{parse_digest_version(version), listed, parse_threads(threads)};
  const std::string digest = file_digest(*open, request, job.progress, job.cancel);
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  counters_.add(open->source(), job.progress, open->names().size(), seconds.count());
  return digest;
}

void FileReader::rewrite(const std::string& to, HashKinds hashes, const OptionList& options,
                         std::int64_t threads, TensorChanges changes) {
  RewriteRequest request{to, hashes, parse_threads(threads), parse_save_options(options),
                         std::move(changes.names)};
  const std::shared_ptr<OpenFile> open = file(request.names ? Wants::Parts : Wants::All);
  Job job(*this);
  request.metadata = open->metadata();
  const std::unique_ptr<Origin> origin =
      changes.dtype ? std::make_unique<CastOrigin>(*open, *changes.dtype, job.cancel)
                    : std::make_unique<Origin>(*open, open->source(), job.cancel);
  tensorizer::rewrite(*open, *origin, request, job.progress, job.cancel);
}

Updated FileReader::update(const std::string& to, std::int64_t threads) {
  const std::shared_ptr<OpenFile> open = file();
  Job job(*this);
  return tensorizer::update(*open, to, parse_threads(threads), job.progress, job.cancel);
}

std::pair<std::uint64_t, std::uint64_t> FileReader::progress() const {
  const std::lock_guard lock(mutex_);
  if (jobs_.empty()) return last_progress_;
  std::pair<std::uint64_t, std::uint64_t> sum{0, 0};
  for (const Job* job : jobs_) {
    sum.first += job->progress.done;
    sum.second += job->progress.total;
  }
  return sum;
}

LoadStats FileReader::stats() const {
  const std::lock_guard lock(mutex_);
  return counters_.stats(file_ ? file_->source().stats() : closed_source_);
}

void FileReader::cancel() {
  const std::lock_guard lock(mutex_);
  for (Job* job : jobs_) job->cancel.request();
}

void FileReader::close() {
  // Destroyed after the lock is released, because it may destroy a file object of the host.
  std::shared_ptr<OpenFile> file;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (file_) closed_source_ = file_->source().stats();
  file = std::move(file_);
  held_.reset();
  for (Job* job : jobs_) job->cancel.request();
}

}  // namespace tensorizer
