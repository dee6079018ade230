// Reads the changes of tensors from a delta, and makes new blocks of old ones.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/delta/blocks.h"
#include "engine/delta/changes_table.h"
#include "engine/load/tensor_source.h"

namespace tensorizer {

// Used by one thread at a time, for one tensor after another.
class ChangedBlocks {
 public:
  explicit ChangedBlocks(const TensorFile& delta) : file_(delta), source_(delta) {}

  // Begins with the changes of a tensor, by their entry in the delta. `data_size` is that of the
  // tensor. Throws InvalidFormat if they are not those of such a tensor.
  void open(std::uint32_t entry, DType dtype, std::uint64_t data_size, Cancel& cancel);

  // Of each block of the tensor.
  const std::vector<BlockChange>& table() const noexcept { return table_; }

  // Makes new blocks of the next ones in `window`, whose digests are set. Blocks that are new
  // already stay. Throws InvalidFormat if one does not become what it should. Every block must be
  // the old one or the new one.
  void apply(Window& window, Cancel& cancel);

 private:
  [[noreturn]] void refuse(std::size_t block, const std::string& why) const;

  const TensorFile& file_;
  TensorSource source_;
  std::uint32_t entry_ = 0;
  ElementKind kind_;
  std::vector<BlockChange> table_;
  std::vector<std::byte> codes_;
  std::uint64_t taken_ = 0;  // how many bytes of the changes have been read
};

}  // namespace tensorizer
