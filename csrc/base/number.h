// Parses numbers.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tensorizer {

// Parses text that has only decimal digits. Returns null for other text and beyond 64 bits.
inline std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// Parses a number of bytes, which may have a unit: "4096", "64MiB", "1.5 GB". Case makes no
// difference. Returns null for what is no whole number of bytes.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// Parses a number of seconds, which may have a unit: "0.5", "500ms", "2m", "1h".
std::optional<double> parse_seconds(std::string_view text);

}  // namespace tensorizer
