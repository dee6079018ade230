// Files with digests of chunks.
#pragma once

#include "memory_file.h"

namespace tensorizer::testing_support {

inline constexpr std::uint64_t kChunk = 64 << 10;

inline FileKind chunked(std::uint64_t chunk_size = kChunk, HashKinds hashes = {true, false}) {
  FileKind kind{{hashes, {}}, false};
  kind.chunk_size = chunk_size;
  return kind;
}

}  // namespace tensorizer::testing_support
