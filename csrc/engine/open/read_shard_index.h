// Reads the index of a sharded safetensors model.
#pragma once

#include "base/cancel.h"
#include "format/safetensors/shard_index.h"
#include "io/source.h"

namespace tensorizer {

// Throws InvalidFormat for a file that is too long or is no such index.
ShardIndex read_shard_index(Source& source, Cancel& cancel);

}  // namespace tensorizer
