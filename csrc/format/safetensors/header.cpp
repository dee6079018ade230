#include "format/safetensors/header.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "format/layout.h"
#include "format/name.h"
#include "format/name_table.h"
#include "format/parsing.h"
#include "format/safetensors/digest_list.h"
#include "format/safetensors/dtype.h"

namespace tensorizer {

namespace {

namespace json = simdjson::ondemand;

// The shortest text of a tensor in a header.
constexpr std::size_t kShortestTensor =
    std::string_view(R"("":{"dtype":"I8","shape":[],"data_offsets":[0,1]},)").size();
// The header, a tensor, and its shape.
constexpr std::size_t kDeepestHeader = 3;

}  // namespace

struct SafetensorsHeader::Parser {
  // The text of a list of digests.
  struct ListText {
    std::string_view text;
    std::size_t key = 0;  // where its key is; 0 if there is no list

    bool found() const noexcept { return key > 0; }
  };

  SafetensorsHeader& header;
  const FileLocation& location;
  Cancel& cancel;
  std::uint64_t json_offset;  // of the JSON in the source
  std::uint64_t data_begin;   // in the source
  std::vector<std::uint8_t> dimension_counts{};
  std::array<ListText, 2> lists{};  // of whole tensors, and of chunks

  void parse() {
    std::vector<std::byte>& bytes = header.bytes_;
    const std::size_t size = bytes.size();
    header.entries_.reserve(size / kShortestTensor + 1);
    bytes.resize(size + simdjson::SIMDJSON_PADDING);
    read_json(simdjson::padded_string_view(reinterpret_cast<const char*>(bytes.data()), size,
                                           bytes.size()));
    // Shapes are set last, because adding dimensions moves them in memory.
    std::span<const std::int64_t> dimensions(header.dimensions_);
    for (std::size_t i = 0; i < dimension_counts.size(); ++i) {
      header.entries_[i].shape = dimensions.first(dimension_counts[i]);
      dimensions = dimensions.subspan(dimension_counts[i]);
    }
    check_places();
    check_names();
    read_digests();
  }

  void read_digests() {
    if (!lists[0].found() && !lists[1].found()) return;
    const std::vector<Entry>& entries = header.entries_;
    TensorsDigest tensors;
    Pace pace(cancel);
    for (const Entry& entry : entries) {
      pace.step();
      tensors.add(entry.name, *entry.dtype, entry.shape);
    }
    const Sha256Digest found = tensors.finish();
    if (auto list = read_list(lists[0], false, found)) {
      if (list->digests.size() != entries.size() * kSha256Size) fail_list(lists[0]);
      header.digests_ = std::move(list->digests);
      header.data_digests_ = header.digests_;
    }
    if (auto list = read_list(lists[1], true, found)) {
      std::vector<std::uint64_t> first = first_chunks(entries, list->chunk_size);
      if (list->digests.size() != first.back() * kSha256Size) fail_list(lists[1]);
      header.chunks_ = std::move(list->digests);
      header.chunk_digests_ = {
          Hash::Sha256, list->chunk_size, {}, header.chunks_, std::move(first)};
    }
  }

  // Returns nothing if there is no list, or if it is that of other tensors: a program that changes
  // the tensors of a file may have kept its metadata.
  std::optional<DigestList> read_list(const ListText& text, bool in_chunks,
                                      const Sha256Digest& tensors) {
    if (!text.found()) return {};
    std::optional<DigestList> list = parse_digest_list(text.text, in_chunks);
    if (!list) fail_list(text);
    if (list->tensors == tensors) return list;
    header.digests_of_others_ = true;
    return {};
  }

  [[noreturn]] void fail_list(const ListText& list) const {
    fail_at(list.key, "the digests of its data in its '__metadata__' are damaged");
  }

  void read_json(simdjson::padded_string_view text) {
    json::parser parser;
    json::document document;
    json::object tensors;
    check_json(parser.allocate(text.size(), kDeepestHeader), 0);
    check_json(parser.iterate(text).get(document), 0);
    check_json(document.get_object().get(tensors), 0);
    bool has_metadata = false;
    Pace pace(cancel);
    for (auto each : tensors) {
      pace.step();
      json::field field;
      if (const auto error = std::move(each).get(field); error != simdjson::SUCCESS) {
        check_json(error, position(document));
      }
      const char* const begin = field.key().raw();
      std::string_view name;
      check_json(field.unescaped_key().get(name), position_of(begin));
      name = keep(name, begin);
      if (name != kSafetensorsMetadata) {
        read_tensor(name, position_of(begin), field.value());
      } else if (std::exchange(has_metadata, true)) {
        fail_at(position_of(begin), "its header has the key '__metadata__' twice");
      } else {
        read_metadata(position_of(begin), field.value());
      }
    }
    if (const char* more = nullptr; document.current_location().get(more) == simdjson::SUCCESS) {
      fail_at(position_of(more), "its header has more than one JSON value");
    }
  }

  void read_metadata(std::size_t begin, json::value& value) {
    json::object pairs;
    if (value.get_object().get(pairs) != simdjson::SUCCESS) {
      fail_at(begin, "its '__metadata__' is not a JSON object");
    }
    header.empty_metadata_ = true;
    for (auto each : pairs) {
      json::field field;
      check_json(std::move(each).get(field), begin);
      const char* const key_begin = field.key().raw();
      const std::size_t at_key = position_of(key_begin);
      std::string_view key;
      check_json(field.unescaped_key().get(key), at_key);
      key = keep(key, key_begin);
      const char* const text_begin = field.value().raw_json_token().data() + 1;
      std::string_view text;
      if (field.value().get_string().get(text) != simdjson::SUCCESS) {
        fail_at(at_key, "the value of " + quote(key) + " in its '__metadata__' is not a string");
      }
      text = keep(text, text_begin);
      header.empty_metadata_ = false;
      if (key == kDigestsKey || key == kChunkDigestsKey) {
        ListText& list = lists[key == kChunkDigestsKey ? 1 : 0];
        if (list.found())
          fail_at(at_key, "its '__metadata__' has the key " + quote(key) + " twice");
        list = {text, at_key};
      } else {
        header.metadata_.emplace_back(key, text);
      }
    }
    if (const auto key = repeated_key(header.metadata_, cancel)) {
      fail_at(begin, "its '__metadata__' has the key " + quote(*key) + " twice");
    }
  }

  void read_tensor(std::string_view name, std::size_t begin, json::value& value) {
    const auto refuse = [&](const std::string& what) { fail_tensor(name, begin, what); };
    if (is_nested(name)) {
      refuse("its name starts with byte 0x1E, which marks names of nested tensors");
    }
    json::object members;
    if (value.get_object().get(members) != simdjson::SUCCESS) refuse("it is not a JSON object");
    Entry entry{};
    entry.name = name;
    entry.type = TensorType::StateDictEntry;
    const std::size_t first_dimension = header.dimensions_.size();
    std::array<std::uint64_t, 2> offsets{};
    bool has_shape = false;
    bool has_offsets = false;
    for (auto each : members) {
      json::field field;
      check_json(std::move(each).get(field), begin);
      std::string_view key;
      check_json(field.unescaped_key().get(key), begin);
      bool again = false;
      if (key == "dtype") {
        again = entry.dtype.has_value();
        std::string_view type;
        if (field.value().get_string().get(type) != simdjson::SUCCESS) {
          refuse("its dtype is not a string");
        }
        entry.dtype = parse_safetensors_dtype(type);
        if (!entry.dtype) refuse("dtype " + quote(type) + " is unknown, or torch does not have it");
        entry.element_size = dtype_info(*entry.dtype).size;
      } else if (key == "shape") {
        again = std::exchange(has_shape, true);
        read_shape(field.value(), first_dimension, refuse);
      } else if (key == "data_offsets") {
        again = std::exchange(has_offsets, true);
        read_offsets(field.value(), offsets, refuse);
      } else {
        refuse("it has the key " + quote(key) + ", which the format does not have");
      }
      if (again) refuse("it has the key " + quote(key) + " twice");
    }
    if (!entry.dtype) refuse("it has no dtype");
    if (!has_shape) refuse("it has no shape");
    if (!has_offsets) refuse("it has no data_offsets");
    place(entry, std::span(header.dimensions_).subspan(first_dimension), offsets, refuse);
    dimension_counts.push_back(
        static_cast<std::uint8_t>(header.dimensions_.size() - first_dimension));
    header.entries_.push_back(entry);
  }

  template <typename Refuse>
  void read_shape(json::value& value, std::size_t first, const Refuse& refuse) {
    json::array dimensions;
    if (value.get_array().get(dimensions) != simdjson::SUCCESS) refuse("its shape is not an array");
    for (auto each : dimensions) {
      std::uint64_t dimension = 0;
      if (std::move(each).get_uint64().get(dimension) != simdjson::SUCCESS) {
        refuse("a dimension is not a whole number, or too large");
      }
      if (dimension > kMaxSigned) refuse("a dimension is too large");
      if (header.dimensions_.size() - first == kMostSafetensorsDimensions) {
        refuse("it has more than " + std::to_string(kMostSafetensorsDimensions) + " dimensions");
      }
      header.dimensions_.push_back(static_cast<std::int64_t>(dimension));
    }
  }

  template <typename Refuse>
  static void read_offsets(json::value& value, std::array<std::uint64_t, 2>& offsets,
                           const Refuse& refuse) {
    json::array numbers;
    if (value.get_array().get(numbers) != simdjson::SUCCESS) {
      refuse("its data_offsets are not an array");
    }
    std::size_t count = 0;
    for (auto each : numbers) {
      std::uint64_t offset = 0;
      if (std::move(each).get_uint64().get(offset) != simdjson::SUCCESS) {
        refuse("an offset is not a whole number, or too large");
      }
      if (count < offsets.size()) offsets[count] = offset;
      ++count;
    }
    if (count != offsets.size()) refuse("its data_offsets are not two numbers");
  }

  // Sets the place of a tensor, and makes its shape that of torch.
  template <typename Refuse>
  void place(Entry& entry, std::span<std::int64_t> shape,
             const std::array<std::uint64_t, 2>& offsets, const Refuse& refuse) {
    if (const std::int64_t packed = elements_in_one(*entry.dtype); packed > 1) {
      if (shape.empty() || shape.back() % packed != 0) {
        refuse("its last dimension is not a multiple of " + std::to_string(packed) +
               ", so that its elements do not fill whole bytes");
      }
      shape.back() /= packed;
    }
    const auto [begin, end] = offsets;
    if (begin > end) {
      refuse("its data begins at " + std::to_string(begin) + " and ends before that, at " +
             std::to_string(end));
    }
    if (end > kMaxSigned - data_begin) refuse("its data ends too far away");
    const std::optional<std::uint64_t> size = byte_size(shape, entry.element_size);
    if (!size) refuse("its shape has too many elements");
    entry.data_size = end - begin;
    if (entry.data_size != *size) {
      refuse("its data has " + std::to_string(entry.data_size) + " bytes where its shape has " +
             std::to_string(*size));
    }
    entry.header_offset = entry.data_offset = data_begin + begin;
  }

  // Checks that the data of all tensors together is what follows the header, without gaps.
  void check_places() {
    const std::vector<Entry>& entries = header.entries_;
    const std::vector<std::uint32_t> order = stored_order(entries, cancel);
    std::uint64_t end = data_begin;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Entry& entry = entries[order[i]];
      if (entry.data_offset != end) {
        const std::string found = describe(entry.name, order[i]) + at(entry.data_offset);
        const std::string last =
            i == 0 ? "the header" : describe(entries[order[i - 1]].name, order[i - 1]);
        fail(location, entry.data_offset < end
                           ? found + " overlaps " + last + ", which ends at " + std::to_string(end)
                           : found + " leaves a gap behind " + last + ", which ends at " +
                                 std::to_string(end));
      }
      end = entry.end();
    }
    header.end_ = end;
    if (location.size && end > *location.size) {
      fail(location, "its tensors end at offset " + std::to_string(end) +
                         ", but the file ends at " + std::to_string(*location.size) +
                         ": it is truncated");
    }
    if (location.size && end < *location.size) {
      fail(location, "it has " + std::to_string(*location.size - end) +
                         " bytes behind its last tensor, which ends" + at(end));
    }
  }

  void check_names() const {
    const std::vector<std::string_view> names = stored_names(header.entries_);
    if (const auto twice = NameTable(names, cancel).twice()) {
      const auto [first, second] = *twice;
      // Names lie where the header has them.
      fail(location, describe(names[second], second) +
                         at(json_offset + position_of(names[second].data())) +
                         " has the same name as " + describe(names[first], first) +
                         at(json_offset + position_of(names[first].data())));
    }
  }

  // Stores a text where it was found, and returns it there. It is no longer than it was with
  // escapes, and the parser is past it.
  std::string_view keep(std::string_view text, const char* found) {
    std::byte* const kept = header.bytes_.data() + position_of(found);
    std::memcpy(kept, text.data(), text.size());
    return as_text({kept, text.size()});
  }

  std::size_t position_of(const char* in_json) const {
    return static_cast<std::size_t>(in_json - reinterpret_cast<const char*>(header.bytes_.data()));
  }

  std::size_t position(json::document& document) const {
    const char* here = nullptr;
    return document.current_location().get(here) == simdjson::SUCCESS ? position_of(here) : 0;
  }

  void check_json(simdjson::error_code error, std::size_t position) const {
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (error != simdjson::SUCCESS) {
      fail_at(position, std::string("the JSON of its header is malformed: ") +
                            simdjson::error_message(error));
    }
  }

  [[noreturn]] void fail_at(std::size_t position, const std::string& what) const {
    fail(location, what + at(json_offset + position));
  }

  [[noreturn]] void fail_tensor(std::string_view name, std::size_t position,
                                const std::string& what) const {
    fail(location,
         describe(name, header.entries_.size()) + at(json_offset + position) + ": " + what);
  }
};

SafetensorsHeader::SafetensorsHeader(std::vector<std::byte> text, const FileLocation& location,
                                     Cancel& cancel)
    : bytes_(std::move(text)) {
  const std::uint64_t json_offset = location.start + kSafetensorsLength;
  Parser{*this, location, cancel, json_offset, json_offset + bytes_.size()}.parse();
}

FormatInfo SafetensorsHeader::info() const {
  return {Format::Safetensors, 0, 0, end_, entries_.size()};
}

TensorDetails SafetensorsHeader::details(std::size_t entry, Bytes, const FileLocation&) const {
  TensorDetails details;
  details.dtype = *entries_[entry].dtype;
  if (!digests_.empty()) {
    details.digests[Hash::Sha256] =
        digest_of(data_digests_.subspan(entry * kSha256Size, kSha256Size));
  }
  return details;
}

}  // namespace tensorizer
