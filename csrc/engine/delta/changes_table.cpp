#include "engine/delta/changes_table.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"

namespace tensorizer {

namespace {

std::optional<std::string_view> find(const Catalogue& catalogue, std::string_view key) {
  for (const auto& [name, value] : catalogue.metadata()) {
    if (name == key) return value;
  }
  return std::nullopt;
}

}  // namespace

bool is_delta_key(std::string_view key) noexcept { return key.starts_with(kDeltaKey); }

std::optional<DeltaEnds> delta_ends(OpenFile& file) {
  const std::optional<std::string_view> version = find(file.catalogue(), kDeltaKey);
  if (!version) return std::nullopt;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidFormat, file.source().label() + ": " + why);
  };
  if (*version != "1") {
    refuse("it is a delta of version " + quote(*version) + ", and this library knows version 1");
  }
  const auto digest = [&](std::string_view key) {
    const std::optional<std::string_view> text = find(file.catalogue(), key);
    const auto parsed = text ? parse_model_digest(*text) : std::nullopt;
    if (!parsed || parsed->version != DigestVersion::Chunks) {
      refuse("it is a delta, and its metadata has no digest under " + quote(key));
    }
    return *parsed;
  };
  return DeltaEnds{digest(kBaseKey), digest(kTargetKey)};
}

DeltaEnds need_delta(OpenFile& file) {
  check_wants(file.source(), Wants::AnyOrder);
  const std::optional<DeltaEnds> ends = delta_ends(file);
  if (!ends) throw Error(ErrorKind::InvalidArgument, file.source().label() + ": it is no delta");
  return *ends;
}

DeltaNames::DeltaNames(OpenFile& delta) {
  const std::vector<NamedEntry> given = all_names(delta.catalogue());
  std::vector<NamedEntry> named;
  stored.reserve(given.size());
  for (std::uint32_t i = 0; i < given.size(); ++i) {
    const std::string_view own = delta.catalogue().entries()[given[i].entry].name;
    const std::string_view prefix = own.starts_with(kWholePrefix) ? kWholePrefix : kChangesPrefix;
    if (!given[i].name.starts_with(prefix)) {
      throw Error(ErrorKind::InvalidFormat,
                  delta.describe_entry(i) + " has a name that no tensor of a delta has");
    }
    stored.emplace_back(given[i].name.substr(prefix.size()));
    named.push_back({stored.back(), given[i].type, given[i].entry});
  }
  clean = clean_names(named);
  std::unordered_set<std::string_view> seen;
  for (std::uint32_t i = 0; i < clean.size(); ++i) {
    if (seen.insert(clean[i]).second) continue;
    throw Error(ErrorKind::InvalidFormat, delta.describe_entry(i) +
                                              ": another tensor of the delta " +
                                              "is the new model's " + quote(clean[i]) + " too");
  }
}

void require_data(OpenFile& delta, std::uint32_t entry, std::uint64_t data_size) {
  if (data_size > 0) return;
  fail({delta.source(), delta.catalogue().entries()[entry], entry}, ErrorKind::InvalidFormat,
       "it is the change of a tensor without data");
}

std::vector<std::byte> to_bytes(const std::vector<BlockChange>& table) {
  std::vector<std::byte> bytes;
  bytes.reserve(table.size() * kBlockChangeSize);
  ByteWriter out(bytes);
  for (const BlockChange& block : table) {
    out.put_bytes(block.base);
    out.put_bytes(block.target);
    out.put(block.code_size);
  }
  return bytes;
}

std::optional<std::vector<BlockChange>> parse_table(ConstBytes bytes, std::uint64_t data_size,
                                                    std::uint64_t codes_size) {
  std::vector<BlockChange> table(chunk_count(data_size, kChangesBlock));
  if (bytes.size() != table.size() * kBlockChangeSize) return std::nullopt;
  Cursor cursor(bytes);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    BlockChange& block = table[i];
    block.base = digest_of(cursor.take_bytes(kSha256Size));
    block.target = digest_of(cursor.take_bytes(kSha256Size));
    block.code_size = cursor.take<std::uint32_t>();
    const std::uint64_t size = std::min(kChangesBlock, data_size - i * kChangesBlock);
    if (block.code_size > size || (block.code_size == 0) != (block.base == block.target)) {
      return std::nullopt;
    }
    total += block.code_size;
  }
  if (total != codes_size) return std::nullopt;
  return table;
}

ElementKind element_kind(DType dtype) noexcept {
  const std::uint32_t size = dtype_info(dtype).size;
  switch (dtype) {
    case DType::Float16:
    case DType::Float32:
    case DType::Float64:
    case DType::BFloat16:
    case DType::Float8E4M3FN:
    case DType::Float8E4M3FNUZ:
    case DType::Float8E5M2:
    case DType::Float8E5M2FNUZ:
      return {size, true};
    case DType::Complex32:
    case DType::Complex64:
    case DType::Complex128:
      return {size / 2, true};
    default:
      return {size, false};
  }
}

}  // namespace tensorizer
