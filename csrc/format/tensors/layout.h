// Where everything stands in a file that is being written, and its header and index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/tensors/tensor_header.h"

namespace tensorizer {

// The prefix (file header and index) ends on a multiple of this, so that data behind it is aligned
// however long it gets.
inline constexpr std::uint64_t kPrefixAlignment = 4096;

// What ends a file: where the next tensor header's length would stand.
inline constexpr std::uint64_t kTerminator = 0;

// A tensor with its place behind the prefix.
struct PlacedTensor {
  TensorSpec spec;
  std::uint64_t header_offset;  // from the end of the prefix
  std::uint64_t header_size;
  // For the records, which need them when the prefix is made.
  Sha256Digest header_digest{};
  Sha256Digest data_digest{};

  std::uint64_t data_offset() const noexcept { return header_offset + header_size; }
  std::uint64_t end() const noexcept { return data_offset() + spec.data_size(); }
};

// What a file that is written is like.
struct FileKind {
  HeaderKind header;
  bool data_digests = false;  // whether it keeps the digests of its tensors' data
};

// Places tensors one behind the other.
class Layout {
 public:
  // `base`: the absolute offset of the end of the prefix, or any number that is congruent to it
  // modulo 4 KiB.
  Layout(FileKind kind, std::uint64_t base) : kind_(std::move(kind)), base_(base) {}

  // Checks the spec and places it behind the last one.
  void add(TensorSpec spec);

  std::span<const PlacedTensor> tensors() const noexcept { return tensors_; }
  const FileKind& kind() const noexcept { return kind_; }
  // Whether the prefix can only be made when all headers and data have been written.
  bool has_records() const noexcept { return kind_.header.encryption || kind_.data_digests; }
  // Of different tensors from any thread.
  void set_header_digest(std::size_t tensor, const Sha256Digest& digest) noexcept {
    tensors_[tensor].header_digest = digest;
  }
  void set_data_digest(std::size_t tensor, const Sha256Digest& digest) noexcept {
    tensors_[tensor].data_digest = digest;
  }
  // The end of the last tensor, where the terminator stands.
  std::uint64_t end() const noexcept { return tensors_.empty() ? 0 : tensors_.back().end(); }

  // What the file has behind its prefix.
  std::uint64_t file_size() const noexcept { return end() + sizeof(kTerminator); }

  // Throws Error(InvalidArgument) when two names cannot stand in one file.
  void check_names(Cancel& cancel) const;

  // The size that the prefix needs: a multiple of 4 KiB.
  std::uint64_t prefix_size() const noexcept;

  // The prefix, padded to `size` (at least prefix_size()), of a file whose magic is at `start`.
  std::vector<std::byte> prefix(std::uint64_t start, std::uint64_t size) const;

 private:
  bool has_long_dimensions() const noexcept;
  void put_records(std::vector<std::byte>& prefix) const;

  FileKind kind_;
  std::uint64_t base_;
  std::vector<PlacedTensor> tensors_;
};

}  // namespace tensorizer
