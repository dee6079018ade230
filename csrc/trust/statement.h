// Reads and writes the payload of a bundle: an in-toto statement about the files of a model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "trust/manifest.h"

namespace tensorizer {

inline constexpr std::string_view kPayloadType = "application/vnd.in-toto+json";

// Reads a statement whose signature somebody has checked. Throws Error(InvalidFormat) with a
// message that begins with `label`.
Manifest read_statement(std::vector<std::byte> text, const std::string& label);

// Writes the statement of a manifest, whose `root` and `signer` are not used.
std::string write_statement(const Manifest& manifest);

}  // namespace tensorizer
