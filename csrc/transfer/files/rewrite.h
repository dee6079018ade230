// Writes a file anew to another place: with other digests, another key, or none.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <unordered_map>

#include "base/cancel.h"
#include "engine/open/open_file.h"
#include "engine/options.h"

namespace tensorizer {

// How the tensors of the new file differ from those of the original.
struct TensorChanges {
  // The new name of each tensor that it has; null for all, under their own names.
  std::optional<std::unordered_map<std::string, std::string>> names{};
  std::optional<c10::ScalarType> dtype{};  // as in LoadRequest
};

struct RewriteRequest {
  std::string to;
  HashKinds hashes;
  int threads;
  SaveOptions options;
  TensorChanges changes{};
};

// Streams the tensors of `from`, whose bytes come from `source`, to another file, within
// options.memory_ceiling. Checks every digest and MAC on the way; if the options of `from` ask for
// a file digest, checks that instead of the tensors' saved digests. Throws what loads and saves
// throw; nothing appears at the target then.
void rewrite(OpenFile& from, Source& source, const RewriteRequest& request, Progress& progress,
             Cancel& cancel);

}  // namespace tensorizer
