// Sources of tensors that a job reads in whole chunks. Each keeps the details and the last chunk of
// its tensor for the next part. Thread-safe.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/load/tensor_source.h"

namespace tensorizer {

class PartSources {
 public:
  explicit PartSources(const TensorFile& file) : file_(file) {}

  struct Release {
    PartSources* from;
    void operator()(TensorSource* source) const {
      const std::lock_guard lock(from->mutex_);
      from->free_.emplace_back(source);
    }
  };
  using Taken = std::unique_ptr<TensorSource, Release>;

  // Returns a source that has opened this tensor, if no worker uses it, or else any other. There
  // are never more sources than workers.
  Taken take(std::uint32_t entry, ComputeSlots& slots) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.reserve(++made_);  // so that no release allocates
      free_.push_back(std::make_unique<TensorSource>(file_, &slots));
    }
    auto taken = std::find_if(free_.begin(), free_.end(),
                              [&](const auto& source) { return source->has(entry); });
    if (taken == free_.end()) taken = free_.begin();
    Taken source(taken->release(), Release{this});
    free_.erase(taken);
    return source;
  }

 private:
  const TensorFile file_;
  std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<std::unique_ptr<TensorSource>> free_;  // the one that was used last at the end
};

}  // namespace tensorizer
