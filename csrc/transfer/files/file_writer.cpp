#include "transfer/files/file_writer.h"

#include <algorithm>

#include "base/error.h"
#include "engine/save/file_kind.h"
#include "engine/save/new_layout.h"
#include "engine/save/save_shards.h"
#include "format/name.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

// The bytes that one tensor takes in the prefix.
constexpr std::uint64_t kTypicalEntry = 128;
// The bytes that its digests take there, if any: of its header, its data, and its last chunk.
constexpr std::uint64_t kMostDigests = 3 * kSha256Size;
// Data behind the reserved room begins at a page.
constexpr std::uint64_t kHeadAlignment = 4096;
// The largest number of expected tensors for which room is reserved in advance.
constexpr std::uint64_t kMostExpected = 512 << 10;

}  // namespace

void save(SaveRequest request, Progress& progress, Cancel& cancel) {
  const SaveOptions options = parse_save_options(request.options);
  if (request.names.size() != request.tensors.size()) {
    throw Error(ErrorKind::InvalidArgument, std::to_string(request.names.size()) + " names and " +
                                                std::to_string(request.tensors.size()) +
                                                " tensors");
  }
  const HeldMemory held(request.tensors);
  Staging staging;
  std::vector<Saving> savings;
  savings.reserve(request.names.size());
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    savings.push_back(prepare_saving(std::move(request.names[i]), held.tensors()[i], staging,
                                     TensorType::StateDictEntry, 0, request.dtype));
  }
  staging.begin();
  const Format format = format_of(request.uri, options.format);
  FileKind kind = file_kind(format, request.hashes, std::move(request.metadata), options, cancel);
  const SaveSettings settings = save_settings(options, parse_threads(request.threads), staging);
  if (options.max_shard_size > 0) {
    if (request.sink) {
      throw Error(ErrorKind::InvalidArgument,
                  "the option 'max_shard_size' needs a folder to save to: " +
                      request.sink->label() + " is one file");
    }
    SavedModel model{.kind = std::move(kind), .sorted = true};
    for (Saving& saving : savings) {
      model.specs.push_back(std::move(saving.spec));
      model.items.push_back(saving.item);
    }
    save_in_shards(request.uri, std::move(model), options, settings, progress, cancel);
    staging.finish();
    return;
  }
  if (format == Format::Safetensors) {
    std::stable_sort(savings.begin(), savings.end(), [](const Saving& a, const Saving& b) {
      return comes_first_in_safetensors(a.spec, b.spec);
    });
  }
  const std::unique_ptr<Sink> sink =
      request.sink ? std::move(request.sink) : open_sink(request.uri, options.sink, cancel);
  check_not_overwritten(*sink, savings);
  const std::unique_ptr<Layout> placed = new_layout(format, std::move(kind), sink->start());
  Layout& layout = *placed;
  if (layout.kind().share) tie_savings(savings);
  const std::vector<SaveItem> items = add_to(layout, savings);
  layout.check_names(cancel);
  save_file(*sink, layout, items, settings, progress, cancel);
  staging.finish();
}

// The running call. cancel() finds it, and when it ends, it performs an abort() that was requested
// meanwhile.
class FileWriter::Call {
 public:
  explicit Call(FileWriter& writer)
      : writer_(writer), entry_(writer.gate_, calling_thread(), cancel) {
    const std::lock_guard lock(writer_.cancel_mutex_);
    writer_.running_ = &cancel;
    if (writer_.abort_wanted_) cancel.request();
  }
  ~Call() {
    if (writer_.abort_wanted_) writer_.abort_now();
    const std::lock_guard lock(writer_.cancel_mutex_);
    writer_.running_ = nullptr;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Cancel cancel;

 private:
  FileWriter& writer_;
  const Gate::Entry entry_;
};

FileWriter::FileWriter(const std::string& uri, const OptionList& options,
                       std::optional<Metadata> metadata)
    : FileWriter(uri, options, std::move(metadata), [&](const SinkOptions& sink, Cancel& cancel) {
        return open_sink(uri, sink, cancel);
      }) {}

FileWriter::FileWriter(std::unique_ptr<Sink> sink, const OptionList& options,
                       std::optional<Metadata> metadata)
    : FileWriter("", options, std::move(metadata),
                 [&](const SinkOptions&, Cancel&) { return std::move(sink); }) {}

FileWriter::FileWriter(const std::string& uri, const OptionList& options,
                       std::optional<Metadata> metadata, const OpenSink& open)
    : options_(parse_writer_options(options)), threads_(parse_threads(options_.threads)) {
  Cancel cancel;
  const Format format = format_of(uri, options_.save.format);
  FileKind kind = file_kind(format, options_.hashes, std::move(metadata), options_.save, cancel);
  sink_ = open(options_.save.sink, cancel);
  if (sink_->sequential()) {
    throw Error(ErrorKind::InvalidArgument, sink_->label() +
                                                " must be written in order, index first, but a "
                                                "Writer knows the index last: use save()");
  }
  layout_ = new_layout(format, std::move(kind), sink_->start());
}

FileWriter::~FileWriter() {
  if (is_foreign()) {
    static_cast<void>(sink_.release());
  } else {
    abort_now();
  }
}

void FileWriter::must_be_ours() const {
  if (!is_foreign()) return;
  throw Error(ErrorKind::InvalidArgument,
              "the writer was made before a fork(): only the parent can use it");
}

void FileWriter::must_be_open() const {
  if (state_ == State::Open) return;
  throw Error(ErrorKind::InvalidArgument,
              state_ == State::Closed ? "the writer is closed" : "the writer was aborted");
}

void FileWriter::abort_now() noexcept {
  if (state_ != State::Open) return;
  state_ = State::Aborted;
  if (sink_) sink_->abort();
  sink_.reset();
}

std::vector<Saving> FileWriter::prepare(std::span<const AddedTensor> tensors,
                                        const HeldMemory& held, Staging& staging) {
  std::vector<Saving> savings;
  savings.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const AddedTensor& added = tensors[i];
    savings.push_back(
        prepare_saving(added.name, held.tensors()[i], staging, added.type, added.module_index));
    layout_->check(savings.back().spec);
  }
  check_not_overwritten(*sink_, savings);
  std::unordered_set<std::string_view> names;
  for (const AddedTensor& added : tensors) {
    if (names.insert(added.name).second && !names_.contains(added.name)) continue;
    throw Error(ErrorKind::InvalidArgument, "tensor " + quote(added.name) + " was added before");
  }
  return savings;
}

// Places tensors behind those that are there: all of them or, if it throws, none.
std::vector<SaveItem> FileWriter::place(std::vector<Saving>& savings) {
  const std::size_t first = layout_->tensors().size();
  const std::uint64_t end = layout_->end();
  if (layout_->kind().share) tie_savings(savings);
  try {
    std::vector<SaveItem> items = add_to(*layout_, savings);
    layout_->check_size();
    check_room(layout_->file_size() - end);
    return items;
  } catch (...) {
    layout_->remove_from(first);
    throw;
  }
}

void FileWriter::check_room(std::uint64_t more) const {
  if (!reserved_) return;
  const std::uint64_t needed = layout_->prefix_size();
  if (needed <= *reserved_ || sink_->can_resize_head(needed, more)) return;
  throw Error(ErrorKind::InvalidArgument,
              sink_->label() + " has no room for more tensors: its index would take " +
                  std::to_string(needed) + " bytes, and " + std::to_string(*reserved_) +
                  " are reserved in front of data that can no longer move. Set the option "
                  "'expected_tensors' to the number of all tensors" +
                  (layout_->kind().chunk_size > 0 ? ", and 'expected_bytes' to their size" : "") +
                  ", or add all of them in one call");
}

// Reserves room for the prefix once the first tensors are known. A prefix that outgrows its room
// moves all data up.
void FileWriter::begin() {
  if (reserved_) return;
  std::uint64_t expected = std::min(options_.expected_tensors, kMostExpected) *
                           (kTypicalEntry + (layout_->has_digests() ? kMostDigests : 0));
  if (const std::uint64_t chunk = layout_->kind().chunk_size; chunk > 0) {
    expected += options_.expected_bytes > 0
                    ? info_of(layout_->kind().chunk_hash).size *
                          std::min(chunk_count(options_.expected_bytes, chunk), kMostChunks)
                    : sink_->usual_digests_size();
  }
  const std::uint64_t now = layout_->prefix_size();
  if (expected > 0) expected += now;  // which has the metadata
  reserved_ = std::max(now, align_up(std::max(sink_->usual_head_size(), expected), kHeadAlignment));
  sink_->begin(*reserved_, std::nullopt);
  if (layout_->terminator().empty()) sink_->cut_behind();
}

void FileWriter::add(std::span<const AddedTensor> tensors) {
  must_be_ours();
  Call call(*this);
  must_be_open();
  std::vector<at::Tensor> given;
  given.reserve(tensors.size());
  for (const AddedTensor& added : tensors) given.push_back(added.tensor);
  const HeldMemory held(given);
  Staging staging;
  std::vector<Saving> savings = prepare(tensors, held, staging);
  staging.begin();
  const std::size_t first = layout_->tensors().size();
  const std::vector<SaveItem> items = place(savings);
  try {
    for (const AddedTensor& added : tensors) names_.insert(added.name);
    begin();
    SaveSettings settings = save_settings(options_.save, threads_, staging);
    settings.begin = sink_->start() + *reserved_;
    tensorizer::save_tensors(*sink_, *layout_, first, items, settings, progress_, call.cancel);
    staging.finish();
    call.cancel.check();
    tensor_count_ += tensors.size();
  } catch (...) {
    // The file lacks the data of a tensor and cannot be completed.
    abort_now();
    throw;
  }
}

void FileWriter::write_ends(std::uint64_t prefix_size, Cancel& cancel) {
  // add() has refused duplicate names, so only nested names can still conflict.
  if (std::any_of(names_.begin(), names_.end(),
                  [](const std::string& name) { return is_nested(name); })) {
    layout_->check_names(cancel);
  }
  begin();
  write_terminator(*sink_, *layout_, cancel);
  // If it cannot be resized, check_room() has found that it is large enough.
  const std::uint64_t wanted = std::max(layout_->prefix_size(), prefix_size);
  if (sink_->can_resize_head(wanted, 0)) reserved_ = wanted;
  sink_->write_head(layout_->prefix(sink_->start(), *reserved_), cancel);
}

void FileWriter::flush() {
  must_be_ours();
  Call call(*this);
  must_be_open();
  if (!sink_->in_place()) return;
  // Double the room: an index that grows a little at a time would soon outgrow it again, and each
  // time all data moves up.
  const bool grows = reserved_ && layout_->prefix_size() > *reserved_;
  try {
    write_ends(grows ? std::min(2 * *reserved_, layout_->largest_prefix()) : 0, call.cancel);
    call.cancel.check();
  } catch (...) {
    abort_now();
    throw;
  }
}

void FileWriter::close() {
  must_be_ours();
  if (gate_.has(calling_thread())) {
    abort();
    throw Error(
        ErrorKind::Cancelled,
        "the writer is in use on this thread, so close() cannot finish the file: the interrupted "
        "call is aborted, and the target stays as it was");
  }
  Call call(*this);
  if (state_ == State::Closed) return;
  must_be_open();
  try {
    write_ends(0, call.cancel);
    sink_->finish(layout_->file_size(), call.cancel);
  } catch (...) {
    abort_now();
    throw;
  }
  state_ = State::Closed;
  sink_.reset();
}

void FileWriter::abort() {
  if (is_foreign()) return;
  abort_wanted_ = true;
  cancel();
  if (gate_.has(calling_thread())) return;
  Cancel waiting;
  const Gate::Entry entry(gate_, calling_thread(), waiting);
  abort_now();
}

std::pair<std::uint64_t, std::uint64_t> FileWriter::progress() const {
  return {progress_.done, progress_.total};
}

void FileWriter::cancel() {
  const std::lock_guard lock(cancel_mutex_);
  if (running_) running_->request();
}

}  // namespace tensorizer
