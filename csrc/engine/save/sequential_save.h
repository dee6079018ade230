// Saves to a sequential sink. The digests of a tensor come before its data in the file, so
// everything is read twice. Encryption gives the same bytes both times.
#pragma once

#include <functional>

#include "engine/save/save_job.h"

namespace tensorizer {

class SequentialSave {
 public:
  // `piece` is how much of a tensor is read at a time.
  SequentialSave(const SaveJob& job, std::uint64_t piece, Cancel& cancel)
      : job_(job), piece_(piece), cancel_(cancel), access_(job.settings.open_access()) {}

  // Writes all tensors. `write_head` writes the head of the sink and is called when all tensor
  // headers are known; empty if the head has been written already.
  void run(const std::function<void()>& write_head);

 private:
  template <typename Use>
  void each_piece(std::size_t item, Use&& use);
  TensorHeaderImage header(std::size_t item);
  void write(std::size_t item, TensorHeaderImage& image);

  const SaveJob& job_;
  const std::uint64_t piece_;
  Cancel& cancel_;
  TensorAccess access_;
};

}  // namespace tensorizer
