// A file written anew: with other hashes, another key, none, to another place.
#pragma once

#include <string>

#include "base/cancel.h"
#include "engine/open_file.h"
#include "engine/options.h"

namespace tensorizer {

// Streams every tensor from one place to the other, with no more of it in memory than a job may
// take, and checks every hash and MAC on the way, or against the digest that the file must have.
// Throws what loads and saves throw; nothing appears at the target then.
void rewrite(OpenFile& from, const std::string& to, HashKinds hashes, int threads,
             const SaveOptions& options, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
