#include "format/tensors/tensor_header.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "format/name.h"

namespace tensorizer {

namespace {

// The hashes that a header may have, by the numbers that it has for them.
constexpr Hash kHashTypes[] = {Hash::Crc32, Hash::Sha256};

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kPageAlignment = 4096;
constexpr std::uint64_t kPageAligned = 64 << 10;  // the smallest data that is aligned to pages
constexpr std::size_t kLengthField = 8;
// The most padding that a header may have: sixteen times what any known writer needs.
constexpr std::uint64_t kMostPadding = 64 << 10;
// The sizes of the longest str8 and str16, length fields included.
constexpr std::uint64_t kMostText8 = 1 + std::numeric_limits<std::uint8_t>::max();
constexpr std::uint64_t kMostText16 = 2 + std::numeric_limits<std::uint16_t>::max();

// Returns the size of the hash section, behind its length.
std::size_t hash_section_size(HashSet hashes) {
  std::size_t size = 1;
  for (const Hash hash : kHashTypes) size += hashes.has(hash) ? 2 + info_of(hash).size : 0;
  return size;
}

// Appends the header up to the end of its hash section, with zeros for the hash values.
void put_hashed(std::vector<std::byte>& bytes, const TensorSpec& spec, HashSet hashes,
                ByHash<std::size_t>& digest_at) {
  ByteWriter out(bytes);
  out.put(std::uint64_t{0});  // the length of the header, set when it is known
  out.put(spec.module_index);
  out.put(static_cast<std::uint8_t>(spec.type));
  out.put_text<std::uint16_t>(spec.name);
  out.put_text<std::uint8_t>(stored_dtype(spec.dtype));
  out.put(static_cast<std::uint8_t>(spec.shape.size()));
  for (const std::int64_t dimension : spec.shape) {
    if (spec.long_dimensions()) {
      out.put(static_cast<std::uint64_t>(dimension));
    } else {
      out.put(static_cast<std::uint32_t>(dimension));
    }
  }
  out.put(static_cast<std::uint16_t>(hash_section_size(hashes)));
  out.put(static_cast<std::uint8_t>(
      std::ranges::count_if(kHashTypes, [&](Hash hash) { return hashes.has(hash); })));
  for (std::uint8_t type = 0; type < std::size(kHashTypes); ++type) {
    const Hash hash = kHashTypes[type];
    if (!hashes.has(hash)) continue;
    out.put(type);
    out.put(static_cast<std::uint8_t>(info_of(hash).size));
    digest_at[hash] = bytes.size();
    bytes.resize(bytes.size() + info_of(hash).size);
  }
}

// Parses a header and sets its hash values to zero.
struct HeaderParser {
  Bytes bytes;
  const IndexedHeader& indexed;
  const Entry& entry;
  Cursor cursor;
  TensorDetails header;

  [[noreturn]] void fail(const std::string& what, ErrorKind kind = ErrorKind::InvalidFormat) const {
    throw Error(kind, std::string(indexed.location.label) + ": " +
                          describe(entry.name, indexed.number) + ": its header at offset " +
                          std::to_string(entry.header_offset) + " " + what);
  }

  void parse() {
    if (cursor.take<std::uint64_t>() != bytes.size()) {
      fail("does not have the length that the index gives it, " + std::to_string(bytes.size()));
    }
    header.module_index = cursor.take<std::uint16_t>();
    const auto type = cursor.take<std::uint8_t>();
    const std::string_view name = cursor.take_text<std::uint16_t>();
    const std::string_view dtype = cursor.take_text<std::uint8_t>();
    const bool same_shape = take_shape();
    const auto hash_section = cursor.take<std::uint16_t>();
    Cursor hashes(cursor.take_bytes(hash_section));
    if (!cursor.ok()) fail("is cut short");
    if (name != entry.name) fail("has another name, " + quote(name));
    if (type != static_cast<std::uint8_t>(entry.type)) fail("has another tensor type");
    check_dtype(dtype);
    if (!same_shape) fail("has another shape than its index entry");
    take_hashes(hashes, cursor.position() - hash_section);
    const std::size_t hashed_end = cursor.position();
    ConstBytes crypt;
    if (indexed.encrypted) crypt = cursor.take_bytes(cursor.take<std::uint64_t>());
    const std::size_t crypt_end = cursor.position();
    if (!cursor.ok() || cursor.left() < kLengthField) fail("is cut short");
    Cursor tail(ConstBytes(bytes).last(kLengthField));
    if (tail.take<std::uint64_t>() != entry.data_size) {
      fail("has another data length than its index entry");
    }
    if (indexed.encrypted) {
      std::string fault;
      header.crypt = parse_crypt_info(crypt, entry.data_size, fault);
      if (!fault.empty()) fail(fault, ErrorKind::Crypto);
    }
    header.hashed = {ConstBytes(bytes).first(hashed_end), ConstBytes(bytes).subspan(crypt_end)};
  }

  bool take_shape() {
    bool same = cursor.take<std::uint8_t>() == entry.shape.size();
    for (std::size_t i = 0; same && i < entry.shape.size(); ++i) {
      const std::uint64_t dimension =
          indexed.long_dimensions ? cursor.take<std::uint64_t>() : cursor.take<std::uint32_t>();
      same = dimension == static_cast<std::uint64_t>(entry.shape[i]);
    }
    return same;
  }

  void check_dtype(std::string_view stored) {
    const std::optional<StoredDType> dtype = parse_dtype(stored);
    if (!dtype || !dtype->dtype) fail("has an unknown dtype, " + quote(stored));
    if (dtype->size != entry.element_size || (entry.dtype && entry.dtype != dtype->dtype)) {
      fail("has another dtype than its index entry, " + quote(stored));
    }
    header.dtype = *dtype->dtype;
  }

  void take_hashes(Cursor hashes, std::size_t section_at) {
    const auto count = hashes.take<std::uint8_t>();
    if (!hashes.ok()) fail("has a hash section that is cut short");
    for (int i = 0; i < count; ++i) {
      const auto type = hashes.take<std::uint8_t>();
      const auto size = hashes.take<std::uint8_t>();
      const std::size_t value_at = section_at + hashes.position();
      const ConstBytes value = hashes.take_bytes(size);
      if (!hashes.ok()) fail("has a hash section that is cut short");
      if (type >= std::size(kHashTypes) || size != info_of(kHashTypes[type]).size) {
        fail("has a hash of unknown type " + std::to_string(type) + " and size " +
             std::to_string(size));
      }
      header.digests[kHashTypes[type]] = digest_of(value);
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(value_at), size, std::byte{0});
    }
  }
};

}  // namespace

void check_spec(const TensorSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, "tensor " + quote(spec.name) + " " + why);
  };
  try {
    check_name(spec.name);
  } catch (const Error& error) {
    refuse("cannot be saved: its name " + std::string(error.message()));
  }
  if (spec.name.size() > std::numeric_limits<std::uint16_t>::max()) {
    refuse("cannot be saved: its name has " + std::to_string(spec.name.size()) +
           " bytes, and the format holds 65535");
  }
  if (is_nested(spec.name) && spec.type != TensorType::StateDictEntry) {
    refuse("cannot be saved: only a state-dict entry may have a nested name");
  }
  if (spec.shape.size() > std::numeric_limits<std::uint8_t>::max()) {
    refuse("has " + std::to_string(spec.shape.size()) +
           " dimensions, and the format holds at most 255");
  }
}

std::uint64_t tensor_header_size(const TensorSpec& spec, const HeaderKind& kind,
                                 std::uint64_t offset) {
  const DTypeInfo& dtype = dtype_info(spec.dtype);
  const std::uint64_t least =
      kLengthField + sizeof(std::uint16_t) + 1 + sizeof(std::uint16_t) + spec.name.size() + 1 +
      (dtype.opaque ? stored_dtype(spec.dtype).size() : dtype.numpy.size()) + 1 +
      spec.shape.size() * (spec.long_dimensions() ? 8 : 4) + sizeof(std::uint16_t) +
      hash_section_size(kind.hashes) +
      (kind.encryption ? crypt_info_size(*kind.encryption, spec.data_size()) : 0) + kLengthField;
  const std::uint64_t alignment = spec.data_size() >= kPageAligned ? kPageAlignment : kAlignment;
  return align_up(offset + least, alignment) - offset;
}

TensorHeaderImage::TensorHeaderImage(const TensorSpec& spec, const HeaderKind& kind,
                                     std::uint64_t size) {
  const std::uint64_t data_size = spec.data_size();
  bytes_.reserve(size);
  put_hashed(bytes_, spec, kind.hashes, digest_at_);
  crypt_at_ = bytes_.size();
  if (kind.encryption) crypt_ = put_crypt_info(bytes_, *kind.encryption, data_size);
  crypt_end_ = bytes_.size();
  bytes_.resize(size);
  std::memcpy(bytes_.data(), &size, sizeof(size));
  std::memcpy(bytes_.data() + size - sizeof(data_size), &data_size, sizeof(data_size));
}

void TensorHeaderImage::set_mac(std::uint64_t chunk, const Mac& mac) noexcept {
  std::memcpy(bytes_.data() + crypt_.macs_at + chunk * kMacSize, mac.data(), mac.size());
}

void TensorHeaderImage::set_digests(const Digests& digests) noexcept {
  for (const HashInfo& info : kHashes) {
    const std::size_t at = digest_at_[info.hash];
    if (at > 0) std::memcpy(bytes_.data() + at, digests[info.hash]->data(), info.size);
  }
}

TensorDetails parse_tensor_header(Bytes bytes, const IndexedHeader& indexed) {
  HeaderParser parser{bytes, indexed, indexed.entry, Cursor(bytes), {}};
  parser.parse();
  return parser.header;
}

void check_header_size(const Entry& entry, std::size_t number, bool encrypted,
                       const FileLocation& location) {
  // Assumes the largest size of every field, and the smallest size of every chunk.
  std::uint64_t most = kLengthField + sizeof(std::uint16_t) + 1 + sizeof(std::uint16_t) +
                       entry.name.size() + kMostText8 + 1 + 8 * entry.shape.size() + kMostText16 +
                       kMostPadding + kLengthField;
  if (encrypted) {
    most += kMostText16 + kMacSize * chunks_of(entry.data_size, kSmallestCryptChunk);
  }
  if (entry.header_size() <= most) return;
  throw Error(ErrorKind::InvalidFormat,
              std::string(location.label) + ": " + describe(entry.name, number) +
                  ": its header at offset " + std::to_string(entry.header_offset) + " has " +
                  std::to_string(entry.header_size()) +
                  " bytes, which is too long: such a tensor needs at most " + std::to_string(most));
}

}  // namespace tensorizer
