// Deltas: files that turn one model into another (docs/format.md).
#pragma once

#include "base/cancel.h"
#include "engine/move/move.h"
#include "engine/open/open_file.h"
#include "engine/rewrite/rewrite.h"

namespace tensorizer {

// Writes what turns the model of `base` into that of `fresh`, and the metadata of `fresh`. Reads
// both in whole, and those tensors twice whose changes do not fit into a quarter of the memory
// ceiling.
// Checks what both files say about their data. Throws InvalidArgument for a file that can be read
// only once, and for one that is a delta itself.
void make_delta(OpenFile& base, OpenFile& fresh, RewriteRequest request, Progress& progress,
                Cancel& cancel);

// Writes the model that `delta` makes of `base`. Each block of `base` is compared with what the
// delta was made from, and each block that has changed with what it should become; in the end, both
// models with their digests. Throws InvalidArgument if `base` is another model, HashMismatch if the
// result is, and InvalidFormat for a malformed delta.
void apply_delta(OpenFile& delta, OpenFile& base, RewriteRequest request, Progress& progress,
                 Cancel& cancel);

// Returns the metadata without what makes the file a delta.
std::optional<Metadata> without_delta(std::optional<Metadata> metadata);

}  // namespace tensorizer
