// Reads ranges of tensors into their destinations, and decrypts and digests them there while they
// are in the processor's cache.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/load_check.h"
#include "engine/part_sources.h"
#include "engine/scratch_pool.h"

namespace tensorizer {

class LoadMover final : public Mover {
 public:
  // `complete` has an element for each item, which becomes 1 when the item has arrived in whole and
  // is known to be right. All arguments must outlive the mover.
  LoadMover(const LoadJob& job, const LoadPlan& plan, Progress& progress,
            std::span<std::uint8_t> complete);

  void move_bundle(const Task& task, Worker& worker) override;
  ConstBytes move_slice(const Task& task, SliceDigest& digest, Worker& worker) override;
  DigestStart digest_start(std::uint32_t tensor) override;
  void let_go(std::uint32_t tensor, ConstBytes slice) override;
  void finish(std::uint32_t tensor, const Digests& found, Worker& worker) override;

  // Throws the error that names all damage, if the job names all in the end.
  void throw_damage() { check_.throw_damage(); }

 private:
  // The details of an item that moves in slices: they come with its first slice.
  struct SlicedDetails {
    std::vector<std::byte> header;  // the details point into it
    std::optional<TensorDetails> details;
    bool known = false;  // whether `details` is set; guarded by the mutex
  };

  // An item of a bundle.
  struct BundledItem {
    Bytes header;  // empty if none is needed
    Bytes data;
    DeviceCodec* codec = nullptr;  // null if the host decrypts and digests
  };

  // Reads a slice, and `before`, which comes before it in the file. Bytes that are digested are
  // read part by part.
  void read_slice(std::uint64_t offset, Bytes before, Bytes target, SliceDigest* digest,
                  Worker& worker);

  const Entry& entry(const LoadItem& item) const { return job_.entry(item); }
  std::size_t number(const LoadItem& item) const {
    return static_cast<std::size_t>(&item - job_.items.data());
  }
  // Returns what the load of an item reads of the file.
  const Extent& extent(const LoadItem& item) const { return plan_.extents[number(item)]; }
  TensorLocation location(const LoadItem& item) const {
    return {job_.source, entry(item), item.entry};
  }
  // Returns whether each slice holds whole chunks, so that it can be decrypted when it has arrived.
  bool has_whole_chunks(const SlicedDetails& sliced) const {
    return plan_.slice_size % sliced.details->crypt.chunk_size == 0;
  }
  // Tells of complete items of this worker, if anybody wants to know.
  void tell(std::span<const LoadItem> items, Worker& worker);
  void moved(std::uint64_t bytes) { progress_.done.fetch_add(bytes, std::memory_order_relaxed); }

  // Reads the extents of the bundle in file order: data into its destinations, staged data into
  // memory of the port, and the rest (headers, data that is only checked, gaps) into scratch
  // memory.
  std::vector<BundledItem> read_bundle(std::span<const LoadItem> items, Worker& worker);
  // Decrypts and verifies the items that no device codec takes.
  void check_bundle(std::span<const LoadItem> items, std::span<const BundledItem> bundle,
                    std::span<const std::optional<TensorDetails>> details, Worker& worker);
  // Returns null if the host decrypts and digests. It does if chunks are hashed, because a codec
  // digests only whole tensors.
  DeviceCodec* codec_of(const LoadItem& item, Worker& worker) const {
    if (!item.staged || job_.hashes_chunks()) return nullptr;
    return worker.access.port->codec(item.staged->tensor);
  }
  // Passes bytes to a staged item. `position` counts the bytes of the item.
  void put(const LoadItem& item, std::uint64_t position, Bytes bytes, Worker& worker) const;
  // Moves a staged tensor that is larger than its share of staging memory, piece by piece.
  void move_staged(const LoadItem& item, Worker& worker);
  // Moves runs, or a part of a tensor that is read in whole chunks, piece by piece.
  void move_part(const LoadItem& item, Worker& worker);
  // Reads a part of a tensor, `offset` bytes behind the start of the item, in whole chunks.
  void read_chunks(const LoadItem& item, std::uint64_t offset, Bytes out, Worker& worker);
  // Returns a source that has opened the item's tensor.
  std::unique_ptr<TensorSource> open_part(const LoadItem& item, Cancel& cancel);
  void move_pieces(const LoadItem& item, const ReadData& read, Worker& worker);
  // Reads bytes of an item from `offset` on, which counts the bytes of the item.
  void read_part(const LoadItem& item, std::uint64_t offset, Bytes out, const ReadData& read,
                 Worker& worker) const;
  // Returns a function that reads the data of a tensor that is not encrypted.
  ReadData plain_data(const LoadItem& item, Worker& worker) const;
  std::vector<std::byte> copy_header(const LoadItem& item) const;
  TensorDetails parse_details(const LoadItem& item, Bytes header);
  // Throws Crypto if another tensor has the same nonce.
  void check_nonce(const LoadItem& item, const TensorDetails& details);
  void learn_details(const LoadItem& item, SlicedDetails& sliced);
  // Blocks until the first slice has brought the details. It cannot wait for this worker, because
  // it started before all other slices of its item.
  void await_details(const SlicedDetails& sliced, Cancel& cancel);
  // Decrypts and verifies a staged tensor on its device, once all of it was put.
  void finish_on_device(const LoadItem& item, DeviceCodec& codec,
                        const std::optional<TensorDetails>& details, Worker& worker);
  // Hashes chunks, and compares or keeps their digests.
  void check_chunks(std::span<const ChunksOfItem> chunks, Worker& worker) {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
    check_.check_chunks(chunks, worker.cancel);
  }
  // Does so for bytes of a whole tensor, if chunks are hashed.
  void check_chunks(const LoadItem& item, std::uint64_t position, Bytes bytes, Worker& worker) {
    if (!job_.hashes_chunks() || !job_.is_whole(item)) return;
    const ChunksOfItem chunks{item, position, bytes};
    check_chunks({&chunks, 1}, worker);
  }
  // Decrypts whole chunks in place.
  void decrypt(const LoadItem& item, const CryptInfo& crypt, std::uint64_t position, Bytes bytes,
               Worker& worker);

  const LoadJob& job_;
  const LoadPlan& plan_;
  Progress& progress_;
  const std::span<std::uint8_t> complete_;
  const bool encrypted_;
  std::vector<std::unique_ptr<SlicedDetails>> sliced_;  // by item; null if it is not cut

  ScratchPool scratch_;  // for slices that are only checked
  PartSources part_sources_;
  LoadCheck check_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable known_;
  std::map<Nonce, std::uint32_t> nonces_;  // and the entries that have them
};

}  // namespace tensorizer
