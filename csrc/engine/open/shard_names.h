// The names of the files of a safetensors model: of one file, and of several with their index.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorizer {

inline constexpr std::string_view kSingleSuffix = ".safetensors";

class ShardNames {
 public:
  // `stem`: the name of the single file without its suffix. May begin with a folder.
  explicit ShardNames(std::string stem);

  const std::string& stem() const noexcept { return stem_; }
  // Returns the name of a model in one file.
  std::string single() const;
  // Returns the name of the index of a model in several files.
  std::string index() const;
  // Returns the name of one of `count` files, counted from 0. `tag` (random_tag() in
  // io/save_record) is empty, or makes a name that no other save uses.
  std::string shard(std::size_t number, std::size_t count, std::string_view tag) const;
  // Returns whether shard() returns this name for some arguments.
  bool is_shard(std::string_view name) const noexcept;

 private:
  std::string stem_;
};

}  // namespace tensorizer
