// Writes a file anew to another place: with other digests, another key, or none.
#pragma once

#include <string>

#include "base/cancel.h"
#include "engine/open_file.h"
#include "engine/options.h"
#include "tensorizer_ops/reader.h"

namespace tensorizer {

// Streams every tensor from `from` to the file `to`, within options.memory_ceiling. Checks every
// digest and MAC on the way; if the options of `from` ask for a file digest, checks that instead of
// the tensors' saved digests. Throws what loads and saves throw; nothing appears at the target
// then.
void rewrite(OpenFile& from, const std::string& to, HashKinds hashes, int threads,
             const SaveOptions& options, Progress& progress, Cancel& cancel);

// Brings the local file `to` up to date with the plain file `from`, which must list digests of
// chunks: reads from it only what the local file does not have, and writes a file with the same
// digests in its place. Makes a copy if there is no file `to`. Throws InvalidArgument if one of the
// files is encrypted.
Updated update(OpenFile& from, const std::string& to, int threads, Progress& progress,
               Cancel& cancel);

}  // namespace tensorizer
