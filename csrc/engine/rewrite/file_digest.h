// Jobs that read a whole file and keep nothing of it: its digest, and its verification.
#pragma once

#include <string>

#include "engine/move/move.h"
#include "engine/open/open_file.h"

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

// Reads all data and compares it with the digest that the options of the file ask for, or else with
// the hashes in the file that `verify` selects. Goes on after damage, and names all of it in the
// end. Throws what load() throws.
void verify_file(OpenFile& file, Verify verify, int threads, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
