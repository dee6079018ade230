// Compares what a load has read with the digests that were saved, on all workers at once.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/digest/check.h"
#include "engine/load/load_plan.h"

namespace tensorizer {

// Bytes of the data of an item's tensor, from the start of a chunk on.
struct ChunksOfItem {
  const LoadItem& item;
  std::uint64_t position;  // in the tensor's data
  Bytes bytes;
};

// Thread-safe for different items, and where a method says so.
class LoadCheck {
 public:
  // `job` must outlive this object.
  explicit LoadCheck(const LoadJob& job) : job_(job) {
    if (job.digests()) expected_.resize(job.items.size());
  }

  // Returns which digests of a whole tensor to compute, and keeps those to compare them with. There
  // are none if chunks are checked: with the digest of the header, which has been compared when the
  // details were read, these cover everything. Throws InvalidArgument if there is nothing to
  // verify.
  DigestStart digests_wanted(const LoadItem& item, const std::optional<TensorDetails>& details);
  // Compares or keeps these digests.
  void compare(const LoadItem& item, const Digests& found);

  // Computes the digests of chunks, and compares or keeps them. Damaged chunks from a server are
  // read once more. Thread-safe.
  void check_chunks(std::span<const ChunksOfItem> all, Cancel& cancel);
  // Compares or keeps the digests of a tensor's chunks from `position` on. Calls `wrong` with the
  // position of each that is wrong. Thread-safe.
  void compare_chunks(const LoadItem& item, std::uint64_t position, std::span<const Digest> found,
                      const std::function<void(std::uint64_t position)>& wrong);
  // Reports each that is wrong.
  void compare_chunks(const LoadItem& item, std::uint64_t position, std::span<const Digest> found) {
    compare_chunks(item, position, found, [&](std::uint64_t at) { found_wrong_chunk(item, at); });
  }

  // Called for damage to the data of an item's tensor from `position` on. Throws, unless the job
  // names all damage in the end. Thread-safe.
  void found_damage(const LoadItem& item, std::uint64_t position, ErrorKind kind,
                    const std::string& what);
  void found_wrong_chunk(const LoadItem& item, std::uint64_t position);
  // Throws the error that names all damage, if there is any. Called when the job has ended.
  void throw_damage();

 private:
  struct Damage {
    std::uint32_t entry;
    std::uint64_t position;
    ErrorKind kind;
    std::string what;
  };

  TensorLocation location(const LoadItem& item) const {
    return {job_.source, job_.entry(item), item.entry};
  }
  Digests& expected(const LoadItem& item) {
    return expected_[static_cast<std::size_t>(&item - job_.items.data())];
  }

  const LoadJob& job_;
  std::vector<Digests> expected_;  // by item
  std::mutex mutex_;
  std::vector<Damage> damages_;  // guarded by the mutex
};

}  // namespace tensorizer
