// Moments as ISO 8601 writes them.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace tensorizer {

// "2026-01-31T23:59:59Z", where a fraction of a second may stand behind the seconds, an offset such
// as "+01:00" in the place of "Z", which may also be missing, and a space in the place of "T".
// Moments that are centuries away come out nearer.
std::optional<std::chrono::system_clock::time_point> parse_timestamp(std::string_view text);

}  // namespace tensorizer
