// Where everything stands in a file that is being written, and its header and index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/tensor_header.h"

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

  std::uint64_t data_offset() const noexcept { return header_offset + header_size; }
  std::uint64_t end() const noexcept { return data_offset() + spec.data_size(); }
};

// Places tensors one behind the other.
class Layout {
 public:
  // `base`: the absolute offset of the end of the prefix, or any number that is congruent to it
  // modulo 4 KiB.
  Layout(HashKinds hashes, std::uint64_t base) : hashes_(hashes), base_(base) {}

  // Checks the spec and places it behind the last one.
  void add(TensorSpec spec);

  std::span<const PlacedTensor> tensors() const noexcept { return tensors_; }
  HashKinds hashes() const noexcept { return hashes_; }
  // The end of the last tensor, where the terminator stands.
  std::uint64_t end() const noexcept { return tensors_.empty() ? 0 : tensors_.back().end(); }

  // What the file has behind its prefix.
  std::uint64_t file_size() const noexcept { return end() + sizeof(kTerminator); }

  // Throws Error(InvalidArgument) when two names cannot stand in one file.
  void check_names() const;

  // The size that the prefix needs: a multiple of 4 KiB.
  std::uint64_t prefix_size() const noexcept;

  // The prefix, padded to `size` (at least prefix_size()), of a file whose magic is at `start`.
  std::vector<std::byte> prefix(std::uint64_t start, std::uint64_t size) const;

 private:
  bool has_long_dimensions() const noexcept;

  HashKinds hashes_;
  std::uint64_t base_;
  std::vector<PlacedTensor> tensors_;
};

}  // namespace tensorizer
