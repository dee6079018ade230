// Brings a local file up to date with a newer version of it.
#pragma once

#include <string>

#include "engine/move/move.h"
#include "engine/open/open_file.h"
#include "tensorizer_ops/updated.h"

namespace tensorizer {

// Brings the local file `to` up to date with the plain file `from`, which must list digests of
// chunks: reads from it only what the local file does not have, and writes a file with the same
// digests in its place. Makes a copy if there is no file `to`, or one of more than 256 MiB that is
// more than four times as large as `from`. Throws InvalidArgument if one of the files is encrypted.
Updated update(OpenFile& from, const std::string& to, int threads, Progress& progress,
               Cancel& cancel);

}  // namespace tensorizer
