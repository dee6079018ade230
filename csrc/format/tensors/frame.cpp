#include "format/tensors/frame.h"

#include <cstring>

namespace tensorizer {

bool all_zero(ConstBytes bytes) noexcept {
  return bytes.empty() || (bytes.front() == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

FrameCursor::FrameCursor(ConstBytes bytes) noexcept
    : cursor_(bytes), present_(as_text(bytes).starts_with(kFrameMagic)) {
  if (present_) cursor_.take_bytes(kFrameMagic.size());
}

std::optional<Record> FrameCursor::next() noexcept {
  // The index may end less than a whole record head behind the last record.
  constexpr std::size_t kHead = sizeof(std::uint16_t) + sizeof(std::uint32_t);
  if (!present_ || cursor_.left() < kHead) return std::nullopt;
  const auto kind = cursor_.take<std::uint16_t>();
  if (kind == 0) {
    present_ = false;
    return std::nullopt;
  }
  const ConstBytes body = cursor_.take_bytes(cursor_.take<std::uint32_t>());
  if (!cursor_.ok()) return std::nullopt;
  return Record{kind, body};
}

}  // namespace tensorizer
