// The index of a safetensors model in several files, its shards: a JSON object whose `weight_map`
// names the file of each tensor.
//
// The bytes come from an untrusted file. Errors are InvalidFormat and name the file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "format/catalogue.h"

namespace tensorizer {

inline constexpr std::uint64_t kMostShardIndex = 100'000'000;
inline constexpr std::size_t kMostShards = 4096;
// How the names of index files usually end.
inline constexpr std::string_view kShardIndexSuffix = ".safetensors.index.json";

// How many bytes of a file tell whether it can be such an index.
inline constexpr std::size_t kShardIndexStart = 256;

// Returns whether a file that begins with these bytes is a JSON object, which a file of tensors
// never is.
bool is_shard_index(ConstBytes first) noexcept;

// Returns how many files the model has of which a file of this name is one, such as 3 for
// "model-00001-of-00003.safetensors"; 1 if the name does not say that there are more.
std::uint64_t files_of_model(std::string_view name) noexcept;

// A tensor and the file that it is in.
struct ShardedName {
  std::string_view name;
  std::string_view shard;
};

// Returns the text of an index, sorted by name, as Hugging Face's libraries write it. `total_size`
// is that of the data of all tensors.
std::string shard_index_text(std::vector<ShardedName> names, std::uint64_t total_size);

// Const methods are thread-safe.
class ShardIndex {
 public:
  // `text` is the whole file. Accepts only shards whose names are names of files in one folder.
  ShardIndex(std::vector<std::byte> text, const FileLocation& location, Cancel& cancel);

  // Returns the names of the shards, sorted. No name appears twice.
  std::span<const std::string_view> shards() const noexcept { return shards_; }

  // Throws InvalidFormat unless each tensor is in the shard that the index says, and none is
  // missing. `catalogues` are those of the shards, in their order.
  void check(std::span<const Catalogue* const> catalogues, const FileLocation& location,
             Cancel& cancel) const;

 private:
  struct Parser;

  std::vector<std::byte> bytes_;  // the names point into them
  std::vector<std::string_view> names_;
  std::vector<std::string_view> shards_;
  std::vector<std::uint32_t> shard_of_;  // for each name
};

}  // namespace tensorizer
