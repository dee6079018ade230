#include "engine/rewrite/rewrite.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/redaction.h"
#include "engine/save/file_kind.h"
#include "engine/save/new_layout.h"
#include "engine/save/save_shards.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

// Returns whether a tensor is read: for its data, or for its header, which has to be checked.
bool is_read(const Entry& entry) { return entry.end() > entry.header_offset; }

// Passes the data of the original tensors to one worker of the save.
class OriginReader final : public TensorReader {
 public:
  explicit OriginReader(Origin& origin) : origin_(origin), source_(origin.file()) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    origin_.read(source_, tensor, position, out);
  }

 private:
  Origin& origin_;
  TensorSource source_;
};

}  // namespace

Origin::Origin(OpenFile& from, Source& source, Cancel& cancel)
    : from_(from),
      pinned_(from.options().digest ? std::optional(from.pinned_digests()) : std::nullopt),
      file_{source, from.catalogue(), from.keys(), pinned_ ? &*pinned_ : nullptr,
            !from.catalogue().encrypted() &&
                compares_chunks(from.catalogue(), Verify::All, pinned_ ? &*pinned_ : nullptr)},
      cancel_(cancel),
      sequential_(source.sequential()) {}

std::unique_ptr<TensorReader> Origin::open_reader() {
  return std::make_unique<OriginReader>(*this);
}

void Origin::read(TensorSource& source, std::uint32_t number, std::uint64_t position, Bytes bytes) {
  if (sequential_) await_turn(number);
  source.read(order_[number], position, bytes, cancel_);
  if (!sequential_ || position + bytes.size() < entry(number).data_size) return;
  const std::lock_guard lock(mutex_);
  next_ = number + 1;
  changed_.notify_all();
}

void Origin::await_turn(std::uint32_t number) {
  std::unique_lock lock(mutex_);
  while (true) {
    while (next_ < number && !is_read(entry(next_))) ++next_;
    if (next_ == number) return;
    cancel_.wait(changed_, lock);
  }
}

void Origin::confirm() {
  if (pinned_) from_.check_digest(*pinned_, cancel_);
  file_.source.confirm(cancel_);
}

namespace {

// Returns the spec of a name. In a safetensors file, tensors have the names that a program asks for
// them by: it does not know the modules that they belong to.
TensorSpec spec_of(OpenFile& from, std::uint32_t number, Format format, const NewNames& names) {
  const Entry& entry = from.entry(number);
  const NamedEntry named = from.catalogue().named(number);
  TensorSpec spec;
  const std::string_view name = from.names()[number];
  spec.name = format == Format::Tensors ? named.name : name;
  if (names) {
    const std::string& changed = names->at(std::string(name));
    if (changed != name) spec.name = changed;
  }
  spec.type = named.type;
  if (!entry.dtype) {
    throw Error(ErrorKind::InvalidArgument,
                from.describe_entry(number) +
                    ": its dtype is stored only with its data, and this source can be read only "
                    "once: write the file to a disk first");
  }
  spec.dtype = *entry.dtype;
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

KeptNames kept_names(OpenFile& from, const NewNames& new_names, Cancel& cancel) {
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
    if (new_names && !new_names->contains(std::string(from.names()[number]))) continue;
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
std::vector<SaveItem> place(OpenFile& from, Origin& origin, const NewNames& new_names,
                            Format format, Layout& layout, Cancel& cancel) {
  const auto naming_the_file = [&](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::InvalidArgument) throw;
      throw Error(error.kind(), from.source().label() + ": " + std::string(error.message()));
    }
  };
  const KeptNames names = kept_names(from, new_names, cancel);
  std::vector<SaveItem> items;
  for (const KeptNames::Name& name : names.order) {
    TensorSpec spec = spec_of(from, name.number, format, new_names);
    origin.change(name.number, format, spec);
    if (!names.owns(name) && layout.kind().share) {
      naming_the_file([&] { layout.tie(spec, names.places[name.entry]); });
      continue;
    }
    if (!names.owns(name) && from.source().sequential()) refuse_to_read_twice(from, name.number);
    origin.add(name.entry);
    SaveItem item;
    item.checked_chunks = origin.checked_chunks(name.entry);
    const bool has_data = spec.data_size() > 0;
    naming_the_file([&] { layout.add(std::move(spec)); });
    if (has_data || is_read(from.catalogue().entries()[name.entry])) {
      item.read = static_cast<std::uint32_t>(items.size());
    }
    items.push_back(item);
  }
  naming_the_file([&] { layout.check_names(cancel); });
  return items;
}

void check_not_overwritten(const Sink& sink, const Origin& origin) {
  const std::optional<FileIdentity> overwritten = sink.overwritten();
  if (!overwritten || !origin.reads(*overwritten)) return;
  throw Error(ErrorKind::InvalidArgument,
              sink.label() + " is written in place, and would be overwritten while it is read: " +
                  "write to another file");
}

}  // namespace

void rewrite(OpenFile& from, Origin& origin, const RewriteRequest& request, Progress& progress,
             Cancel& cancel) {
  const auto& [to, hashes, threads, options, names, metadata] = request;
  Source& source = origin.file().source;
  const RedactedQuotes quotes(source);
  check_key(source, from.catalogue(), from.keys());
  if (from.catalogue().has_digests_of_others()) {
    throw Error(ErrorKind::InvalidFormat,
                source.label() +
                    ": the file lists hashes of tensors with other names, types or shapes, so it "
                    "was changed or is damaged; load and save it if it is right");
  }
  const Format format = format_of(to, options.format);
  FileKind kind = file_kind(format, hashes, metadata, options, cancel);
  if (!options.share) kind.share = format == Format::Tensors;
  const DataDigests* const pinned = origin.file().data_digests;
  if (pinned != nullptr && names && names->size() < from.names().size() && !pinned->listed()) {
    throw Error(ErrorKind::InvalidArgument,
                source.label() +
                    ": option 'digest' is given, and only some of the tensors are read, "
                    "of a file that keeps no digests that its own digest is made of");
  }
  SaveSettings settings;
  settings.threads = threads;
  settings.memory_ceiling = options.memory_ceiling;
  settings.moves_in_flight = threads;
  if (const std::optional<std::uint64_t> size = source.size()) {
    settings.moves_in_flight = source.hints(0, *size).reads_for(threads);
  }
  settings.open_access = [&] { return TensorAccess{.reader = origin.open_reader()}; };
  settings.confirm = [&] { origin.confirm(); };
  if (options.max_shard_size > 0) {
    const std::unique_ptr<Layout> layout = new_layout(format, kind, 0);
    SavedModel model{.kind = std::move(kind)};
    model.items = place(from, origin, names, format, *layout, cancel);
    settings.memory_ceiling /= 1 + origin.memory();
    for (const PlacedTensor& tensor : layout->tensors()) model.specs.push_back(tensor.spec);
    save_in_shards(to, std::move(model), options, settings, progress, cancel);
    return;
  }
  const std::unique_ptr<Sink> sink = open_sink(to, options.sink, cancel);
  check_not_overwritten(*sink, origin);
  // Others would see what is written before all of the source has been compared.
  if (source.checks_at_end() && (sink->sequential() || sink->in_place())) source.confirm(cancel);
  if (sink->sequential() && source.sequential()) {
    throw Error(ErrorKind::InvalidArgument,
                sink->label() + " must be written in order, digests first, but " + source.label() +
                    " can be read only once: one of the two must be a regular file");
  }
  const std::unique_ptr<Layout> layout = new_layout(format, std::move(kind), sink->start());
  const std::vector<SaveItem> items = place(from, origin, names, format, *layout, cancel);
  settings.memory_ceiling /= 1 + origin.memory();
  save_file(*sink, *layout, items, settings, progress, cancel);
}

}  // namespace tensorizer
