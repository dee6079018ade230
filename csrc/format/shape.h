// Which shapes a tensor can have in a file: those that torch can hold. Files are loaded and saved
// with the same limit, so that what was saved can be loaded.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace tensorizer {

// The largest offset and size: torch and the system use signed 64-bit integers.
inline constexpr auto kMaxSigned =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Returns how many bytes the elements of a tensor take, at most kMaxSigned; null if torch cannot
// hold the shape. No dimension may be negative.
std::optional<std::uint64_t> byte_size(std::span<const std::int64_t> shape,
                                       std::uint32_t element_size) noexcept;

}  // namespace tensorizer
