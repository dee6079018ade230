// The layout of a file that is being written: places its tensors, and makes its header and index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/tensors/tensor_header.h"

namespace tensorizer {

// The size of the prefix (file header and index) is a multiple of this, so that data behind it
// stays aligned however long the prefix gets.
inline constexpr std::uint64_t kPrefixAlignment = 4096;

// Ends a file, in the place where the next tensor header would have its length.
inline constexpr std::uint64_t kTerminator = 0;

// A tensor and its offsets behind the prefix.
struct PlacedTensor {
  TensorSpec spec;
  std::uint64_t header_offset;  // from the end of the prefix
  std::uint64_t header_size;
  // The digests that go into records. They must be set before the prefix is made.
  Sha256Digest header_digest{};
  Sha256Digest data_digest{};

  std::uint64_t data_offset() const noexcept { return header_offset + header_size; }
  std::uint64_t end() const noexcept { return data_offset() + spec.data_size(); }
};

// The properties of a file that is written.
struct FileKind {
  HeaderKind header;
  bool data_digests = false;  // whether it has a record of the digests of its tensors' data
};

// Places tensors one behind the other. Not thread-safe unless a method says so.
class Layout {
 public:
  // `base` is the absolute offset of the end of the prefix, or any number that is congruent to it
  // modulo 4 KiB.
  Layout(FileKind kind, std::uint64_t base) : kind_(std::move(kind)), base_(base) {}

  // Places a tensor behind the last one. Throws Error(InvalidArgument), as check_spec() does.
  void add(TensorSpec spec);

  std::span<const PlacedTensor> tensors() const noexcept { return tensors_; }
  const FileKind& kind() const noexcept { return kind_; }
  // Returns whether the prefix has records. It can then be made only when all headers and data have
  // been written or digested.
  bool has_records() const noexcept { return kind_.header.encryption || kind_.data_digests; }
  // Sets a digest for the records. Thread-safe for different tensors, as is the next.
  void set_header_digest(std::size_t tensor, const Sha256Digest& digest) noexcept {
    tensors_[tensor].header_digest = digest;
  }
  void set_data_digest(std::size_t tensor, const Sha256Digest& digest) noexcept {
    tensors_[tensor].data_digest = digest;
  }
  // Returns the end of the last tensor, which is the offset of the terminator.
  std::uint64_t end() const noexcept { return tensors_.empty() ? 0 : tensors_.back().end(); }

  // Returns the size of the file without its prefix.
  std::uint64_t file_size() const noexcept { return end() + sizeof(kTerminator); }

  // Throws Error(InvalidArgument) if two names cannot be in one file.
  void check_names(Cancel& cancel) const;

  // Returns the size that the prefix needs: a multiple of 4 KiB.
  std::uint64_t prefix_size() const noexcept;

  // Returns the prefix of a file whose magic is at `start`, padded to `size`, which must be at
  // least prefix_size().
  std::vector<std::byte> prefix(std::uint64_t start, std::uint64_t size) const;

 private:
  bool has_long_dimensions() const noexcept;
  void put_records(std::vector<std::byte>& prefix) const;

  FileKind kind_;
  std::uint64_t base_;
  std::vector<PlacedTensor> tensors_;
};

}  // namespace tensorizer
