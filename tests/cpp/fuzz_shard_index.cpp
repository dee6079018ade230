// Fuzzes the indexes of sharded safetensors models.
#include "format/safetensors/shard_index.h"
#include "fuzz_checks.h"

namespace tensorizer {
namespace {

void check_index(ConstBytes bytes) {
  Cancel cancel;
  const FileLocation location{"'index'", 0, bytes.size()};
  const ShardIndex index({bytes.begin(), bytes.end()}, location, cancel);
  const std::span<const std::string_view> shards = index.shards();
  require(!shards.empty() && shards.size() <= kMostShards);
  require(std::is_sorted(shards.begin(), shards.end()));
  require(std::adjacent_find(shards.begin(), shards.end()) == shards.end());
  for (const std::string_view shard : shards) {
    require(!shard.empty() && shard != "." && shard != "..");
    require(shard.find('/') == shard.npos && shard.find('\0') == shard.npos);
  }
  // No shard has a tensor, so each tensor is missing.
  bool refused = false;
  try {
    index.check({}, location, cancel);
  } catch (const Error& error) {
    refused = error.kind() == ErrorKind::InvalidFormat;
  }
  require(refused);
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  try {
    check_index({reinterpret_cast<const std::byte*>(data), size});
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::InvalidFormat);
  }
  return 0;
}
