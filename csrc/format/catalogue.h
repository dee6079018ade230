// The tensors of a file, whatever its format. The parser of a format fills a Catalogue in, and the
// layers above `format` read only that.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "codec/argon2.h"
#include "codec/secretbox.h"
#include "format/chunks.h"
#include "format/dtype.h"
#include "format/hashes.h"
#include "tensorizer_ops/stored_tensor.h"

namespace tensorizer {

// Where a file is read from, for checks and messages.
struct FileLocation {
  std::string_view label;             // quoted, without secrets
  std::uint64_t start = 0;            // the offset of the file in its source
  std::optional<std::uint64_t> size;  // the offset at which the source ends, if known
};

// One tensor. Offsets are absolute in the source. Names and shapes belong to the catalogue.
struct Entry {
  std::string_view name;  // as stored
  TensorType type;
  std::optional<DType> dtype;  // missing if only the tensor's header has it
  std::uint32_t element_size;
  bool meta;  // no data was stored: the tensor loads as zeros
  std::span<const std::int64_t> shape;
  std::uint64_t header_offset;  // equals `data_offset` if the tensor has no header of its own
  std::uint64_t data_offset;
  std::uint64_t data_size;

  std::uint64_t header_size() const noexcept { return data_offset - header_offset; }
  std::uint64_t end() const noexcept { return data_offset + data_size; }
  // Returns the bytes that the tensor takes in memory, also if no data was stored.
  std::uint64_t memory_size() const noexcept;
};

// The most dimensions of a tensor that has ties. A tie takes a few bytes in the file, and its
// tensor in memory several for each dimension.
inline constexpr std::size_t kMostTiedDimensions = 16;

// One more name of a tensor, as a tied weight has. No other bytes are stored for it.
struct Tie {
  std::string_view name;  // as stored
  TensorType type;
  std::uint16_t module_index;
  std::uint32_t entry;   // the number of the tensor, which has data and a known dtype
  std::uint32_t number;  // of this name among all names
};

// A name and the number of the tensor that has it.
struct NamedEntry {
  std::string_view name;  // as stored
  TensorType type;
  std::uint32_t entry;
};

// How the data of one tensor is encrypted: in chunks, each with a MAC and a nonce of its own.
struct CryptInfo {
  std::optional<KeyDerivation> derivation;
  std::uint64_t chunk_size = 0;  // 0 if there is no data
  Nonce nonce{};                 // of the first chunk; counts up
  ConstBytes macs;               // of all chunks, in order

  ConstBytes mac(std::uint64_t chunk) const { return macs.subspan(chunk * kMacSize, kMacSize); }
};

// Everything that a file says about one tensor beyond its entry. It comes from the header in front
// of the tensor's data, or, in a format without such headers, from the catalogue.
struct TensorDetails {
  std::uint16_t module_index = 0;
  DType dtype = DType::UInt8;
  Digests digests;
  CryptInfo crypt;
  // The bytes that all digests cover before the data, in order.
  std::array<ConstBytes, 2> hashed{};
};

enum class Format : std::uint8_t { Tensors, Safetensors };

// What the file says about itself, for inspection.
struct FormatInfo {
  Format format;
  std::uint32_t version;       // of its format; 0 if that has no versions
  std::uint64_t flags;         // of its format
  std::uint64_t claimed_size;  // of the file; unchecked
  std::uint64_t tensor_count;
};

// A key and its value, which somebody has stored with the tensors.
using MetadataPair = std::pair<std::string_view, std::string_view>;

// Const methods are thread-safe.
class Catalogue {
 public:
  virtual ~Catalogue() = default;

  // Returns the tensors in the order in which the file lists them. No two of them overlap.
  std::span<const Entry> entries() const noexcept { return entries_; }
  // Returns further names of these tensors, in the order of their numbers.
  std::span<const Tie> ties() const noexcept { return ties_; }
  // All names, those of entries and those of ties, are numbered in the order in which they were
  // saved. Without ties, a name has the number of its entry.
  std::size_t name_count() const noexcept { return entries_.size() + ties_.size(); }
  NamedEntry named(std::uint32_t number) const noexcept;
  // Returns the tie whose name has this number; null if it is the name of an entry.
  const Tie* tie(std::uint32_t number) const noexcept;
  // Returns the number of an entry's own name.
  std::uint32_t number_of(std::uint32_t entry) const noexcept;
  // Returns the offset at which the data of the last tensor ends.
  std::uint64_t end() const noexcept { return end_; }
  // Returns the SHA-256 of each tensor's data, in the order of the entries; empty if the file keeps
  // none.
  ConstBytes data_digests() const noexcept { return data_digests_; }
  // Returns the digest of each chunk of each tensor's data; empty if the file keeps none.
  const ChunkDigests& chunk_digests() const noexcept { return chunk_digests_; }
  // Returns whether the file lists digests of other tensors than it has, which are not used: a
  // program that changes tensors may keep the metadata, and damage to the header looks the same.
  bool has_digests_of_others() const noexcept { return digests_of_others_; }
  // Returns the metadata of the user, in the order of the file. No key appears twice.
  std::span<const MetadataPair> metadata() const noexcept { return metadata_; }
  // Returns whether the file has metadata of the user. In safetensors files they may have no text.
  bool has_metadata() const noexcept { return empty_metadata_ || !metadata_.empty(); }
  // Sets a dtype that only the tensor's header has. Thread-safe for different entries.
  void set_dtype(std::size_t entry, DType dtype) { entries_[entry].dtype = dtype; }

  virtual FormatInfo info() const = 0;
  virtual bool encrypted() const noexcept = 0;
  // Returns whether a key authenticates the names, types, shapes and offsets.
  virtual bool authenticated() const noexcept = 0;

  // Throws InvalidFormat if the tensor's header is longer than the header of such a tensor can be.
  virtual void check_header_size(std::size_t entry, const FileLocation& location) const = 0;
  // Checks the tensor's header against its entry and returns what it says. `header` holds the
  // `header_size()` bytes at `header_offset`, none if the tensor has no header. Overwrites parts of
  // `header`; the result points into it and into the catalogue. Throws InvalidFormat, and Crypto if
  // what the header says about encryption is malformed, or if a key authenticates the headers and
  // this header is a different one.
  virtual TensorDetails details(std::size_t entry, Bytes header,
                                const FileLocation& location) const = 0;

 protected:
  Catalogue() = default;
  Catalogue(Catalogue&&) = default;
  Catalogue& operator=(Catalogue&&) = default;

  std::vector<Entry> entries_;
  std::vector<Tie> ties_;
  std::uint64_t end_ = 0;
  ConstBytes data_digests_;
  ChunkDigests chunk_digests_;
  std::vector<MetadataPair> metadata_;
  bool empty_metadata_ = false;
  bool digests_of_others_ = false;

 private:
  // Returns the first tie whose number is not less.
  std::vector<Tie>::const_iterator first_tie(std::uint32_t number) const noexcept;
};

// Returns the number of each tensor's first chunk, and the number of all chunks at the end. Entries
// may overlap; a number that is too large is the largest.
std::vector<std::uint64_t> first_chunks(std::span<const Entry> entries, std::uint64_t chunk_size);

// Returns the names as stored.
std::vector<std::string_view> stored_names(std::span<const Entry> entries);

// Returns the names by which a program asks for tensors: the stored names, without the dot that a
// root module's own tensors start with, unless that would make two names equal.
std::vector<std::string_view> clean_names(std::span<const NamedEntry> stored);

// Returns all names of a catalogue, by their numbers.
std::vector<NamedEntry> all_names(const Catalogue& catalogue);

// Returns the numbers of the entries in the order in which their tensors are stored: by where they
// begin, then by where they end. Entries of the same place keep their order.
std::vector<std::uint32_t> stored_order(std::span<const Entry> entries, Cancel& cancel);

// Returns "tensor 'x' (index entry 3)", for messages.
std::string describe(std::string_view name, std::size_t entry);

}  // namespace tensorizer
