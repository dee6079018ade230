// Sources of tensors of which a job loads parts, in whole chunks. Each keeps the details and the
// last chunk of its tensor for the next part. Thread-safe.
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

  // Returns a source that has opened this tensor, if no worker uses it, or else any other. There
  // are never more sources than workers.
  std::unique_ptr<TensorSource> take(std::uint32_t entry) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<TensorSource>(file_);
    auto taken = std::find_if(free_.begin(), free_.end(),
                              [&](const auto& source) { return source->has(entry); });
    if (taken == free_.end()) taken = free_.begin();
    std::unique_ptr<TensorSource> source = std::move(*taken);
    free_.erase(taken);
    return source;
  }

  void give_back(std::unique_ptr<TensorSource> source) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(source));
  }

 private:
  const TensorFile file_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TensorSource>> free_;  // the one that was used last at the end
};

}  // namespace tensorizer
