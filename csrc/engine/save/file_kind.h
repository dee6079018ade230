// What is asked for of a file that is saved.
#pragma once

#include <optional>

#include "base/cancel.h"
#include "engine/options.h"
#include "format/layout.h"

namespace tensorizer {

// Returns the kind of file that the options ask for, and derives the key if there is one. An
// encrypted file never has CRC32s, which would reveal something about its data; throws
// Error(InvalidArgument) if they are the only digests asked for, and what kind_in() throws.
FileKind file_kind(Format format, HashKinds hashes, std::optional<Metadata> metadata,
                   const SaveOptions& options, Cancel& cancel);

}  // namespace tensorizer
