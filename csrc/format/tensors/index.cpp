#include "format/tensors/index.h"

#include <algorithm>

#include "base/error.h"
#include "codec/hmac.h"
#include "format/parsing.h"
#include "format/tensors/tensor_header.h"

namespace tensorizer {

namespace {

// name length, type, dtype length, dimension count, three offsets
constexpr std::uint64_t kSmallestEntry = 2 + 1 + 1 + 1 + 3 * 8;

// The largest entry has a version, as in some files, texts of the largest length that their length
// fields can hold, and as many dimensions of 8 bytes.
constexpr std::uint64_t kLargestEntry = 4 + 2 + 0xffff + 1 + 1 + 0xff + 1 + 0xff * 8 + 3 * 8;
// How much longer an index may be than its entries, for records and room that a Writer reserved.
constexpr std::uint64_t kMostRoom = 256 << 20;

}  // namespace

bool is_tensors_file(ConstBytes first) noexcept {
  const std::size_t size = std::min(kFileMagic.size(), first.size());
  return as_text(first).substr(0, size) == kFileMagic.substr(0, size);
}

FileHeader parse_file_header(ConstBytes bytes, const FileLocation& location) {
  if (!is_tensors_file(bytes)) fail(location, "this is not a .tensors file");
  Cursor cursor(bytes);
  cursor.take_bytes(kFileMagic.size());
  FileHeader header;
  std::copy_n(bytes.begin(), std::min(bytes.size(), header.bytes.size()), header.bytes.begin());
  header.version = cursor.take<std::uint32_t>();
  const ConstBytes flags = cursor.take_bytes(kFlagBytes);
  header.claimed_size = cursor.take<std::uint64_t>();
  cursor.take_bytes(sizeof(std::uint64_t));  // nothing uses this field
  header.tensor_count = cursor.take<std::uint64_t>();
  header.index_size = cursor.take<std::uint64_t>();
  if (!cursor.ok()) {
    fail(location, "the file is truncated: it ends inside its header, " +
                       std::to_string(bytes.size()) + " of " + std::to_string(kFileHeaderSize) +
                       " bytes" + at(location.start));
  }
  if (header.version < kOldestVersion || header.version > kNewestVersion) {
    fail(location, "format version " + std::to_string(header.version) + at(location.start) +
                       " is not supported (1 to 5 are)");
  }
  header.flags = static_cast<std::uint8_t>(flags[0]);
  std::uint8_t allowed = 0;
  if (header.version >= kVersionWithMeta) allowed |= kEncryptedFlag;
  if (header.version >= kVersionWithLongDimensions) allowed |= kLongDimensionsFlag;
  const bool rest_is_zero = std::all_of(flags.begin() + 1, flags.end(),
                                        [](std::byte flag) { return flag == std::byte{0}; });
  if ((header.flags & ~allowed) != 0 || !rest_is_zero) {
    fail(location, "unknown feature flags for version " + std::to_string(header.version) +
                       at(location.start + kFileMagic.size() + sizeof(std::uint32_t)));
  }
  header.encrypted = header.version == kEncryptedVersion || (header.flags & kEncryptedFlag) != 0;
  const std::uint64_t index_start = location.start + kFileHeaderSize;
  if (header.index_size > kMaxSigned - index_start ||
      (location.size && index_start + header.index_size > *location.size)) {
    fail(location, "the index" + at(index_start) + " claims " + std::to_string(header.index_size) +
                       " bytes" +
                       (location.size ? ", but the file ends at " + std::to_string(*location.size) +
                                            ", truncated or damaged"
                                      : ""));
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

FormatInfo Index::info() const {
  std::uint64_t flags = header_.flags;
  if (header_.encrypted) flags |= kEncryptedFlag;  // version 3 has no flags
  return {Format::Tensors, header_.version, flags, header_.claimed_size, header_.tensor_count};
}

bool Index::is_authentic(ConstBytes key) const {
  const ConstBytes covered = ConstBytes(bytes_).first(authentication_->covered);
  return is_equal_mac(metadata_mac(key, header_.bytes, covered), authentication_->mac);
}

void Index::check_header_size(std::size_t entry, const FileLocation& location) const {
  tensorizer::check_header_size(entries_[entry], entry, header_.encrypted, location);
}

TensorDetails Index::details(std::size_t entry, Bytes header, const FileLocation& location) const {
  const Entry& e = entries_[entry];
  if (authentication_ && !is_equal_mac(sha256(header), authentication_->header_digest(entry))) {
    throw Error(ErrorKind::Crypto, std::string(location.label) + ": " + describe(e.name, entry) +
                                       ": its header at offset " + std::to_string(e.header_offset) +
                                       " is not the one that was written with the index");
  }
  if (!chunk_digests_.empty() &&
      !std::ranges::equal(sha256(header), chunk_digests_.header_digest(entry))) {
    throw Error(ErrorKind::HashMismatch,
                std::string(location.label) + ": " + describe(e.name, entry) +
                    ": its header at offset " + std::to_string(e.header_offset) +
                    " does not have the SHA-256 that was saved for it: the file is damaged");
  }
  return parse_tensor_header(header,
                             {e, entry, header_.encrypted, has_long_dimensions(entry), location});
}

}  // namespace tensorizer
