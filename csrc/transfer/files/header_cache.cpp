#include "transfer/files/header_cache.h"

#include <algorithm>

namespace tensorizer {

namespace {

// Takes a few milliseconds to hash.
constexpr std::size_t kBetweenChecks = 8 << 20;

}  // namespace

void HeaderCache::keep(std::uint32_t number, const TensorDetails& details) {
  Kept kept{details.module_index, details.digests, {}};
  for (const ConstBytes part : details.hashed) {
    kept.hashed.insert(kept.hashed.end(), part.begin(), part.end());
  }
  const std::lock_guard lock(mutex_);
  if (kept_.size() <= number) kept_.resize(number + 1);
  kept_[number] = std::move(kept);
}

void HeaderCache::keep_tied(std::uint32_t number, std::uint32_t other, std::uint16_t module_index) {
  const std::lock_guard lock(mutex_);
  if (kept_.size() <= std::max(number, other)) kept_.resize(std::max(number, other) + 1);
  kept_[number] = kept_[other];
  kept_[number].module_index = module_index;
}

HeaderCache::Kept HeaderCache::find(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return number < kept_.size() ? kept_[number] : Kept();
}

std::uint16_t HeaderCache::module_index(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return number < kept_.size() ? kept_[number].module_index : std::uint16_t{0};
}

Digests HeaderCache::digests(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return number < kept_.size() ? kept_[number].digests : Digests();
}

std::optional<bool> HeaderCache::matches(std::uint32_t number, ConstBytes data,
                                         Cancel& cancel) const {
  const Kept kept = find(number);
  const HashSet hashes = hashes_of(kept.digests);
  if (hashes.empty()) return std::nullopt;
  RunningDigests running({{ConstBytes(kept.hashed)}, hashes});
  for (std::size_t at = 0; at < data.size(); at += kBetweenChecks) {
    cancel.check();
    running.update(data.subspan(at, std::min(kBetweenChecks, data.size() - at)));
  }
  return differing(kept.digests, running.finish()) == nullptr;
}

}  // namespace tensorizer
