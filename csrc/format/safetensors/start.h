// The first bytes of a safetensors file: what tells the format, and how long the header is.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "format/parsing.h"

namespace tensorizer {

// A file begins with the length of its header, as a u64.
inline constexpr std::uint64_t kSafetensorsLength = sizeof(std::uint64_t);
// How many bytes of a file tell whether it has this format.
inline constexpr std::uint64_t kSafetensorsStart = kSafetensorsLength + 1;

inline constexpr std::uint64_t kMostSafetensorsHeader = 100'000'000;

// Returns whether a file that begins with these bytes is meant to be a safetensors file.
bool is_safetensors(ConstBytes first) noexcept;

// Returns the length of the header of a file that begins with these bytes, of which there are
// kSafetensorsStart at least. Throws InvalidFormat if it is too large, or larger than the file.
std::uint64_t safetensors_header_size(ConstBytes first, const FileLocation& location);

}  // namespace tensorizer
