// The layout of a `.tensors` file that is being written: its file header, index and records.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "format/layout.h"

namespace tensorizer {

// The size of the prefix (file header and index) is a multiple of this, so that data behind it
// stays aligned however long the prefix gets.
inline constexpr std::uint64_t kPrefixAlignment = 4096;

// Ends a file, in the place where the next tensor header would have its length.
inline constexpr std::uint64_t kTerminator = 0;

class TensorsLayout final : public Layout {
 public:
  // `base` is the absolute offset of the end of the prefix, or any number that is congruent to it
  // modulo 4 KiB.
  TensorsLayout(FileKind kind, std::uint64_t base) : Layout(std::move(kind)), base_(base) {}

  void add(TensorSpec spec) override;
  void remove_from(std::size_t first) override;
  bool has_digests() const noexcept override {
    return kind_.header.encryption || kind_.data_digests || kind_.chunk_size > 0;
  }
  ConstBytes terminator() const noexcept override;
  void check_names(Cancel& cancel) const override;
  // Returns a multiple of 4 KiB.
  std::uint64_t prefix_size() const override;
  std::vector<std::byte> prefix(std::uint64_t start, std::uint64_t size) const override;

 private:
  void check_in_format(const TensorSpec& spec) const override;
  void put_records(std::vector<std::byte>& prefix) const;

  const std::uint64_t base_;
  std::uint64_t entries_size_ = 0;     // in the index, without their versions
  std::uint64_t long_dimensions_ = 0;  // tensors that have them
};

}  // namespace tensorizer
