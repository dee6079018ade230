#include "transfer/files/rewrite.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/load/tensor_source.h"
#include "engine/save/new_layout.h"
#include "engine/save/save_shards.h"
#include "io/places/open.h"
#include "transfer/files/saving.h"
#include "transfer/memory/blocks.h"
#include "transfer/memory/dtype.h"

namespace tensorizer {

namespace {

// Returns whether a tensor is read: for its data, or for its header, which has to be checked.
bool is_read(const Entry& entry) { return entry.end() > entry.header_offset; }

// The tensors of the original file that are read, in the order of the new one. A sequential source
// is read by one worker at a time, in that order. Shared by all workers of the save.
class Origin {
 public:
  Origin(OpenFile& from, Source& source, DataDigests* data_digests, Cancel& cancel)
      : file_{source, from.catalogue(), from.keys(), data_digests,
              !from.catalogue().encrypted() &&
                  compares_chunks(from.catalogue(), Verify::All, data_digests)},
        cancel_(cancel),
        sequential_(source.sequential()) {}

  const TensorFile& file() const noexcept { return file_; }
  // Adds an entry to those that are read, with the type that it is cast to.
  void add(std::uint32_t entry, DType type) {
    order_.push_back(entry);
    types_.push_back(scalar_type(type));
    memory_of_casts_ = std::max(memory_of_casts_, cast(order_.size() - 1).memory());
  }

  // The types of a tensor's elements in the original file and in the new one.
  struct Cast {
    c10::ScalarType from;
    c10::ScalarType to;

    // Returns the memory that it takes for each byte of the new file.
    std::uint64_t memory() const {
      return from == to ? 0 : c10::elementSize(from) / c10::elementSize(to) + 1;
    }
  };
  Cast cast(std::size_t number) const {
    return {scalar_type(*entry(number).dtype), types_[number]};
  }
  // Returns the most memory that a cast takes for each byte of the new file.
  std::uint64_t memory_of_casts() const noexcept { return memory_of_casts_; }

  void read(TensorSource& source, std::uint32_t number, std::uint64_t position, Bytes bytes) {
    if (sequential_) await_turn(number);
    source.read(order_[number], position, bytes, cancel_);
    if (!sequential_ || position + bytes.size() < entry(number).data_size) return;
    const std::lock_guard lock(mutex_);
    next_ = number + 1;
    changed_.notify_all();
  }

 private:
  const Entry& entry(std::size_t number) const { return file_.catalogue.entries()[order_[number]]; }

  // Blocks until all earlier tensors have been read. Skips those that are never read. Cannot
  // deadlock: the worker that has an earlier tensor has already started to move it.
  void await_turn(std::uint32_t number) {
    std::unique_lock lock(mutex_);
    while (true) {
      while (next_ < number && !is_read(entry(next_))) ++next_;
      if (next_ == number) return;
      cancel_.wait(changed_, lock);
    }
  }

  const TensorFile file_;
  Cancel& cancel_;
  const bool sequential_;
  std::vector<std::uint32_t> order_;
  std::vector<c10::ScalarType> types_;
  std::uint64_t memory_of_casts_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t next_ = 0;  // the tensor to read next
};

// Passes the data of the original tensors to one worker of the save.
class OriginReader final : public TensorReader {
 public:
  explicit OriginReader(Origin& origin) : origin_(origin), source_(origin.file()) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    const auto [from, to] = origin_.cast(tensor);
    if (from == to) {
      origin_.read(source_, tensor, position, out);
      return;
    }
    const std::size_t count = out.size() / c10::elementSize(to);
    const std::size_t first = position / c10::elementSize(to);
    const Bytes stored = scratch_.take(count * c10::elementSize(from));
    origin_.read(source_, tensor, first * c10::elementSize(from), stored);
    const auto elements = at::from_blob(stored.data(), {static_cast<std::int64_t>(count)}, from);
    const auto size = static_cast<std::int64_t>(out.size());
    Elements(elements, to).get(0, at::from_blob(out.data(), {size}, at::kByte));
  }

 private:
  Origin& origin_;
  TensorSource source_;
  Scratch scratch_;
};

// Returns the spec of a name. In a safetensors file, tensors have the names that a program asks for
// them by: it does not know the modules that they belong to.
TensorSpec spec_of(OpenFile& from, std::uint32_t number, Format format,
                   const TensorChanges& changes) {
  const Entry& entry = from.entry(number);
  const NamedEntry named = from.catalogue().named(number);
  TensorSpec spec;
  const std::string_view name = from.names()[number];
  spec.name = format == Format::Tensors ? named.name : name;
  if (changes.names) {
    const std::string& changed = changes.names->at(std::string(name));
    if (changed != name) spec.name = changed;
  }
  spec.type = named.type;
  if (!entry.dtype) {
    throw Error(ErrorKind::InvalidArgument,
                from.describe_entry(number) +
                    ": its dtype is stored only with its data, and this source can be read only "
                    "once: write the file to a disk first");
  }
  const c10::ScalarType stored = scalar_type(*entry.dtype);
  const c10::ScalarType cast = cast_type(stored, changes.dtype);
  spec.dtype = cast == stored ? *entry.dtype : format_dtype(cast, spec.name);
  spec.shape.assign(entry.shape.begin(), entry.shape.end());
  spec.meta = entry.meta;
  return spec;
}

[[noreturn]] void refuse_to_read_twice(const OpenFile& from, std::uint32_t name) {
  throw Error(ErrorKind::InvalidArgument,
              from.describe_entry(name) +
                  " has the data of another tensor, which the new file would store twice, but this "
                  "source can be read only once: write the file to a disk first, or convert it to "
                  "a .tensors file that shares data");
}

// The names of the original that the new file has, in their order.
struct KeptNames {
  struct Name {
    std::uint32_t number;
    std::uint32_t entry;
  };

  std::vector<Name> order;
  // By entry: the name that its data is stored under, and the place of that tensor in the new file.
  std::vector<std::uint32_t> owners;
  std::vector<std::uint32_t> places;

  bool owns(const Name& name) const { return owners[name.entry] == name.number; }
};

KeptNames kept_names(OpenFile& from, const TensorChanges& changes, Cancel& cancel) {
  const Catalogue& catalogue = from.catalogue();
  const std::vector<std::uint32_t> order = stored_order(catalogue.entries(), cancel);
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  KeptNames names;
  names.owners.assign(order.size(), kNone);
  names.places.resize(order.size());
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < catalogue.name_count(); ++i) {
    const Tie* const tie = catalogue.tie(i);
    const std::uint32_t entry = tie != nullptr ? tie->entry : order[next++];
    const std::uint32_t number = tie != nullptr ? i : catalogue.number_of(entry);
    if (changes.names && !changes.names->contains(std::string(from.names()[number]))) continue;
    names.order.push_back({number, entry});
    // Its own name owns the data of a tensor, or the first one that is left.
    if (tie == nullptr || names.owners[entry] == kNone) names.owners[entry] = number;
  }
  std::uint32_t placed = 0;
  for (const KeptNames::Name& name : names.order) {
    if (names.owns(name)) names.places[name.entry] = placed++;
  }
  return names;
}

// Places the names, and returns where the data of the tensors comes from.
std::vector<SaveItem> place(OpenFile& from, Origin& origin, const TensorChanges& changes,
                            Format format, Layout& layout, Cancel& cancel) {
  const auto naming_the_file = [&](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::InvalidArgument) throw;
      throw Error(error.kind(), from.source().label() + ": " + std::string(error.message()));
    }
  };
  const KeptNames names = kept_names(from, changes, cancel);
  std::vector<SaveItem> items;
  for (const KeptNames::Name& name : names.order) {
    TensorSpec spec = spec_of(from, name.number, format, changes);
    if (!names.owns(name) && layout.kind().share) {
      naming_the_file([&] { layout.tie(spec, names.places[name.entry]); });
      continue;
    }
    if (!names.owns(name) && from.source().sequential()) refuse_to_read_twice(from, name.number);
    origin.add(name.entry, spec.dtype);
    naming_the_file([&] { layout.add(std::move(spec)); });
    SaveItem item;
    if (is_read(from.catalogue().entries()[name.entry])) {
      item.read = static_cast<std::uint32_t>(items.size());
    }
    items.push_back(item);
  }
  naming_the_file([&] { layout.check_names(cancel); });
  return items;
}

}  // namespace

void rewrite(OpenFile& from, Source& source, const RewriteRequest& request, Progress& progress,
             Cancel& cancel) {
  const auto& [to, hashes, threads, options, changes] = request;
  const RedactedQuotes quotes(source);
  if (from.catalogue().encrypted() && from.keys() == nullptr) {
    throw Error(ErrorKind::Crypto, source.label() +
                                       ": the file is encrypted, and no key "
                                       "was given for it");
  }
  if (from.catalogue().has_digests_of_others()) {
    throw Error(ErrorKind::InvalidFormat,
                source.label() +
                    ": the file lists hashes of tensors with other names, types or shapes, so it "
                    "was changed or is damaged; load and save it if it is right");
  }
  if (changes.dtype && !is_castable(*changes.dtype)) {
    throw Error(ErrorKind::InvalidArgument,
                "dtype is " + dtype_name(*changes.dtype) + ", and must be a real floating type");
  }
  const Format format = format_of(to, options.format);
  FileKind kind = file_kind(format, hashes, from.metadata(), options, cancel);
  if (!options.share) kind.share = format == Format::Tensors;
  std::optional<DataDigests> pinned;
  if (from.options().digest) pinned.emplace(from.pinned_digests());
  if (pinned && changes.names && changes.names->size() < from.names().size() && !pinned->listed()) {
    throw Error(ErrorKind::InvalidArgument,
                source.label() +
                    ": option 'digest' is given, and only some of the tensors are read, "
                    "of a file that keeps no digests that its own digest is made of");
  }
  Origin origin(from, source, pinned ? &*pinned : nullptr, cancel);
  SaveSettings settings;
  settings.threads = threads;
  settings.memory_ceiling = options.memory_ceiling;
  settings.moves_in_flight = threads;
  if (const std::optional<std::uint64_t> size = source.size()) {
    settings.moves_in_flight = source.hints(0, *size).reads_for(threads);
  }
  settings.open_access = [&] {
    return TensorAccess{.reader = std::make_unique<OriginReader>(origin)};
  };
  settings.confirm = [&] {
    if (pinned) from.check_digest(*pinned, cancel);
    source.confirm(cancel);
  };
  if (options.max_shard_size > 0) {
    const std::unique_ptr<Layout> layout = new_layout(format, kind, 0);
    SavedModel model{.kind = std::move(kind)};
    model.items = place(from, origin, changes, format, *layout, cancel);
    settings.memory_ceiling /= 1 + origin.memory_of_casts();
    for (const PlacedTensor& tensor : layout->tensors()) model.specs.push_back(tensor.spec);
    save_in_shards(to, std::move(model), options, settings, progress, cancel);
    return;
  }
  const std::unique_ptr<Sink> sink = open_sink(to, options.sink, cancel);
  check_not_overwritten(*sink, from.source());
  if (sink->sequential() && source.sequential()) {
    throw Error(ErrorKind::InvalidArgument,
                sink->label() + " must be written in order, digests first, but " + source.label() +
                    " can be read only once: one of the two must be a regular file");
  }
  const std::unique_ptr<Layout> layout = new_layout(format, std::move(kind), sink->start());
  const std::vector<SaveItem> items = place(from, origin, changes, format, *layout, cancel);
  settings.memory_ceiling /= 1 + origin.memory_of_casts();
  save_file(*sink, *layout, items, settings, progress, cancel);
}

}  // namespace tensorizer
