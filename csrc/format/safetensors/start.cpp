#include "format/safetensors/start.h"

#include <string>

namespace tensorizer {

namespace {

std::uint64_t claimed_size(ConstBytes first) noexcept {
  return Cursor(first).take<std::uint64_t>();
}

}  // namespace

bool is_safetensors(ConstBytes first) noexcept {
  if (first.size() < kSafetensorsStart) return false;
  const char begin = as_text(first)[kSafetensorsLength];
  if (begin == '{') return true;
  const bool space = begin == ' ' || begin == '\t' || begin == '\n' || begin == '\r';
  return space && claimed_size(first) <= kMostSafetensorsHeader;
}

std::uint64_t safetensors_header_size(ConstBytes first, const FileLocation& location) {
  const std::uint64_t size = claimed_size(first);
  const std::string claim = "its header" + at(location.start + kSafetensorsLength) + " claims " +
                            std::to_string(size) + " bytes";
  if (size > kMostSafetensorsHeader) {
    fail(location, claim + ", and at most " + std::to_string(kMostSafetensorsHeader) +
                       " are allowed in a safetensors file");
  }
  if (location.size && location.start + kSafetensorsLength + size > *location.size) {
    fail(location, claim + ", but the file ends at " + std::to_string(*location.size) +
                       ", truncated or damaged");
  }
  return size;
}

}  // namespace tensorizer
