// Parses timestamps in ISO 8601.
#pragma once

#include <optional>
#include <string_view>

#include "base/world.h"

namespace tensorizer {

// Parses "2026-01-31T23:59:59Z". The seconds may have a fraction, which is ignored. "Z" may be
// missing, or be an offset such as "+01:00"; "T" may be a space. Times after the year 2200 become
// 2200. Returns null for anything else.
std::optional<WallClock::time_point> parse_timestamp(std::string_view text);

}  // namespace tensorizer
