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
  // An item, and what is known of it.
  struct MovingItem {
    const LoadItem& item;
    Bytes header{};  // empty if none is needed
    Bytes data{};    // all of it, if the item is in a bundle
    std::optional<TensorDetails> details{};
    DigestStart wanted{};    // of a whole item
    bool on_device = false;  // whether the device decrypts and digests
  };

  // An item that moves in strips: what is known of it comes with its first strip.
  struct LargeItem {
    MovingItem moving;
    std::vector<std::byte> header{};
    bool known = false;  // guarded by the mutex
  };

  // Reads a strip, and `before`, which comes before it in the file. Bytes that are digested are
  // read piece by piece.
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
  bool has_whole_chunks(const LargeItem& large) const {
    return plan_.strip_size % large.moving.details->crypt.chunk_size == 0;
  }
  // Called when all bytes of an item have moved and are known to be right.
  void complete(const LoadItem& item, Worker& worker);
  void moved(std::uint64_t bytes) { progress_.done.fetch_add(bytes, std::memory_order_relaxed); }

  // Reads the extents of the bundle in file order: data into its destinations, staged data into
  // memory of the port, and the rest (headers, data that is only checked, gaps) into scratch
  // memory.
  std::vector<MovingItem> read_bundle(std::span<const LoadItem> items, Worker& worker);
  // Sets what the header says, and what to do with the data. Details that are known already are
  // kept.
  void learn(MovingItem& moving);
  // Decrypts and verifies the data of items that a device does not check.
  void check_data(std::span<const MovingItem> items, Worker& worker);
  // Passes bytes to a staged item. `position` counts the bytes of the item.
  void put(const LoadItem& item, std::uint64_t position, Bytes bytes, Worker& worker) const;
  // Does so for a chunk that was repaired, in memory of its own.
  void put_copied(const LoadItem& item, std::uint64_t position, ConstBytes bytes, Worker& worker);
  // Moves an item piece by piece: a staged tensor that is larger than its share of staging memory,
  // runs, or a part of a tensor that is read in whole chunks.
  void move_pieces(const LoadItem& item, Worker& worker);
  // Returns a source that has opened the item's tensor, or null if plain bytes of it can be used.
  PartSources::Taken open_chunks(const LoadItem& item, Worker& worker);
  // Returns a function that reads the data of the item's tensor, from that source if there is one.
  ReadData reader(const LoadItem& item, TensorSource* chunks, Worker& worker);
  // Brings the bytes of an item from `offset` on, which counts the bytes of the item.
  void fetch(const LoadItem& item, std::uint64_t offset, Bytes out, const ReadData& read,
             Worker& worker);
  // Checks the chunks of a part that is in place.
  void check_in_place(const LoadItem& item, std::uint64_t offset, std::uint64_t size,
                      Worker& worker);
  // Throws Crypto if another tensor has the same nonce.
  void check_nonce(const LoadItem& item, const TensorDetails& details);
  // Blocks until the first strip has brought the details. It cannot wait for this worker, because
  // it started before all other strips of its item.
  void await_details(const LargeItem& large, Cancel& cancel);

  // The methods below are in load_mover_device.cpp.

  // Returns whether the device decrypts and digests the next bytes of an item.
  bool checks_on_device(const MovingItem& moving) const;
  // Throws for an encrypted tensor that is too large for the host to decrypt it on the way.
  [[noreturn]] void refuse_small_chunks(const MovingItem& moving) const;
  // Returns whether it is time for the host to hash what a device could hash.
  bool is_near_end() const;
  // Starts to decrypt and verify bytes of an item on its device, once they were put.
  void start_on_device(const MovingItem& moving, std::uint64_t position, std::uint64_t size,
                       Worker& worker);
  // Called when bytes of an item that is checked on its device are known to be right.
  void found_right(const LoadItem& item, std::uint64_t size, Worker& worker);
  // Takes the results of checks that have ended; of all of this worker's checks if `wait` is set.
  void take_device_checks(bool wait, Worker& worker);
  void end_on_device(DeviceCheck check, Worker& worker);
  // Handle chunks of a staged item that have arrived damaged: a server may give right bytes when it
  // is asked once more, otherwise they throw. Return whether there were such chunks. `found` has
  // the digests of the chunks from `position` on, and `again` says that they were repaired before.
  bool repair_encrypted(const LoadItem& item, const DeviceCheck& check, Worker& worker);
  bool repair_hashed(const LoadItem& item, std::uint64_t position, std::span<const Digest> found,
                     bool again, Worker& worker);

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
  std::vector<std::unique_ptr<LargeItem>> large_;  // by item; null if it is not large
  // How many bytes of each item that is checked on a device are known to be right. Empty if no item
  // is staged.
  std::vector<std::atomic<std::uint64_t>> right_;

  ScratchPool scratch_;  // for strips that are only checked
  PartSources part_sources_;
  LoadCheck check_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable known_;
  std::map<Nonce, std::uint32_t> nonces_;  // and the entries that have them
};

}  // namespace tensorizer
