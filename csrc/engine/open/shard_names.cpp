#include "engine/open/shard_names.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/text.h"
#include "format/safetensors/shard_index.h"
#include "io/save_record.h"

namespace tensorizer {

ShardNames::ShardNames(std::string stem) : stem_(std::move(stem)) {}

std::string ShardNames::single() const { return stem_ + std::string(kSingleSuffix); }

std::string ShardNames::index() const { return stem_ + std::string(kShardIndexSuffix); }

std::string ShardNames::shard(std::size_t number, std::size_t count, std::string_view tag) const {
  char text[32];
  std::snprintf(text, sizeof(text), "-%05zu-of-%05zu", number + 1, count);
  std::string name = stem_;
  if (!tag.empty()) name.append("-").append(tag);
  return name.append(text).append(kSingleSuffix);
}

bool ShardNames::is_shard(std::string_view name) const noexcept {
  constexpr std::string_view kForm = "-00000-of-00000";
  if (!name.starts_with(stem_) || !name.ends_with(kSingleSuffix)) return false;
  std::string_view rest = name.substr(stem_.size());
  if (rest.size() != kForm.size() + kSingleSuffix.size()) {
    if (!rest.starts_with('-') || !is_tag(rest.substr(1, kTagSize))) return false;
    rest.remove_prefix(1 + kTagSize);
  }
  return rest.size() == kForm.size() + kSingleSuffix.size() &&
         std::ranges::equal(rest.substr(0, kForm.size()), kForm, [](char c, char form) {
           return form == '0' ? is_digit(c) : c == form;
         });
}

}  // namespace tensorizer
