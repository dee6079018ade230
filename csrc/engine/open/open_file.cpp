#include "engine/open/open_file.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/redaction.h"
#include "base/suggest.h"
#include "engine/open/prefetch_cache.h"
#include "engine/open/read_ahead.h"
#include "engine/open/read_catalogue.h"
#include "engine/read_arriving.h"
#include "format/tensors/crypt_info.h"
#include "io/signed/open.h"

namespace tensorizer {

namespace {

// A table of all names takes as long to make as this many searches for one, at least.
constexpr int kMostSearches = 8;

// Half of the memory is for bytes that are read ahead, the other half for the load that uses them.
std::unique_ptr<ReadAhead> make_read_ahead(const std::shared_ptr<Source>& source,
                                           const Catalogue& catalogue,
                                           std::uint64_t memory_ceiling) {
  if (!source->remote()) return nullptr;
  return std::make_unique<ReadAhead>(source, catalogue.end(), memory_ceiling / 2);
}

// Returns the bytes of the file that the load of an item reads.
Span span_of(const LoadItem& item, const Catalogue& catalogue) {
  const Entry& e = catalogue.entries()[item.entry];
  return {begin_of(item, e), end_of(item, e)};
}

// Returns ": 'a', 'b'" with the first names of a file, for messages.
std::string first_of(std::span<const std::string_view> names) {
  constexpr std::size_t kMostShown = 8;
  std::string list;
  for (const std::string_view name : names.first(std::min(names.size(), kMostShown))) {
    list += (list.empty() ? ": " : ", ") + quote(name);
  }
  return names.size() > kMostShown ? list + " and others, which names() lists" : list;
}

// Throws if the options ask for signed bytes, and the source gives others.
std::shared_ptr<Source> as_trusted(std::shared_ptr<Source> source, const LoadOptions& options,
                                   Wants wants) {
  check_wants(*source, wants);
  const SignedOptions wanted = signed_options_in(options.source.given);
  if (wanted.trust.empty() || source->signed_as()) return source;
  throw Error(ErrorKind::InvalidArgument,
              source->label() +
                  ": option 'trust' is for files with a signature, and this is none: "
                  "give its path or URI");
}

}  // namespace

void check_wants(const Source& source, Wants wants) {
  if (wants == Wants::AnyOrder && source.sequential()) {
    throw Error(ErrorKind::InvalidArgument,
                source.label() +
                    ": it can be read only once, in order, which is not enough here: write it to a "
                    "disk first");
  }
  if (wants == Wants::All || !source.checks_at_end()) return;
  throw Error(ErrorKind::InvalidArgument,
              source.label() +
                  ": it was signed in whole, so that a part of it cannot be checked: load all "
                  "tensors at once, or with the option hash_first=\"true\", which reads all of it "
                  "first; or sign it in shards, as 'tensorizer-ops sign' does");
}

OpenFile::OpenFile(std::shared_ptr<Source> source, const LoadOptions& options, Cancel& cancel,
                   Wants wants)
    : source_(as_trusted(std::move(source), options, wants)),
      options_(options),
      keys_(options_.key.empty()
                ? nullptr
                : std::make_unique<FileKeys>(resolve_key(options_.key), options_.kdf_limit,
                                             source_->label())),
      catalogue_(read_catalogue(*source_, keys_.get(), cancel, &whole_files_)),
      names_(clean_names(all_names(*catalogue_))),
      ahead_(make_read_ahead(source_, *catalogue_, options_.memory_ceiling)),
      prefetch_cache_(std::make_shared<PrefetchCache>(source_, options_.memory_ceiling / 2)) {
  check_promises(cancel);
}

OpenFile::~OpenFile() = default;

std::shared_ptr<Mapping> OpenFile::map() {
  const FileAccess access = options_.source.file_access;
  if (access == FileAccess::Buffered || access == FileAccess::Direct) return nullptr;
  return catalogue_->encrypted() ? nullptr : source_->map();
}

// Checks what the options demand of the file.
void OpenFile::check_promises(Cancel& cancel) const {
  const auto refuse = [&](ErrorKind kind, const std::string& why) {
    throw Error(kind, source_->label() + ": " + why);
  };
  if (options_.source.file_access != FileAccess::Auto && !source_->identity()) {
    refuse(ErrorKind::InvalidArgument,
           "option 'io' says how files of this machine are read, and this is none");
  }
  if (options_.require_authenticated) {
    if (!keys_) refuse(ErrorKind::InvalidArgument, "'require_authenticated' needs a key");
    if (!catalogue_->authenticated()) {
      refuse(ErrorKind::Crypto,
             "nothing authenticates its names, shapes and order, and 'require_authenticated' asks "
             "for that");
    }
  }
  if (options_.digest && DataDigests::are_listed(*catalogue_, options_.digest->version)) {
    check_digest(pinned_digests(), cancel);
  }
}

DataDigests OpenFile::pinned_digests() const {
  const DigestVersion version = options_.digest->version;
  return {*catalogue_, version, DataDigests::are_listed(*catalogue_, version), source_->label()};
}

void OpenFile::check_digest(const DataDigests& digests, Cancel& cancel) const {
  const ModelDigest found = digests.model_digest(cancel);
  if (found == *options_.digest) return;
  throw Error(ErrorKind::HashMismatch,
              source_->label() + ": its digest is " + to_text(found) + ", but must be " +
                  to_text(*options_.digest) + ": this is another model" +
                  (digests.listed() ? "" : ", or some of its data is not what was saved"));
}

std::shared_ptr<Source> OpenFile::source_for(std::span<const LoadItem> items, bool at_once,
                                             Cancel& cancel) {
  if (!ahead_ || items.empty()) return source_;
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end = 0;
  for (const LoadItem& item : items) {
    // Reading ahead would fetch what lies between the runs.
    if (item.runs != nullptr) return source_;
    const Span span = span_of(item, *catalogue_);
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
  return ahead_->source_for(begin, end, at_once, cancel);
}

std::shared_ptr<Source> OpenFile::source_to_load(std::span<const LoadItem> items, bool at_once,
                                                 Cancel& cancel) {
  if (prefetch_cache_->has_any()) {
    std::vector<Span> wanted;
    wanted.reserve(items.size());
    for (const LoadItem& item : items) wanted.push_back(span_of(item, *catalogue_));
    if (std::shared_ptr<Source> found = prefetch_cache_->source_for(wanted, cancel)) return found;
  }
  return source_for(items, at_once, cancel);
}

bool OpenFile::takes_all(std::span<const LoadItem> items) const {
  std::uint64_t left = 0;
  for (const Entry& entry : catalogue_->entries()) left += entry.data_size;
  std::vector<bool> loaded(catalogue_->entries().size());
  for (const LoadItem& item : items) {
    const Entry& entry = catalogue_->entries()[item.entry];
    // Tensors that report their arrival are used before all bytes have been hashed.
    if (!is_whole(item, entry) || item.arrived != nullptr || loaded[item.entry]) continue;
    loaded[item.entry] = true;
    left -= entry.data_size;
  }
  return left == 0;
}

std::shared_ptr<WholeFilesSource> OpenFile::source_of_whole(std::span<const LoadItem> items,
                                                            Verify verify) const {
  const bool has_own = !catalogue_->data_digests().empty() || !catalogue_->chunk_digests().empty();
  if (whole_files_.empty() || verify != Verify::All || options_.digest || has_own ||
      source_->signed_as()) {
    return nullptr;
  }
  if (takes_all(items)) return std::make_shared<WholeFilesSource>(source_, whole_files_);
  throw Error(ErrorKind::InvalidArgument,
              source_->label() + ": a part of it cannot be verified: it keeps no hashes, and the " +
                  whole_files_.front().digest.name() +
                  " that its server keeps covers all of a file: load all tensors at once, or with "
                  "verify=\"none\", or from a copy with hashes, which convert() writes");
}

std::shared_ptr<Source> OpenFile::source_for(std::uint64_t begin, std::uint64_t end,
                                             Cancel& cancel) {
  return ahead_ ? ahead_->source_for(begin, end, true, cancel) : source_;
}

void OpenFile::prefetch(std::vector<std::uint32_t> numbers, Progress& progress, Cancel& cancel) {
  for (std::uint32_t& number : numbers) number = entry_number(number);
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());  // tied names
  std::vector<Span> spans;
  spans.reserve(numbers.size());
  for (const std::uint32_t number : numbers) {
    catalogue_->check_header_size(number, SourceLocation(*source_));
    spans.push_back(span_of(whole_tensor(*catalogue_, number), *catalogue_));
  }
  std::ranges::sort(spans, {}, &Span::begin);
  prefetch_cache_->fetch(spans, progress, cancel);
}

bool OpenFile::keeps_prefetched() const { return prefetch_cache_->has_any(); }

void OpenFile::need_until(std::uint32_t number, std::uint64_t size) {
  const Entry& stored = entry(number);
  if (ahead_) ahead_->need_until(stored.data_offset + std::min(size, stored.data_size));
}

std::uint64_t OpenFile::chunk_size(Verify asked) const {
  const Verify verify = checked(asked);
  if (verify == Verify::None) return catalogue_->encrypted() ? kCryptChunk : 1;
  const bool in_chunks = compares_chunks(*catalogue_, verify, nullptr);
  return in_chunks && !catalogue_->encrypted() ? catalogue_->chunk_digests().chunk_size() : 0;
}

std::uint32_t OpenFile::find(std::string_view name) {
  if (searches_ < kMostSearches) {
    ++searches_;
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) return static_cast<std::uint32_t>(found - names_.begin());
  } else {
    std::call_once(tabled_, [&] {
      Cancel unattended{Cancel::Unattended{}};
      table_.emplace(names_, unattended);
    });
    if (const std::optional<std::uint32_t> number = table_->find(name)) return *number;
  }
  const SourceLocation location(*source_);
  const std::string question = did_you_mean(name, names_);
  throw Error(ErrorKind::NoSuchTensor, source_->label() + " has no tensor " + quote(name) +
                                           " among its " + std::to_string(names_.size()) +
                                           (question.empty() ? first_of(names_) : question));
}

std::optional<Metadata> OpenFile::metadata() const {
  if (!catalogue_->has_metadata()) return std::nullopt;
  const std::span<const MetadataPair> pairs = catalogue_->metadata();
  return Metadata(pairs.begin(), pairs.end());
}

std::vector<std::uint32_t> OpenFile::select(const std::optional<std::vector<std::string>>& names) {
  std::vector<std::uint32_t> selected(names ? names->size() : names_.size());
  for (std::uint32_t i = 0; i < selected.size(); ++i) selected[i] = names ? find((*names)[i]) : i;
  return selected;
}

DType OpenFile::dtype(std::uint32_t number) const {
  if (const std::optional<DType> stored = entry(number).dtype) return *stored;
  throw Error(ErrorKind::InvalidArgument,
              describe_entry(number) +
                  ": its dtype is stored only in front of its data, and this source can be read "
                  "only once: load the tensor to get its dtype");
}

std::vector<LoadItem> OpenFile::all_items() const {
  // Tensors of an encrypted file, or of one on a server, pass one by one through a port that drops
  // them. A local file is read and not mapped, because it may be truncated meanwhile.
  const bool staged = !source_->identity() || catalogue_->encrypted();
  std::vector<LoadItem> items;
  const std::size_t entries = catalogue_->entries().size();
  items.reserve(entries);
  for (std::uint32_t i = 0; i < entries; ++i) {
    items.push_back(whole_tensor(*catalogue_, i));
    if (staged && items.back().range.size > 0) items.back().staged = StagedRange{0};
  }
  return items;
}

TensorDetails OpenFile::read_details(std::uint32_t number, std::vector<std::byte>& header,
                                     Cancel& cancel) {
  const std::uint32_t entry = entry_number(number);
  const Entry& stored = catalogue_->entries()[entry];
  const SourceLocation location(*source_);
  catalogue_->check_header_size(entry, location);
  const auto source = source_for(stored.header_offset, stored.data_offset, cancel);
  read_arriving(*source, stored.header_offset, stored.header_size(), header, cancel);
  return catalogue_->details(entry, header, location);
}

HashKinds OpenFile::hashes(Cancel& cancel) {
  const ChunkDigests& chunks = catalogue_->chunk_digests();
  HashKinds hashes{.chunked = !chunks.empty(), .chunk_hash = chunks.hash()};
  if (names_.empty()) return hashes;
  const SourceLocation location(*source_);
  catalogue_->check_header_size(0, location);
  std::vector<std::byte> header;
  read_arriving(*source_, entry(0).header_offset, entry(0).header_size(), header, cancel);
  const Digests digests = catalogue_->details(0, header, location).digests;
  hashes.crc32 = digests[Hash::Crc32].has_value();
  hashes.sha256 = digests[Hash::Sha256].has_value();
  return hashes;
}

std::string OpenFile::describe_entry(std::uint32_t number) const {
  const RedactedQuotes quotes(*source_);
  return source_->label() + ": " + describe(names_[number], entry_number(number));
}

}  // namespace tensorizer
