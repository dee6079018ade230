// A hash for tables of text that comes from files.
#pragma once

#include <cstdint>
#include <string_view>

namespace tensorizer {

// Returns SipHash-2-4 of `text`, with a key that this process chose at random: nobody can prepare
// names that all have the same hash.
std::uint64_t keyed_hash(std::string_view text) noexcept;

}  // namespace tensorizer
