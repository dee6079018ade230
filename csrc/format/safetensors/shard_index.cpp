#include "format/safetensors/shard_index.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/json_string.h"
#include "base/number.h"
#include "base/text.h"
#include "format/name_table.h"
#include "format/parsing.h"
#include "format/safetensors/header.h"

namespace tensorizer {

namespace {

namespace json = simdjson::ondemand;

// Programs store values of some levels beside the map of the tensors.
constexpr std::size_t kDeepestIndex = 32;

// Returns why a shard cannot have this name; null if it can.
const char* fault_of(std::string_view shard) {
  if (shard.empty()) return "the name is empty";
  if (shard == "." || shard == "..") return "it names a folder";
  if (shard.find('/') != shard.npos || shard.find('\\') != shard.npos) {
    return "it is a path, and shards must be in the folder of the index";
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(shard, is_control)) return "it has a control character";
  if (shard.ends_with(".bin") || shard.ends_with(".pt") || shard.ends_with(".pth")) {
    return "this is the index of a PyTorch checkpoint, and shards must be safetensors files: "
           "convert it with tensorizer_ops.convert(), or `tensorizer-ops convert`";
  }
  return nullptr;
}

}  // namespace

bool is_shard_index(ConstBytes first) noexcept {
  const std::string_view text = as_text(first);
  if (!trimmed(text).starts_with('{')) return false;
  // A safetensors file begins with the length of its header, whose high bytes are 0.
  return text.substr(0, kSafetensorsLength).find('\0') == text.npos;
}

std::uint64_t files_of_model(std::string_view name) noexcept {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = name.rfind(kOf);
  if (of == name.npos) return 1;
  std::string_view count = name.substr(of + kOf.size());
  count = count.substr(0, count.find('.'));
  // Shards are numbered with leading zeros. A "step-100-of-500" is a whole model.
  constexpr std::size_t kUsualDigits = 5;
  if (!count.starts_with('0') && count.size() < kUsualDigits) return 1;
  if (of < count.size() ||
      !std::ranges::all_of(name.substr(of - count.size(), count.size()), is_digit)) {
    return 1;
  }
  return std::max<std::uint64_t>(parse_number(count).value_or(1), 1);
}

std::string shard_index_text(std::vector<ShardedName> names, std::uint64_t total_size) {
  std::ranges::sort(names, {}, &ShardedName::name);
  std::string text = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total_size) +
                     "\n  },\n  \"weight_map\": {";
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    put_json_string(text, names[i].name);
    text += ": ";
    put_json_string(text, names[i].shard);
  }
  return text + "\n  }\n}\n";
}

struct ShardIndex::Parser {
  ShardIndex& index;
  const FileLocation& location;
  Cancel& cancel;

  void parse() {
    std::vector<std::byte>& bytes = index.bytes_;
    const std::size_t size = bytes.size();
    bytes.resize(size + simdjson::SIMDJSON_PADDING);
    json::parser parser;
    json::document document;
    json::object members;
    check_json(parser.allocate(size, kDeepestIndex));
    check_json(parser
                   .iterate(simdjson::padded_string_view(
                       reinterpret_cast<const char*>(bytes.data()), size, bytes.size()))
                   .get(document));
    check_json(document.get_object().get(members));
    bool has_map = false;
    for (auto each : members) {
      json::field field;
      check_json(std::move(each).get(field));
      std::string_view key;
      check_json(field.unescaped_key().get(key));
      if (key != "weight_map") continue;
      if (std::exchange(has_map, true)) fail(location, "it has the key 'weight_map' twice");
      read_map(field.value());
    }
    const char* more = nullptr;
    if (document.current_location().get(more) == simdjson::SUCCESS) {
      fail(location, "it has more than one JSON value");
    }
    if (!has_map) {
      fail(location,
           "this is a JSON file without a 'weight_map', and so not the index of a sharded "
           "safetensors model");
    }
    if (index.names_.empty()) fail(location, "its 'weight_map' is empty");
    check_names();
    sort_shards();
  }

  void read_map(json::value& value) {
    json::object pairs;
    if (value.get_object().get(pairs) != simdjson::SUCCESS) {
      fail(location, "its 'weight_map' is not a JSON object");
    }
    std::map<std::string_view, std::uint32_t> numbers;
    Pace pace(cancel);
    for (auto each : pairs) {
      pace.step();
      json::field field;
      check_json(std::move(each).get(field));
      const char* const name_begin = field.key().raw();
      std::string_view name;
      check_json(field.unescaped_key().get(name));
      name = keep(name, name_begin);
      const char* const shard_begin = field.value().raw_json_token().data() + 1;
      std::string_view shard;
      if (field.value().get_string().get(shard) != simdjson::SUCCESS) {
        fail(location, "the shard of tensor " + quote(name) + " is not a string");
      }
      if (const auto known = numbers.find(shard); known != numbers.end()) {
        index.shard_of_.push_back(known->second);
      } else {
        add_shard(name, keep(shard, shard_begin), numbers);
      }
      index.names_.push_back(name);
    }
  }

  void add_shard(std::string_view name, std::string_view shard,
                 std::map<std::string_view, std::uint32_t>& numbers) {
    if (const char* const fault = fault_of(shard)) {
      fail(location,
           "tensor " + quote(name) + " is to be in the shard " + quote(shard) + ": " + fault);
    }
    if (index.shards_.size() == kMostShards) {
      fail(location, "it names more than " + std::to_string(kMostShards) + " shards");
    }
    const auto number = static_cast<std::uint32_t>(index.shards_.size());
    numbers.emplace(shard, number);
    index.shards_.push_back(shard);
    index.shard_of_.push_back(number);
  }

  void check_names() const {
    if (const auto twice = NameTable(index.names_, cancel).twice()) {
      fail(location,
           "its 'weight_map' has tensor " + quote(index.names_[twice->second]) + " twice");
    }
  }

  void sort_shards() {
    std::vector<std::string_view> sorted = index.shards_;
    std::ranges::sort(sorted);
    std::vector<std::uint32_t> place(sorted.size());
    for (std::size_t i = 0; i < place.size(); ++i) {
      place[i] = static_cast<std::uint32_t>(std::ranges::lower_bound(sorted, index.shards_[i]) -
                                            sorted.begin());
    }
    for (std::uint32_t& shard : index.shard_of_) shard = place[shard];
    index.shards_ = std::move(sorted);
  }

  // Stores a text where it was found, and returns it there. It is no longer than it was with
  // escapes, and the parser is past it.
  std::string_view keep(std::string_view text, const char* found) const {
    std::byte* const kept =
        index.bytes_.data() + (found - reinterpret_cast<const char*>(index.bytes_.data()));
    std::memcpy(kept, text.data(), text.size());
    return as_text({kept, text.size()});
  }

  void check_json(simdjson::error_code error) const {
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (error == simdjson::SUCCESS) return;
    fail(location, std::string("this is not the index of a sharded safetensors model, or it is "
                               "damaged: its JSON is malformed: ") +
                       simdjson::error_message(error));
  }
};

ShardIndex::ShardIndex(std::vector<std::byte> text, const FileLocation& location, Cancel& cancel)
    : bytes_(std::move(text)) {
  Parser{*this, location, cancel}.parse();
}

void ShardIndex::check(std::span<const Catalogue* const> catalogues, const FileLocation& location,
                       Cancel& cancel) const {
  const NameTable table(names_, cancel);
  constexpr auto kNowhere = static_cast<std::uint32_t>(-1);
  std::vector<std::uint32_t> found(names_.size(), kNowhere);
  Pace pace(cancel);
  for (std::uint32_t shard = 0; shard < catalogues.size(); ++shard) {
    for (const Entry& entry : catalogues[shard]->entries()) {
      pace.step();
      const auto refuse = [&](const std::string& why) {
        fail(location, "the shard " + quote(shards_[shard]) + " has tensor " + quote(entry.name) +
                           ", " + why);
      };
      const std::optional<std::uint32_t> number = table.find(entry.name);
      if (!number) refuse("which the index does not list");
      if (found[*number] != kNowhere) {
        refuse("and so has the shard " + quote(shards_[found[*number]]));
      }
      found[*number] = shard;
    }
  }
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (found[i] == shard_of_[i]) continue;
    const std::string where =
        found[i] == kNowhere ? "no shard has it" : "it is in " + quote(shards_[found[i]]);
    fail(location, "tensor " + quote(names_[i]) + " is to be in the shard " +
                       quote(shards_[shard_of_[i]]) + ", but " + where);
  }
}

}  // namespace tensorizer
