#include <algorithm>
#include <utility>

#include "base/error.h"
#include "format/name.h"
#include "format/parsing.h"
#include "format/tensors/frame.h"
#include "format/tensors/index.h"

namespace tensorizer {

namespace {

// header length, module index, type, name, dtype, shape, hash section length, data length
constexpr std::uint64_t kSmallestTensorHeader = 8 + 2 + 1 + 2 + 1 + 1 + 2 + 8;

}  // namespace

struct Index::Parser {
  Index& index;
  const FileLocation& location;
  Cancel& cancel;
  Cursor cursor;
  std::vector<std::size_t> dimension_counts;
  std::optional<std::size_t> sealed;  // the position in the index of the digest that seals it

  Parser(Index& index, const FileLocation& location, Cancel& cancel)
      : index(index), location(location), cancel(cancel), cursor(ConstBytes(index.bytes_)) {}

  std::uint64_t prefix_end() const {
    return location.start + kFileHeaderSize + index.header_.index_size;
  }

  std::uint64_t here() const { return location.start + kFileHeaderSize + cursor.position(); }

  [[noreturn]] void fail_entry(const Entry& entry, std::uint64_t offset,
                               const std::string& what) const {
    fail(location, describe(entry.name, index.entries_.size()) + at(offset) + ": " + what);
  }

  void parse() {
    const std::uint64_t count = index.header_.tensor_count;
    index.entries_.reserve(count);
    dimension_counts.reserve(count);
    Pace pace(cancel);
    for (std::uint64_t i = 0; i < count; ++i) {
      pace.step();
      parse_entry();
    }
    // Shapes are set last, because adding dimensions moves them in memory.
    std::span<const std::int64_t> dimensions(index.dimensions_);
    for (std::uint64_t i = 0; i < count; ++i) {
      index.entries_[i].shape = dimensions.first(dimension_counts[i]);
      dimensions = dimensions.subspan(dimension_counts[i]);
    }
    check_frame();
    check_blocks();
    check_names();
    check_seal();
  }

  void parse_entry() {
    Entry entry{};
    const std::uint64_t begin = here();
    bool long_dimensions = false;
    if (index.header_.long_dimensions()) {
      const auto version = cursor.take<std::uint32_t>();
      if (cursor.ok() && version != kOldestVersion && version != kVersionWithLongDimensions) {
        fail(location, "index entry " + std::to_string(index.entries_.size()) + at(begin) +
                           " has version " + std::to_string(version) + ", which is unknown");
      }
      long_dimensions = version == kVersionWithLongDimensions;
      index.long_dimensions_.push_back(long_dimensions);
    }
    entry.name = cursor.take_text<std::uint16_t>();
    const auto type = cursor.take<std::uint8_t>();
    const std::string_view dtype = cursor.take_text<std::uint8_t>();
    const std::size_t first_dimension = index.dimensions_.size();
    const auto dimension_count = cursor.take<std::uint8_t>();
    bool fits = true;
    for (int i = 0; i < dimension_count; ++i) {
      const std::uint64_t dimension =
          long_dimensions ? cursor.take<std::uint64_t>() : cursor.take<std::uint32_t>();
      fits = fits && dimension <= kMaxSigned;
      index.dimensions_.push_back(static_cast<std::int64_t>(dimension));
    }
    entry.header_offset = cursor.take<std::uint64_t>();
    entry.data_offset = cursor.take<std::uint64_t>();
    entry.data_size = cursor.take<std::uint64_t>();
    if (!cursor.ok()) {
      fail(location, "index entry " + std::to_string(index.entries_.size()) + at(begin) +
                         " runs past the end of the index");
    }
    dimension_counts.push_back(dimension_count);
    try {
      check_name(entry.name);
    } catch (const Error& error) {
      fail_entry(entry, begin, "its name " + std::string(error.message()));
    }
    if (type > static_cast<std::uint8_t>(TensorType::StateDictEntry)) {
      fail_entry(entry, begin, "unknown tensor type " + std::to_string(type));
    }
    entry.type = static_cast<TensorType>(type);
    if (is_nested(entry.name) && entry.type != TensorType::StateDictEntry) {
      fail_entry(entry, begin, "a nested name on a tensor that is no state-dict entry");
    }
    const std::optional<StoredDType> stored = parse_dtype(dtype);
    if (!stored) fail_entry(entry, begin, "unknown dtype " + quote(dtype));
    entry.dtype = stored->dtype;
    entry.element_size = stored->size;
    if (!fits) fail_entry(entry, begin, "a dimension is too large");
    check_sizes(entry, begin, std::span(index.dimensions_).subspan(first_dimension));
    index.entries_.push_back(entry);
  }

  void check_sizes(Entry& entry, std::uint64_t begin, std::span<const std::int64_t> shape) const {
    const std::optional<std::uint64_t> size = byte_size(shape, entry.element_size);
    if (!size) fail_entry(entry, begin, "its shape has too many elements");
    const std::uint64_t wanted = *size;
    entry.meta = wanted != 0 && entry.data_size == 0;
    const bool meta_allowed = index.header_.version >= kVersionWithMeta;
    if (entry.data_size != wanted && !(entry.meta && meta_allowed)) {
      fail_entry(entry, begin,
                 "its data has " + std::to_string(entry.data_size) + " bytes where its shape has " +
                     std::to_string(wanted));
    }
    if (entry.header_offset < prefix_end()) {
      fail_entry(entry, begin,
                 "its header offset " + std::to_string(entry.header_offset) +
                     " is inside the file's header or index, which end at " +
                     std::to_string(prefix_end()));
    }
    if (entry.data_offset < entry.header_offset || entry.header_size() < kSmallestTensorHeader) {
      fail_entry(entry, begin,
                 "its data offset " + std::to_string(entry.data_offset) +
                     " leaves no room for a header that starts at " +
                     std::to_string(entry.header_offset));
    }
    std::uint64_t end = 0;
    if (__builtin_add_overflow(entry.data_offset, entry.data_size, &end) || end > kMaxSigned ||
        (location.size && end > *location.size)) {
      fail_entry(entry, begin,
                 "its " + std::to_string(entry.data_size) + " bytes of data" +
                     at(entry.data_offset) + " go past the end of the file" +
                     (location.size
                          ? ", which is at " + std::to_string(*location.size) + ": it is truncated"
                          : ""));
    }
  }

  void check_blocks() {
    const std::vector<Entry>& entries = index.entries_;
    index.end_ = prefix_end();
    if (entries.empty()) return;
    const std::vector<std::uint32_t> order = stored_order(entries, cancel);
    index.end_ = entries[order.back()].end();
    // An index that claims to be shorter than it is would hide the records or entries behind its
    // end.
    if (const Entry& first = entries[order.front()]; first.header_offset != prefix_end()) {
      fail(location, describe(first.name, order.front()) + at(first.header_offset) +
                         " is the first of the file, and does not begin where the index ends, at " +
                         std::to_string(prefix_end()));
    }
    for (std::size_t i = 1; i < order.size(); ++i) {
      const Entry& first = entries[order[i - 1]];
      const Entry& second = entries[order[i]];
      if (first.end() > second.header_offset) {
        fail(location, describe(second.name, order[i]) + at(second.header_offset) + " overlaps " +
                           describe(first.name, order[i - 1]) + ", which ends at " +
                           std::to_string(first.end()));
      }
    }
  }

  void check_names() const {
    std::vector<std::string_view> names = stored_names(index.entries_);
    for (const Tie& tie : index.ties_) names.push_back(tie.name);
    const NameConflict conflict = find_conflict(names, cancel);
    if (conflict.first == conflict.second) return;
    const auto tensor = [&](std::size_t i) {
      if (i < index.entries_.size()) return describe(names[i], i);
      const std::uint32_t entry = index.ties_[i - index.entries_.size()].entry;
      return "tie " + quote(names[i]) + " (to index entry " + std::to_string(entry) + ")";
    };
    const std::size_t second = conflict.second;
    fail(location,
         tensor(second) +
             (second < index.entries_.size() ? at(index.entries_[second].header_offset) : "") +
             " " + std::string(conflict.reason) + " " + tensor(conflict.first));
  }

  void check_frame() {
    const std::uint64_t begin = here();
    const std::size_t first = cursor.position();
    bool has_metadata = false;
    bool has_ties = false;
    bool known = true;
    FrameCursor frame(cursor.take_bytes(cursor.left()));
    while (const std::optional<Record> record = frame.next()) {
      const std::uint64_t end = begin + frame.position();
      const auto refuse = [&](const std::string& fault) {
        fail(location, "the record of kind " + std::to_string(record->kind) + ", which ends" +
                           at(end) + ", " + fault);
      };
      if (index.authentication_ || sealed) {
        refuse("comes after the record that covers all before it");
      }
      known = true;
      std::string fault;
      if (record->kind == kDataDigestsRecord) {
        if (!index.data_digests_.empty()) refuse("appears twice");
        if (record->body.size() != index.entries_.size() * kSha256Size) {
          refuse("does not have one digest for each tensor");
        }
        index.data_digests_ = record->body;
      } else if (const auto hash = hash_of_chunks(record->kind)) {
        if (!index.chunk_digests_.empty()) refuse("appears twice");
        index.chunk_digests_ = parse_chunk_digests(*hash, record->body, index.entries_, fault);
        if (!fault.empty()) refuse(fault);
      } else if (record->kind == kMetadataRecord) {
        if (std::exchange(has_metadata, true)) refuse("appears twice");
        index.metadata_ = parse_metadata(record->body, fault, cancel);
        if (!fault.empty()) refuse(fault);
      } else if (record->kind == kTiesRecord) {
        if (std::exchange(has_ties, true)) refuse("appears twice");
        index.ties_ = parse_ties(record->body, index.entries_, fault, cancel);
        if (!fault.empty()) refuse(fault);
      } else if (record->kind == kAuthenticationRecord) {
        if (!index.header_.encrypted) refuse("authenticates a file that is not encrypted");
        index.authentication_ = parse_authentication(record->body, index.entries_.size(), fault);
        if (!fault.empty()) refuse(fault);
        index.authentication_->covered = first + frame.position() - kSha256Size;
      } else if (record->kind == kSealRecord) {
        if (index.header_.encrypted) refuse("seals an encrypted file, which a MAC must cover");
        if (record->body.size() != kSha256Size) refuse("is not a SHA-256");
        sealed = first + frame.position() - kSha256Size;
      } else {
        known = false;
      }
    }
    // A flipped bit makes the seal a record of another kind.
    if (!known) {
      fail(location, "the last record behind its index entries, which ends" +
                         at(begin + frame.position()) + ", is of an unknown kind");
    }
    if (!frame.ok()) {
      fail(location, "a record behind the last index entry" + at(begin + frame.position()) +
                         " runs past the end of the index");
    }
    check_zeros(first + frame.position());
  }

  void check_seal() const {
    if (!sealed) return;
    const ConstBytes covered = ConstBytes(index.bytes_).first(*sealed);
    const ConstBytes stored = ConstBytes(index.bytes_).subspan(*sealed, kSha256Size);
    if (std::ranges::equal(seal_of(index.header_.bytes, covered), stored)) return;
    fail(location, "its header and index" + at(location.start) +
                       " do not have the SHA-256 that was saved behind them: the file is damaged");
  }

  // Throws if a byte behind the records is not zero. It could belong to an entry that the header
  // does not count, and no MAC covers it.
  void check_zeros(std::size_t position) const {
    const ConstBytes rest = ConstBytes(index.bytes_).subspan(position);
    if (all_zero(rest)) return;
    const auto first =
        std::find_if(rest.begin(), rest.end(), [](std::byte byte) { return byte != std::byte{0}; });
    fail(location, "there are bytes other than zero behind the " +
                       std::to_string(index.entries_.size()) +
                       " index entries that the file's header counts, and behind their records" +
                       at(location.start + kFileHeaderSize + position +
                          static_cast<std::uint64_t>(first - rest.begin())) +
                       ": the file is damaged, and may hold more tensors");
  }
};

Index::Index(const FileHeader& header, std::vector<std::byte> bytes, const FileLocation& location,
             Cancel& cancel)
    : header_(header), bytes_(std::move(bytes)) {
  Parser(*this, location, cancel).parse();
}

}  // namespace tensorizer
