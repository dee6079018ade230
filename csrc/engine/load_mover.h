// Reads ranges into their final memory, and there, while they are hot, decrypts and digests them.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/check.h"
#include "engine/load_plan.h"
#include "engine/scratch_pool.h"
#include "format/tensor_header.h"

namespace tensorizer {

class LoadMover final : public Mover {
 public:
  // `complete` has an element for each item, which becomes 1 when the item is there in whole and
  // known to be right. All of them outlive the mover.
  LoadMover(const LoadJob& job, const LoadPlan& plan, Progress& progress,
            std::span<std::uint8_t> complete);

  void move_bundle(const Range& range, Worker& worker) override;
  ConstBytes move_slice(const Range& range, SliceDigest& digest, Worker& worker) override;
  DigestStart digest_start(std::uint32_t tensor) override;
  void let_go(std::uint32_t tensor, ConstBytes slice) override;
  void finish(std::uint32_t tensor, const Digests& found, Worker& worker) override;

 private:
  // The header of a tensor that moves in slices: it comes with the first one.
  struct SlicedHeader {
    std::vector<std::byte> bytes;
    std::optional<TensorHeader> parsed;
    bool known = false;  // what stands above; guarded by the mutex
  };

  // A tensor of a bundle.
  struct BundledTensor {
    Bytes header;  // empty where none is needed
    Bytes data;
    DeviceCodec* codec = nullptr;  // null where the host decrypts and digests
  };

  // Reads a slice, and what stands before it in the file. What is digested is read part by part.
  void read_slice(std::uint64_t offset, Bytes before, Bytes target, SliceDigest* digest,
                  Worker& worker);

  const Entry& entry(const LoadItem& item) const { return job_.entry(item); }
  std::size_t number(const LoadItem& item) const {
    return static_cast<std::size_t>(&item - job_.items.data());
  }
  // Returns the range of the file that the load of an item reads.
  const Extent& extent(const LoadItem& item) const { return plan_.extents[number(item)]; }
  bool needs_header(const LoadItem& item) const { return extent(item).header_size > 0; }
  TensorLocation location(const LoadItem& item) const {
    return {job_.location.label, entry(item), item.entry};
  }
  // Whether each slice holds whole chunks, so that it can be decrypted as it comes.
  bool has_whole_chunks(const SlicedHeader& sliced) const {
    return plan_.slice_size % sliced.parsed->crypt.chunk_size == 0;
  }
  void moved(std::uint64_t bytes) { progress_.done.fetch_add(bytes, std::memory_order_relaxed); }

  // Reads the range of the bundle into its items, staged data into memory of the port, and the rest
  // (headers, data that is only looked at, gaps) into scratch memory, in file order.
  std::vector<BundledTensor> read_bundle(std::span<const LoadItem> items, Worker& worker);
  // Decrypts and verifies what the host has to.
  void check_bundle(std::span<const LoadItem> items, std::span<const BundledTensor> bundle,
                    std::span<const std::optional<TensorHeader>> headers, Worker& worker);
  DeviceCodec* codec_of(const LoadItem& item, Worker& worker) const {
    return item.staged ? worker.access.port->codec(*item.staged) : nullptr;
  }
  // A staged tensor that is larger than staging memory may be, piece by piece.
  void move_staged(std::uint32_t tensor, Worker& worker);
  std::vector<std::byte> copy_header(const Entry& entry) const;
  TensorHeader parse_header(const LoadItem& item, Bytes bytes);
  void learn_header(const LoadItem& item, SlicedHeader& sliced);
  // The header is on its way: whoever moves the first slice started before all others.
  void await_header(const SlicedHeader& sliced, Cancel& cancel);
  // Decrypts and verifies a staged tensor on its device, once all of it was put.
  void finish_on_device(const LoadItem& item, DeviceCodec& codec,
                        const std::optional<TensorHeader>& header, Worker& worker);
  // Decrypts whole chunks in place.
  void decrypt(const LoadItem& item, const CryptInfo& crypt, std::uint64_t position, Bytes bytes,
               Worker& worker);
  DigestStart digests_wanted(const LoadItem& item, const std::optional<TensorHeader>& header);
  void compare(const LoadItem& item, const Digests& found) const;

  const LoadJob& job_;
  const LoadPlan& plan_;
  Progress& progress_;
  const std::span<std::uint8_t> complete_;
  const bool encrypted_;
  std::vector<std::unique_ptr<SlicedHeader>> sliced_;  // of the tensors that move in slices
  std::vector<Expected> expected_;

  ScratchPool scratch_;  // for slices that pass

  std::mutex mutex_;
  std::condition_variable known_;
  std::map<Nonce, std::uint32_t> nonces_;  // and the entries that have them
};

}  // namespace tensorizer
