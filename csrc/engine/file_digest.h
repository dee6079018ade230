// The digest of a whole file.
#pragma once

#include <string>

#include "engine/move.h"
#include "engine/open_file.h"

namespace tensorizer {

// How file_digest() gets the digest.
struct DigestRequest {
  DigestVersion version = DigestVersion::Tensors;
  bool listed = false;  // whether it is made of the digests that the file lists
  int threads = 1;
};

// Returns the digest of a file's names, dtypes, shapes and data, as text. Reads all data and does
// not compare the digests in the file, or reads none and believes them. Throws what load() throws,
// and InvalidArgument if the file does not list the digests that are asked for.
std::string file_digest(OpenFile& file, const DigestRequest& request, Progress& progress,
                        Cancel& cancel);

}  // namespace tensorizer
