// The digest of a whole file.
#pragma once

#include <string>

#include "engine/move.h"
#include "engine/open_file.h"

namespace tensorizer {

// Reads all of a file, and returns the digest of its names, dtypes, shapes and data in hexadecimal;
// does not compare the digests in the file. Throws what load() throws.
std::string file_digest(OpenFile& file, int threads, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
