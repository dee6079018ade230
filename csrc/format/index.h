// The index of a `.tensors` file: what it holds, and where.
//
// Everything here comes from a file that nobody vouches for, so parsing checks every length, count
// and offset before it is used and allocates only what the bytes at hand justify. Faults throw
// Error(InvalidFormat) that names the file, the tensor and the offset.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "format/dtype.h"
#include "format/records.h"
#include "tensorizer_ops/stored_tensor.h"

namespace tensorizer {

// The file header and the length of the index, in front of everything else.
inline constexpr std::uint64_t kFileHeaderSize = 73;
inline constexpr std::string_view kFileMagic = "|TZR|";

inline constexpr std::uint32_t kOldestVersion = 1;
inline constexpr std::uint32_t kVersionWithOpaque = 2;
inline constexpr std::uint32_t kEncryptedVersion = 3;
inline constexpr std::uint32_t kVersionWithMeta = 4;
inline constexpr std::uint32_t kVersionWithLongDimensions = 5;
inline constexpr std::uint32_t kNewestVersion = 5;

// The feature flags, 32 bytes of which only these bits of the first have a meaning.
inline constexpr std::size_t kFlagBytes = 32;
inline constexpr std::uint8_t kEncryptedFlag = 1;
inline constexpr std::uint8_t kLongDimensionsFlag = 2;

// Where a file is read from, for checks and messages.
struct FileLocation {
  std::string_view label;             // quoted, without secrets
  std::uint64_t start = 0;            // where the magic stands
  std::optional<std::uint64_t> size;  // where the file object ends, when that is known
};

struct FileHeader {
  std::array<std::byte, kFileHeaderSize> bytes{};
  std::uint32_t version = 0;
  bool encrypted = false;
  bool long_dimensions = false;  // every index entry has a version of its own
  std::uint64_t tensor_count = 0;
  std::uint64_t index_size = 0;
};

// `bytes` starts with the magic and may be longer than the header.
FileHeader parse_file_header(ConstBytes bytes, const FileLocation& location);

struct Entry {
  std::string_view name;  // as stored
  TensorType type;
  std::optional<DType> dtype;  // missing when only the tensor's header has it
  std::uint32_t element_size;
  bool long_dimensions;  // dimensions are u64 in the tensor's header too
  bool meta;             // no data was stored: it loads as zeros
  std::span<const std::int64_t> shape;
  std::uint64_t header_offset;
  std::uint64_t data_offset;
  std::uint64_t data_size;

  std::uint64_t header_size() const noexcept { return data_offset - header_offset; }
  std::uint64_t end() const noexcept { return data_offset + data_size; }
  // As if data had been stored: what the tensor takes in memory.
  std::uint64_t memory_size() const noexcept;
};

class Index {
 public:
  // `bytes` are the index_size bytes behind the file header.
  Index(const FileHeader& header, std::vector<std::byte> bytes, const FileLocation& location,
        Cancel& cancel);
  Index(Index&&) = default;
  Index& operator=(Index&&) = default;

  const FileHeader& header() const noexcept { return header_; }
  std::span<const Entry> entries() const noexcept { return entries_; }
  // Where the last tensor of the file ends.
  std::uint64_t end() const noexcept { return end_; }
  // What an encrypted file says of its own metadata, if it does.
  const std::optional<Authentication>& authentication() const noexcept { return authentication_; }
  // Whether the file header and all of the index are what somebody wrote who had the key.
  bool is_authentic(ConstBytes key) const;
  // The SHA-256 of each tensor's data, in the order of the entries; empty where the file keeps
  // none.
  ConstBytes data_digests() const noexcept { return data_digests_; }
  // Fills in what only the tensor's header says.
  void set_dtype(std::size_t entry, DType dtype) { entries_[entry].dtype = dtype; }

 private:
  struct Parser;

  FileHeader header_;
  std::vector<std::byte> bytes_;          // the names point into it
  std::vector<std::int64_t> dimensions_;  // the shapes point into it
  std::vector<Entry> entries_;            // in file order
  std::uint64_t end_ = 0;
  std::optional<Authentication> authentication_;
  ConstBytes data_digests_;
};

// The names by which a program asks for tensors: as stored, but without the dot that a root
// module's own tensors start with, unless that would make two names equal.
std::vector<std::string_view> clean_names(std::span<const Entry> entries);

// "tensor 'x' (index entry 3)", for messages.
std::string describe(std::string_view name, std::size_t entry);

}  // namespace tensorizer
