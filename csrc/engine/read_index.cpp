#include "engine/read_index.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "format/tensors/frame.h"
#include "format/tensors/layout.h"

namespace tensorizer {

namespace {

// Enough for the index of a few hundred tensors, so that one read is usually enough.
constexpr std::size_t kFirstRead = 64 << 10;
// Memory for a length that the file claims is allocated in steps of this size, even if a server
// says that the file is that long.
constexpr std::size_t kLargestStep = 16 << 20;

// Grows `bytes`, which are those at `offset`, to `size`. Returns false if the source ends before
// that.
bool read_on(Source& source, std::uint64_t offset, std::vector<std::byte>& bytes,
             std::uint64_t size, Cancel& cancel) {
  while (bytes.size() < size) {
    const std::size_t have = bytes.size();
    const std::uint64_t step = std::min<std::uint64_t>(size - have, kLargestStep);
    bytes.resize(have + step);
    const std::size_t got = source.read_up_to(offset + have, Bytes(bytes).subspan(have), cancel);
    bytes.resize(have + got);
    if (got < step) return false;
  }
  return true;
}

void resolve_dtypes(Source& source, Index& index, const FileLocation& location, Cancel& cancel) {
  const std::span<const Entry> entries = index.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (entry.dtype) continue;
    cancel.check();
    index.check_header_size(i, location);
    std::vector<std::byte> header;
    if (!read_on(source, entry.header_offset, header, entry.header_size(), cancel)) {
      throw Error(ErrorKind::InvalidFormat,
                  std::string(location.label) + ": " + describe(entry.name, i) +
                      ": the file ends at offset " +
                      std::to_string(entry.header_offset + header.size()) + ", inside its header");
    }
    index.set_dtype(i, index.details(i, header, location).dtype);
  }
}

// Checks that the file ends behind its last tensor, where the length of another tensor's header
// would be. `behind` holds the bytes behind the index that have been read already; other bytes are
// read only from a local file. A file may end without a terminator, as in Redis.
void check_terminator(Source& source, const Index& index, ConstBytes behind,
                      const FileLocation& location, Cancel& cancel) {
  std::array<std::byte, sizeof(kTerminator)> read{};
  ConstBytes found = read;
  const std::uint64_t at =
      index.end() - location.start - kFileHeaderSize - index.header().index_size;
  if (at + read.size() <= behind.size()) {
    found = behind.subspan(at, read.size());
  } else if (!source.identity() || source.read_up_to(index.end(), read, cancel) < read.size()) {
    return;
  }
  if (all_zero(found)) return;
  throw Error(ErrorKind::InvalidFormat,
              std::string(location.label) + ": behind the last tensor of its index, at offset " +
                  std::to_string(index.end()) +
                  ", the file has other data instead of its end: it is damaged, and may hold more "
                  "tensors");
}

void authenticate(const Index& index, FileKeys& keys, const FileLocation& location,
                  Cancel& cancel) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::Crypto, std::string(location.label) + ": " + why);
  };
  if (!index.encrypted()) refuse("a key was given, and the file is not encrypted");
  const std::optional<Authentication>& authentication = index.authentication();
  if (!authentication) return;
  const SharedSecret key = keys.key_for(authentication->derivation, cancel);
  if (index.is_authentic(key->bytes())) return;
  refuse("wrong key or passphrase, or the index was modified: its MAC does not match");
}

}  // namespace

FileLocation location_of(const Source& source) {
  return {source.label(), source.start(), source.size()};
}

Index read_index(Source& source, FileKeys* keys, Cancel& cancel) {
  const FileLocation location = location_of(source);
  std::vector<std::byte> bytes;
  // A sequential source must not be read past the index.
  read_on(source, source.start(), bytes, source.sequential() ? kFileHeaderSize : kFirstRead,
          cancel);
  const FileHeader header = parse_file_header(bytes, location);
  const std::uint64_t wanted = kFileHeaderSize + header.index_size;
  if (!read_on(source, source.start(), bytes, wanted, cancel)) {
    throw Error(ErrorKind::InvalidFormat,
                std::string(location.label) + ": the file ends at offset " +
                    std::to_string(source.start() + bytes.size()) + ", inside its index of " +
                    std::to_string(header.index_size) + " bytes");
  }
  const std::vector<std::byte> behind(bytes.begin() + static_cast<std::ptrdiff_t>(wanted),
                                      bytes.end());
  bytes.resize(wanted);
  bytes.erase(bytes.begin(), bytes.begin() + kFileHeaderSize);
  Index index(header, std::move(bytes), location, cancel);
  check_terminator(source, index, behind, location, cancel);
  if (keys != nullptr) authenticate(index, *keys, location, cancel);
  if (!source.sequential()) resolve_dtypes(source, index, location, cancel);
  return index;
}

void read_arriving(Source& source, std::uint64_t offset, std::uint64_t size,
                   std::vector<std::byte>& bytes, Cancel& cancel) {
  bytes.clear();
  if (source.identity()) bytes.reserve(size);
  if (read_on(source, offset, bytes, size, cancel)) return;
  throw_source_ended(source.label(), offset + bytes.size(), size - bytes.size());
}

}  // namespace tensorizer
