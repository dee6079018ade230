#include "engine/delta/changed_blocks.h"

#include "base/error.h"
#include "engine/digest/check.h"

namespace tensorizer {

void ChangedBlocks::open(std::uint32_t entry, DType dtype, std::uint64_t data_size,
                         Cancel& cancel) {
  entry_ = entry;
  kind_ = element_kind(dtype);
  const Entry& changes = file_.catalogue.entries()[entry];
  const std::uint64_t table_size = chunk_count(data_size, kChangesBlock) * kBlockChangeSize;
  const TensorLocation location{file_.source, changes, entry};
  const bool fits = table_size > 0 && changes.data_size >= table_size;
  if (!fits || changes.dtype != DType::UInt8) {
    fail(location, ErrorKind::InvalidFormat,
         "it is malformed, or made for a tensor of another size");
  }
  std::vector<std::byte> bytes(table_size);
  source_.read(entry, 0, bytes, cancel);
  auto table = parse_table(bytes, data_size, changes.data_size - table_size);
  if (!table) fail(location, ErrorKind::InvalidFormat, "its table of blocks is malformed");
  table_ = *std::move(table);
  taken_ = table_size;
}

void ChangedBlocks::apply(Window& window, Cancel& cancel) {
  const std::size_t first = window.position / kChangesBlock;
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < window.count(); ++i) size += table_[first + i].code_size;
  if (size == 0) return;
  codes_.resize(size);
  source_.read(entry_, taken_, codes_, cancel);
  taken_ += size;
  ConstBytes codes = codes_;
  for (std::size_t i = 0; i < window.count(); ++i) {
    cancel.check();
    const BlockChange& block = table_[first + i];
    const ConstBytes code = codes.first(block.code_size);
    codes = codes.subspan(code.size());
    if (window.digests[i] == block.target) continue;
    if (!apply_changes(kind_, code, window.block(i))) refuse(first + i, "is malformed");
  }
  window.digest();
  for (std::size_t i = 0; i < window.count(); ++i) {
    if (window.digests[i] == table_[first + i].target) continue;
    refuse(first + i, "does not become what it should: the delta is damaged, or was changed");
  }
}

void ChangedBlocks::refuse(std::size_t block, const std::string& why) const {
  fail({file_.source, file_.catalogue.entries()[entry_], entry_}, ErrorKind::InvalidFormat,
       "block " + std::to_string(block) + " " + why);
}

}  // namespace tensorizer
