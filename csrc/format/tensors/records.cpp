#include "format/tensors/records.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "codec/hmac.h"
#include "format/name.h"
#include "format/name_table.h"
#include "format/tensors/frame.h"
#include "format/tensors/index.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kRecordHead = sizeof(std::uint16_t) + sizeof(std::uint32_t);
constexpr std::string_view kPurpose = "tensorizer_ops metadata 1";

// The records of digests of chunks, by their hash.
constexpr std::pair<std::uint16_t, Hash> kChunkRecords[] = {{kSha256ChunksRecord, Hash::Sha256}};

std::uint64_t chunk_digests_size(const FileKind& kind, std::size_t tensors, std::size_t chunks) {
  return sizeof(kind.chunk_size) + kSha256Size * tensors + info_of(kind.chunk_hash).size * chunks;
}

std::uint64_t authentication_size(const Encryption& encryption, std::size_t tensors) {
  return sizeof(std::uint16_t) + (encryption.derivation ? kDerivationSize : 0) +
         kSha256Size * (tensors + 1);
}

std::uint64_t metadata_size(const Metadata& metadata) {
  std::uint64_t size = 0;
  for (const auto& [key, value] : metadata) {
    size += 2 * sizeof(std::uint32_t) + key.size() + value.size();
  }
  return size;
}

// number, entry, module index, type, length of the name
constexpr std::uint64_t kSmallestTie = 4 + 4 + 2 + 1 + 2;

std::uint64_t ties_size(std::span<const SavedTie> ties) {
  std::uint64_t size = 0;
  for (const SavedTie& tie : ties) size += kSmallestTie + tie.name.size();
  return size;
}

// Returns why a tie cannot be; empty if it can.
std::string fault_of(const Tie& tie, std::uint8_t type, std::span<const Entry> entries) {
  try {
    check_name(tie.name);
  } catch (const Error& error) {
    return "whose name " + std::string(error.message());
  }
  if (type > static_cast<std::uint8_t>(TensorType::StateDictEntry)) {
    return "with the unknown tensor type " + std::to_string(type);
  }
  if (is_nested(tie.name) && tie.type != TensorType::StateDictEntry) {
    return "that has a nested name and is no state-dict entry";
  }
  if (tie.entry >= entries.size()) {
    return "to index entry " + std::to_string(tie.entry) + " of " + std::to_string(entries.size());
  }
  const Entry& entry = entries[tie.entry];
  if (entry.data_size == 0) {
    return "to " + describe(entry.name, tie.entry) + ", which has no data";
  }
  if (!entry.dtype) {
    return "to " + describe(entry.name, tie.entry) + ", whose dtype is not in the index";
  }
  if (entry.shape.size() > kMostTiedDimensions) {
    return "to " + describe(entry.name, tie.entry) + ", which has " +
           std::to_string(entry.shape.size()) + " dimensions";
  }
  return {};
}

void begin_record(ByteWriter& out, std::uint16_t kind, std::uint64_t size) {
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorKind::InvalidArgument,
                "there are too many tensors, or chunks of them, for the records of one file");
  }
  out.put(kind);
  out.put(static_cast<std::uint32_t>(size));
}

}  // namespace

Authentication parse_authentication(ConstBytes body, std::size_t tensors, std::string& fault) {
  Cursor cursor(body);
  Authentication authentication;
  const ConstBytes derivation = cursor.take_bytes(cursor.take<std::uint16_t>());
  authentication.header_digests = cursor.take_bytes(tensors * kSha256Size);
  authentication.mac = cursor.take_bytes(kSha256Size);
  if (!cursor.ok() || cursor.left() > 0) {
    fault = "has " + std::to_string(body.size()) + " bytes, which do not fit " +
            std::to_string(tensors) + " tensors";
  } else if (!derivation.empty()) {
    Cursor fields(derivation);
    authentication.derivation = take_derivation(fields, fault);
    if (fault.empty() && fields.left() > 0) fault = "has extra bytes after its key derivation";
  }
  return authentication;
}

Sha256Digest metadata_mac(ConstBytes key, ConstBytes file_header, ConstBytes index) {
  std::vector<std::byte> message(file_header.begin(), file_header.end());
  message.insert(message.end(), index.begin(), index.end());
  Sha256Digest own_key = hmac(key, as_bytes(kPurpose));
  const Sha256Digest mac = hmac(own_key, message);
  wipe(own_key);
  return mac;
}

std::vector<MetadataPair> parse_metadata(ConstBytes body, std::string& fault, Cancel& cancel) {
  Cursor cursor(body);
  std::vector<MetadataPair> metadata;
  while (cursor.ok() && cursor.left() > 0) {
    const std::string_view key = cursor.take_text<std::uint32_t>();
    const std::string_view value = cursor.take_text<std::uint32_t>();
    metadata.emplace_back(key, value);
    if (!is_utf8(key) || !is_utf8(value)) fault = "has a text that is not UTF-8";
  }
  if (!cursor.ok()) fault = "is cut short";
  if (const auto key = repeated_key(metadata, cancel)) {
    fault = "has the key " + quote(*key) + " twice";
  }
  return metadata;
}

std::vector<Tie> parse_ties(ConstBytes body, std::span<const Entry> entries, std::string& fault,
                            Cancel& cancel) {
  Cursor cursor(body);
  std::vector<Tie> ties;
  Pace pace(cancel);
  while (cursor.left() > 0) {
    pace.step();
    Tie tie{};
    tie.number = cursor.take<std::uint32_t>();
    tie.entry = cursor.take<std::uint32_t>();
    tie.module_index = cursor.take<std::uint16_t>();
    const auto type = cursor.take<std::uint8_t>();
    tie.type = static_cast<TensorType>(type);
    tie.name = cursor.take_text<std::uint16_t>();
    if (!cursor.ok()) {
      fault = "is cut short";
      return {};
    }
    if (!ties.empty() && tie.number <= ties.back().number) {
      fault = "does not list its ties in the order of their numbers";
      return {};
    }
    fault = fault_of(tie, type, entries);
    if (!fault.empty()) {
      fault = "has a tie, " + quote(tie.name) + ", " + fault;
      return {};
    }
    ties.push_back(tie);
  }
  // Numbers ascend, so all of them are in order if the last one is.
  if (!ties.empty() && ties.back().number >= entries.size() + ties.size()) {
    fault = "numbers a tie " + std::to_string(ties.back().number) + ", and there are " +
            std::to_string(entries.size() + ties.size()) + " names";
  }
  return ties;
}

std::optional<Hash> hash_of_chunks(std::uint16_t record) noexcept {
  const auto* const found =
      std::ranges::find(kChunkRecords, record, [](auto& each) { return each.first; });
  return found == std::end(kChunkRecords) ? std::nullopt : std::optional(found->second);
}

bool lists_chunks_by(Hash hash) noexcept {
  return std::ranges::any_of(kChunkRecords, [&](auto& each) { return each.second == hash; });
}

ChunkDigests parse_chunk_digests(Hash hash, ConstBytes body, std::span<const Entry> entries,
                                 std::string& fault) {
  const std::size_t size = info_of(hash).size;
  Cursor cursor(body);
  const auto chunk_size = cursor.take<std::uint64_t>();
  const ConstBytes headers = cursor.take_bytes(entries.size() * kSha256Size);
  const ConstBytes digests = cursor.take_bytes(cursor.left());
  if (!is_chunk_size(chunk_size)) {
    fault = "has no chunk size, which is a power of two from 65536 to 16777216";
    return {};
  }
  std::vector<std::uint64_t> first = first_chunks(entries, chunk_size);
  if (!cursor.ok() || digests.size() % size != 0 || digests.size() / size != first.back()) {
    fault = "does not have one digest for each header and chunk";
    return {};
  }
  return {hash, chunk_size, headers, digests, std::move(first)};
}

Sha256Digest seal_of(ConstBytes file_header, ConstBytes index) {
  Sha256 hash;
  hash.update(file_header);
  hash.update(index);
  return hash.finish();
}

std::uint64_t records_size(const FileKind& kind, std::size_t tensors, std::size_t chunks,
                           std::span<const SavedTie> ties) {
  std::uint64_t size = kFrameMagic.size();
  if (kind.data_digests) size += kRecordHead + kSha256Size * tensors;
  if (kind.chunk_size > 0) {
    size += kRecordHead + chunk_digests_size(kind, tensors, chunks);
  }
  if (!kind.metadata.empty()) size += kRecordHead + metadata_size(kind.metadata);
  if (!ties.empty()) size += kRecordHead + ties_size(ties);
  return size + kRecordHead +
         (kind.header.encryption ? authentication_size(*kind.header.encryption, tensors)
                                 : kSha256Size);
}

void put_data_digests(std::vector<std::byte>& prefix, std::span<const Sha256Digest> digests) {
  ByteWriter out(prefix);
  begin_record(out, kDataDigestsRecord, digests.size_bytes());
  for (const Sha256Digest& digest : digests) out.put_bytes(digest);
}

void put_chunk_digests(std::vector<std::byte>& prefix, const FileKind& kind,
                       std::span<const Sha256Digest> header_digests,
                       std::span<const Digest> digests) {
  ByteWriter out(prefix);
  const auto* const record =
      std::ranges::find(kChunkRecords, kind.chunk_hash, [](auto& each) { return each.second; });
  begin_record(out, record->first, chunk_digests_size(kind, header_digests.size(), digests.size()));
  out.put(kind.chunk_size);
  for (const Sha256Digest& digest : header_digests) out.put_bytes(digest);
  const std::size_t size = info_of(kind.chunk_hash).size;
  for (const Digest& digest : digests) out.put_bytes(ConstBytes(digest).first(size));
}

void put_metadata(std::vector<std::byte>& prefix, const Metadata& metadata) {
  ByteWriter out(prefix);
  begin_record(out, kMetadataRecord, metadata_size(metadata));
  for (const auto& [key, value] : metadata) {
    out.put_text<std::uint32_t>(key);
    out.put_text<std::uint32_t>(value);
  }
}

void put_ties(std::vector<std::byte>& prefix, std::span<const SavedTie> ties) {
  ByteWriter out(prefix);
  begin_record(out, kTiesRecord, ties_size(ties));
  for (const SavedTie& tie : ties) {
    out.put(tie.number);
    out.put(tie.tensor);
    out.put(tie.module_index);
    out.put(static_cast<std::uint8_t>(tie.type));
    out.put_text<std::uint16_t>(tie.name);
  }
}

void put_seal(std::vector<std::byte>& prefix) {
  ByteWriter out(prefix);
  begin_record(out, kSealRecord, kSha256Size);
  out.put_bytes(sha256(prefix));
}

void put_authentication(std::vector<std::byte>& prefix, const Encryption& encryption,
                        std::span<const Sha256Digest> header_digests) {
  ByteWriter out(prefix);
  begin_record(out, kAuthenticationRecord, authentication_size(encryption, header_digests.size()));
  out.put(static_cast<std::uint16_t>(encryption.derivation ? kDerivationSize : 0));
  if (encryption.derivation) put_derivation(prefix, *encryption.derivation);
  for (const Sha256Digest& digest : header_digests) out.put_bytes(digest);
  const ConstBytes covered(prefix);
  out.put_bytes(metadata_mac(encryption.key->bytes(), covered.first(kFileHeaderSize),
                             covered.subspan(kFileHeaderSize)));
}

}  // namespace tensorizer
