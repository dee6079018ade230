// Reads ranges of tensors into their destinations, and decrypts and digests them there while they
// are in the processor's cache.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/load/load_check.h"
#include "engine/load/part_sources.h"
#include "engine/move/scratch_pool.h"

namespace tensorizer {

class LoadMover final : public Mover {
 public:
  // `complete` has an element for each item, which becomes 1 when the item has arrived in whole and
  // is known to be right. All arguments must outlive the mover.
  LoadMover(const LoadJob& job, const LoadPlan& plan, Progress& progress,
            std::span<std::uint8_t> complete);

  void move_bundle(const Task& task, Worker& worker) override;
  ConstBytes move_strip(const Task& task, StripDigest& digest, Worker& worker) override;
  DigestStart digest_start(std::uint32_t tensor) override;
  void let_go(std::uint32_t tensor, ConstBytes strip) override;
  void finish(std::uint32_t tensor, const Digests& found, Worker& worker) override;
  void end(Worker& worker) override { take_device_checks(true, worker); }

  // Throws the error that names all damage, if the job names all in the end.
  void throw_damage() { check_.throw_damage(); }

 private:
  // The details of an item that moves in strips: they come with its first strip.
  struct CutDetails {
    std::vector<std::byte> header;  // the details point into it
    std::optional<TensorDetails> details;
    bool known = false;  // whether `details` is set; guarded by the mutex
  };

  // An item of a bundle.
  struct BundledItem {
    Bytes header;  // empty if none is needed
    Bytes data;
    bool on_device = false;  // whether the device decrypts and digests
  };

  // Reads a strip, and `before`, which comes before it in the file. Bytes that are digested are
  // read part by part.
  void read_strip(std::uint64_t offset, Bytes before, Bytes target, StripDigest* digest,
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
  // Returns whether each strip holds whole chunks, so that it can be decrypted when it has arrived.
  bool has_whole_chunks(const CutDetails& cut) const {
    return plan_.strip_size % cut.details->crypt.chunk_size == 0;
  }
  // Called when all bytes of an item have moved and are known to be right.
  void complete(const LoadItem& item, Worker& worker);
  void moved(std::uint64_t bytes) { progress_.done.fetch_add(bytes, std::memory_order_relaxed); }

  // Reads the extents of the bundle in file order: data into its destinations, staged data into
  // memory of the port, and the rest (headers, data that is only checked, gaps) into scratch
  // memory.
  std::vector<BundledItem> read_bundle(std::span<const LoadItem> items, Worker& worker);
  // Decrypts and verifies the items of a bundle that a device does not check, whose numbers in the
  // bundle are `here`. `starts` has what to digest, by item of the bundle.
  void check_bundle(std::span<const LoadItem> items, std::span<const BundledItem> bundle,
                    std::span<const std::optional<TensorDetails>> details,
                    std::span<const DigestStart> starts, std::span<const std::size_t> here,
                    Worker& worker);
  // Passes bytes to a staged item. `position` counts the bytes of the item.
  void put(const LoadItem& item, std::uint64_t position, Bytes bytes, Worker& worker) const;
  // Does so for bytes that are not in memory of the port.
  void put_copied(const LoadItem& item, std::uint64_t position, ConstBytes bytes, Worker& worker);
  // Moves a staged tensor that is larger than its share of staging memory, piece by piece. Returns
  // whether the device checks it.
  bool move_staged(const LoadItem& item, Worker& worker);
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
  void learn_details(const LoadItem& item, CutDetails& cut);
  // Blocks until the first strip has brought the details. It cannot wait for this worker, because
  // it started before all other strips of its item.
  void await_details(const CutDetails& cut, Cancel& cancel);
  // Returns what to digest of a whole item; nothing of a part.
  DigestStart digests_wanted(const LoadItem& item, const std::optional<TensorDetails>& details) {
    if (!job_.digests() || !job_.is_whole(item)) return {};
    return check_.digests_wanted(item, details);
  }

  // The methods below are in load_mover_device.cpp.

  // Returns whether the device decrypts and digests the bytes of an item, of which these digests
  // are wanted. Strips have no details.
  bool checks_on_device(const LoadItem& item, const std::optional<TensorDetails>& details,
                        const DigestStart& wanted, Worker& worker) const;
  // Starts to decrypt and verify bytes of an item on its device, once they were put.
  void start_on_device(const LoadItem& item, std::uint64_t position, std::uint64_t size,
                       const std::optional<TensorDetails>& details, const DigestStart& wanted,
                       Worker& worker);
  // Takes the results of checks that have ended; of all of this worker's checks if `wait` is set.
  void take_device_checks(bool wait, Worker& worker);
  void end_on_device(DeviceCheck check, Worker& worker);
  // Handle chunks of a staged item that have arrived damaged: a server may give right bytes when it
  // is asked once more, otherwise they throw. Return whether there were such chunks. `found` has
  // the digests of the chunks from `position` on, and `again` says that they were repaired before.
  bool repair_encrypted(const LoadItem& item, const DeviceCheck& check, Worker& worker);
  bool repair_hashed(const LoadItem& item, std::uint64_t position,
                     std::span<const Sha256Digest> found, bool again, Worker& worker);

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
  std::vector<std::unique_ptr<CutDetails>> cut_;  // by item; null if it is not cut
  // How many bytes of each item a device has found right. Empty if no item is staged.
  std::vector<std::atomic<std::uint64_t>> right_on_device_;

  ScratchPool scratch_;  // for strips that are only checked
  PartSources part_sources_;
  LoadCheck check_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable known_;
  std::map<Nonce, std::uint32_t> nonces_;  // and the entries that have them
};

}  // namespace tensorizer
