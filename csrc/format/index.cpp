#include "format/index.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "format/parsing.h"

namespace tensorizer {

namespace {

// name length, type, dtype length, dimension count, three offsets
constexpr std::uint64_t kSmallestEntry = 2 + 1 + 1 + 1 + 3 * 8;

// The longest: with the version that some files have, every text as long as its length can say, and
// as many dimensions of 8 bytes.
constexpr std::uint64_t kLargestEntry = 4 + 2 + 0xffff + 1 + 1 + 0xff + 1 + 0xff * 8 + 3 * 8;
// What an index may be longer than its entries: twice the room that a Writer reserves at most.
constexpr std::uint64_t kMostRoom = 128 << 20;

}  // namespace

FileHeader parse_file_header(ConstBytes bytes, const FileLocation& location) {
  const std::size_t magic = std::min(kFileMagic.size(), bytes.size());
  if (as_text(bytes).substr(0, magic) != kFileMagic.substr(0, magic)) {
    fail(location, "this is no .tensors file: it starts with " +
                       quote(as_text(bytes).substr(0, kFileMagic.size())) + at(location.start));
  }
  Cursor cursor(bytes);
  cursor.take_bytes(kFileMagic.size());
  FileHeader header;
  std::copy_n(bytes.begin(), std::min(bytes.size(), header.bytes.size()), header.bytes.begin());
  header.version = cursor.take<std::uint32_t>();
  const ConstBytes flags = cursor.take_bytes(kFlagBytes);
  // What is called the file size, and a field that nothing uses: neither may be trusted.
  cursor.take_bytes(2 * sizeof(std::uint64_t));
  header.tensor_count = cursor.take<std::uint64_t>();
  header.index_size = cursor.take<std::uint64_t>();
  if (!cursor.ok()) {
    fail(location, "the file ends inside its header, " + std::to_string(bytes.size()) + " of " +
                       std::to_string(kFileHeaderSize) + " bytes" + at(location.start));
  }
  if (header.version < kOldestVersion || header.version > kNewestVersion) {
    fail(location, "format version " + std::to_string(header.version) + at(location.start) +
                       " is not one that can be read (1 to 5)");
  }
  const auto known = static_cast<std::uint8_t>(flags[0]);
  std::uint8_t allowed = 0;
  if (header.version >= kVersionWithMeta) allowed |= kEncryptedFlag;
  if (header.version >= kVersionWithLongDimensions) allowed |= kLongDimensionsFlag;
  const bool rest_is_zero = std::all_of(flags.begin() + 1, flags.end(),
                                        [](std::byte flag) { return flag == std::byte{0}; });
  if ((known & ~allowed) != 0 || !rest_is_zero) {
    fail(location, "unknown feature flags for version " + std::to_string(header.version) +
                       at(location.start + kFileMagic.size() + sizeof(std::uint32_t)));
  }
  header.encrypted = header.version == kEncryptedVersion || (known & kEncryptedFlag) != 0;
  header.long_dimensions = (known & kLongDimensionsFlag) != 0;
  const std::uint64_t index_start = location.start + kFileHeaderSize;
  if (header.index_size > kMaxSigned - index_start ||
      (location.size && index_start + header.index_size > *location.size)) {
    fail(location,
         "the index" + at(index_start) + " claims " + std::to_string(header.index_size) + " bytes" +
             (location.size ? ", but the file ends at " + std::to_string(*location.size) : ""));
  }
  const std::uint64_t most = kMostRoom / kLargestEntry + header.tensor_count;
  if (header.index_size / kLargestEntry > most) {
    fail(location, "the index" + at(index_start) + " claims " + std::to_string(header.index_size) +
                       " bytes, far more than " + std::to_string(header.tensor_count) +
                       " tensors can take");
  }
  if (header.tensor_count > header.index_size / kSmallestEntry) {
    fail(location, std::to_string(header.tensor_count) + " tensors are declared in an index of " +
                       std::to_string(header.index_size) + " bytes" + at(index_start));
  }
  return header;
}

std::uint64_t Entry::memory_size() const noexcept {
  std::uint64_t size = element_size;
  for (const std::int64_t dimension : shape) size *= static_cast<std::uint64_t>(dimension);
  return size;
}

bool Index::is_authentic(ConstBytes key) const {
  const ConstBytes covered = ConstBytes(bytes_).first(authentication_->covered);
  return is_equal_mac(metadata_mac(key, header_.bytes, covered), authentication_->mac);
}

std::vector<std::string_view> clean_names(std::span<const Entry> entries) {
  const auto dotted = [](const Entry& entry) {
    return entry.type != TensorType::StateDictEntry && entry.name.size() > 1 &&
           entry.name.front() == '.';
  };
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  if (std::none_of(entries.begin(), entries.end(), dotted)) return names;
  const std::unordered_set<std::string_view> stored(names.begin(), names.end());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string_view shorter = entries[i].name.substr(1);
    if (dotted(entries[i]) && !stored.contains(shorter)) names[i] = shorter;
  }
  return names;
}

std::string describe(std::string_view name, std::size_t entry) {
  return "tensor " + quote(name) + " (index entry " + std::to_string(entry) + ")";
}

}  // namespace tensorizer
