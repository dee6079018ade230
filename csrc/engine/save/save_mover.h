// Saves to a sink that takes writes in any order: workers digest, encrypt and write in parallel.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "engine/save/save_job.h"

namespace tensorizer {

class SaveMover final : public Mover {
 public:
  // `piece` is how much of a tensor that is not cut moves at a time.
  SaveMover(const SaveJob& job, std::uint64_t piece)
      : job_(job), piece_(piece), headers_(job.items.size()) {}

  void move_bundle(const Task& task, Worker& worker) override;
  ConstBytes move_strip(const Task& task, StripDigest& digest, Worker& worker) override;
  DigestStart digest_start(std::uint32_t tensor) override;
  void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) override;

 private:
  // Returns the header of a cut tensor. All workers that move its strips share it, because they
  // must use the same nonce.
  TensorHeaderImage& header_of(std::uint32_t tensor);

  // Collects the headers and data of a bundle; staged and read data goes to memory of the worker.
  void gather(const Task& task, std::vector<TensorHeaderImage>& headers,
              std::vector<SavedBytes>& data, Worker& worker);
  // Digests and encrypts a bundle, and completes its headers.
  void digest_bundle(const Task& task, std::vector<TensorHeaderImage>& headers,
                     const std::vector<SavedBytes>& data, Worker& worker);
  // Digests the chunks that begin in a strip, whose data is in memory in whole.
  void digest_chunks_of(const Task& task, Worker& worker);
  // Moves a tensor that is not cut and is larger than a piece.
  void move_whole(std::uint32_t item, Worker& worker);

  const SaveJob& job_;
  const std::uint64_t piece_;
  std::mutex mutex_;
  std::vector<std::optional<TensorHeaderImage>> headers_;  // of cut tensors in progress
};

}  // namespace tensorizer
