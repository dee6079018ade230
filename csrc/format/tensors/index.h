// The catalogue of a `.tensors` file: its header and its index.
//
// The bytes come from an untrusted file, so parsing checks every length, count and offset before it
// is used, and allocates only what the bytes at hand justify. Errors are InvalidFormat and name the
// file, the tensor and the offset.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "format/catalogue.h"
#include "format/tensors/records.h"

namespace tensorizer {

// The size of the file header, which ends with the length of the index.
inline constexpr std::uint64_t kFileHeaderSize = 73;
inline constexpr std::string_view kFileMagic = "|TZR|";

inline constexpr std::uint32_t kOldestVersion = 1;
inline constexpr std::uint32_t kVersionWithOpaque = 2;
inline constexpr std::uint32_t kEncryptedVersion = 3;
inline constexpr std::uint32_t kVersionWithMeta = 4;
inline constexpr std::uint32_t kVersionWithLongDimensions = 5;
inline constexpr std::uint32_t kNewestVersion = 5;

// The feature flags: 32 bytes, of which only these bits of the first have a meaning.
inline constexpr std::size_t kFlagBytes = 32;
inline constexpr std::uint8_t kEncryptedFlag = 1;
inline constexpr std::uint8_t kLongDimensionsFlag = 2;

struct FileHeader {
  std::array<std::byte, kFileHeaderSize> bytes{};
  std::uint32_t version = 0;
  std::uint8_t flags = 0;
  bool encrypted = false;  // from the version or the flag
  std::uint64_t claimed_size = 0;
  std::uint64_t tensor_count = 0;
  std::uint64_t index_size = 0;

  // Returns whether every index entry has a version of its own.
  bool long_dimensions() const noexcept { return (flags & kLongDimensionsFlag) != 0; }
};

// Returns whether a file that begins with these bytes is meant to be a `.tensors` file. An empty
// one counts as the beginning of such a file.
bool is_tensors_file(ConstBytes first) noexcept;

// Parses the header at the start of `bytes`, which may be longer. Throws InvalidFormat.
FileHeader parse_file_header(ConstBytes bytes, const FileLocation& location);

class Index final : public Catalogue {
 public:
  // `bytes` are the `index_size` bytes behind the file header.
  Index(const FileHeader& header, std::vector<std::byte> bytes, const FileLocation& location,
        Cancel& cancel);

  FormatInfo info() const override;
  bool encrypted() const noexcept override { return header_.encrypted; }
  bool authenticated() const noexcept override { return authentication_.has_value(); }
  void check_header_size(std::size_t entry, const FileLocation& location) const override;
  TensorDetails details(std::size_t entry, Bytes header,
                        const FileLocation& location) const override;

  const FileHeader& header() const noexcept { return header_; }
  // Returns the record that authenticates the metadata of an encrypted file, if there is one.
  const std::optional<Authentication>& authentication() const noexcept { return authentication_; }
  // Returns whether the MAC of the file header and the whole index is right for this key. The file
  // must have an authentication().
  bool is_authentic(ConstBytes key) const;

 private:
  struct Parser;

  // Returns whether the tensor's header stores its dimensions as u64.
  bool has_long_dimensions(std::size_t entry) const {
    return !long_dimensions_.empty() && long_dimensions_[entry];
  }

  FileHeader header_;
  std::vector<std::byte> bytes_;          // the names point into it
  std::vector<std::int64_t> dimensions_;  // the shapes point into it
  std::vector<bool> long_dimensions_;     // by entry; empty if no entry may have them
  std::optional<Authentication> authentication_;
};

}  // namespace tensorizer
