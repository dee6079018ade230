// A file that begins or ends inside another source.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "io/source.h"

namespace tensorizer {

// Returns a source with the bytes of `whole` before `end`, in which the file begins at `start`.
std::unique_ptr<Source> section_source(std::shared_ptr<Source> whole, std::uint64_t start,
                                       std::optional<std::uint64_t> end);

}  // namespace tensorizer
