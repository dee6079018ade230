// Saves to a sink that takes bytes in ascending order: a tensor's digests stand in front of its
// data, so everything is read twice. What is encrypted comes out the same both times.
#pragma once

#include <functional>
#include <memory>

#include "engine/save_job.h"

namespace tensorizer {

class AscendingSave {
 public:
  // `piece`: how much of a tensor is read at a time.
  AscendingSave(const SaveJob& job, std::uint64_t piece, Cancel& cancel)
      : job_(job), piece_(piece), cancel_(cancel), stage_(job.settings.make_stage()) {}

  // `write_prefix`: where it has to wait for all headers; else empty.
  void run(const std::function<void()>& write_prefix);

 private:
  template <typename Use>
  void each_piece(std::size_t item, Use&& use);
  TensorHeaderImage header(std::size_t item);
  void write(std::size_t item, TensorHeaderImage& image);

  const SaveJob& job_;
  const std::uint64_t piece_;
  Cancel& cancel_;
  const std::unique_ptr<Stage> stage_;
};

}  // namespace tensorizer
