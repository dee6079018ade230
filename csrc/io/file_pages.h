// Pages of files in the memory of this process.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "io/file_identity.h"

namespace tensorizer {

struct FilePages {
  Bytes bytes;
  FileIdentity file;
  bool is_private;  // whether the file does not get what is written to them
  int protection;   // as for mprotect()
};

// Returns all that are mapped now.
std::vector<FilePages> file_pages();

// Puts pages of no file, with the same bytes, in the place of all private pages of files that lie
// in the given memory. Private pages change with their file until they are written to, and are
// discarded when the file is cut off. What others write to these pages meanwhile may be lost, but
// not what a caller writes after its own call. Throws Error if the system refuses.
void detach_from_files(const std::vector<Bytes>& memory);

}  // namespace tensorizer
