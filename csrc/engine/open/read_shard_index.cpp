#include "engine/open/read_shard_index.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/open/whole_files.h"
#include "engine/read_arriving.h"

namespace tensorizer {

ShardIndex read_shard_index(Source& source, Cancel& cancel) {
  const SourceLocation location(source);
  const std::uint64_t size = source.size().value_or(kMostShardIndex + 1);
  if (size > kMostShardIndex) {
    throw Error(ErrorKind::InvalidFormat,
                source.label() +
                    ": this looks like the index of a sharded safetensors model, which "
                    "may have at most " +
                    std::to_string(kMostShardIndex) + " bytes");
  }
  std::vector<std::byte> text;
  read_arriving(source, 0, size, text, cancel);
  check_whole(source, text);
  return {std::move(text), location, cancel};
}

}  // namespace tensorizer
