#include "engine/open/read_index.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "engine/read_arriving.h"
#include "format/tensors/frame.h"
#include "format/tensors/layout.h"

namespace tensorizer {

namespace {

void resolve_dtypes(Source& source, Index& index, const FileLocation& location, Cancel& cancel) {
  const std::span<const Entry> entries = index.entries();
  if (std::ranges::all_of(entries, [](const Entry& entry) { return entry.dtype.has_value(); })) {
    return;
  }
  // Some sources read and hash much more than a header for one that lies behind what they have.
  for (const std::uint32_t i : stored_order(entries, cancel)) {
    const Entry& entry = entries[i];
    if (entry.dtype) continue;
    cancel.check();
    index.check_header_size(i, location);
    std::vector<std::byte> header;
    if (!read_on(source, entry.header_offset, header, entry.header_size(), cancel)) {
      throw Error(ErrorKind::InvalidFormat,
                  std::string(location.label) + ": " + describe(entry.name, i) +
                      ": the file is truncated: it ends at offset " +
                      std::to_string(entry.header_offset + header.size()) + ", inside its header");
    }
    index.set_dtype(i, index.details(i, header, location).dtype);
  }
}

// Checks that the file ends behind its last tensor, where the length of another tensor's header
// would be. `behind` holds the bytes behind the index that have been read already; other bytes are
// read only from a local file, unless its digest is compared. A file may end without a terminator,
// as in Redis.
void check_terminator(Source& source, const Index& index, ConstBytes behind,
                      const FileLocation& location, Cancel& cancel) {
  std::array<std::byte, sizeof(kTerminator)> read{};
  ConstBytes found = read;
  const std::uint64_t at =
      index.end() - location.start - kFileHeaderSize - index.header().index_size;
  if (at + read.size() <= behind.size()) {
    found = behind.subspan(at, read.size());
  } else if (!source.identity() || source.checks_at_end() ||
             source.read_up_to(index.end(), read, cancel) < read.size()) {
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
  const std::optional<Authentication>& authentication = index.authentication();
  if (!authentication) return;
  const SharedSecret key = keys.key_for(authentication->derivation, cancel);
  if (index.is_authentic(key->bytes())) return;
  throw Error(ErrorKind::Crypto, std::string(location.label) +
                                     ": wrong key or passphrase, or the file was modified: the MAC "
                                     "of its index does not match");
}

}  // namespace

Index read_index(Source& source, std::vector<std::byte> bytes, FileKeys* keys, Cancel& cancel) {
  const SourceLocation location(source);
  read_on(source, source.start(), bytes, kFileHeaderSize, cancel);
  const FileHeader header = parse_file_header(bytes, location);
  const std::uint64_t wanted = kFileHeaderSize + header.index_size;
  if (!read_on(source, source.start(), bytes, wanted, cancel)) {
    throw Error(ErrorKind::InvalidFormat,
                std::string(location.label) + ": the file is truncated: it ends at offset " +
                    std::to_string(source.start() + bytes.size()) + ", inside its index of " +
                    std::to_string(header.index_size) + " bytes");
  }
  const std::vector<std::byte> behind(bytes.begin() + static_cast<std::ptrdiff_t>(wanted),
                                      bytes.end());
  bytes.resize(wanted);
  bytes.erase(bytes.begin(), bytes.begin() + kFileHeaderSize);
  Index index(header, std::move(bytes), location, cancel);
  check_terminator(source, index, behind, location, cancel);
  if (keys != nullptr && index.encrypted()) authenticate(index, *keys, location, cancel);
  if (!source.sequential()) resolve_dtypes(source, index, location, cancel);
  return index;
}

}  // namespace tensorizer
