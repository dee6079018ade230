// Digests, encrypts and writes at the same time, in any order.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "engine/save_job.h"

namespace tensorizer {

class SaveMover final : public Mover {
 public:
  // `piece`: how much of a tensor that is not cut passes at a time.
  SaveMover(const SaveJob& job, std::uint64_t piece)
      : job_(job), piece_(piece), headers_(job.items.size()) {}

  void move_bundle(const Task& task, Worker& worker) override;
  ConstBytes move_slice(const Task& task, SliceDigest& digest, Worker& worker) override;
  DigestStart digest_start(std::uint32_t tensor) override;
  void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) override;

 private:
  // Of a cut tensor, whose nonce is the same for all who move its slices.
  TensorHeaderImage& header_of(std::uint32_t tensor);

  void gather(const Task& task, std::vector<TensorHeaderImage>& headers,
              std::vector<SavedBytes>& data, Worker& worker);
  void digest_bundle(const Task& task, std::vector<TensorHeaderImage>& headers,
                     const std::vector<SavedBytes>& data, Worker& worker);
  // Moves a tensor that is not cut and larger than a piece.
  void move_whole(std::uint32_t item, Worker& worker);

  const SaveJob& job_;
  const std::uint64_t piece_;
  std::mutex mutex_;
  std::vector<std::optional<TensorHeaderImage>> headers_;  // of cut tensors on their way
};

}  // namespace tensorizer
