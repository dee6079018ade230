// Writes a file anew to another place: with other digests, another key, or none.
#pragma once

#include <string>

#include "base/cancel.h"
#include "engine/open/open_file.h"
#include "engine/options.h"

namespace tensorizer {

struct RewriteRequest {
  std::string to;
  HashKinds hashes;
  int threads;
  SaveOptions options;
};

// Streams every tensor of `from`, whose bytes come from `source`, to another file, within
// options.memory_ceiling. Checks every digest and MAC on the way; if the options of `from` ask for
// a file digest, checks that instead of the tensors' saved digests. Throws what loads and saves
// throw; nothing appears at the target then.
void rewrite(OpenFile& from, Source& source, const RewriteRequest& request, Progress& progress,
             Cancel& cancel);

}  // namespace tensorizer
