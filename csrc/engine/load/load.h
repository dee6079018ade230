// Loads the data of tensors from a Source into memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/digest/check.h"
#include "engine/digest/data_digests.h"
#include "engine/digest/file_keys.h"
#include "engine/move/move.h"
#include "engine/move/runs.h"
#include "format/catalogue.h"
#include "io/source.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// A position in a tensor whose bytes pass through a TensorPort.
struct StagedRange {
  std::uint32_t tensor;  // the number that ports know the tensor by
  std::uint64_t position = 0;
  bool checked_there = false;  // whether its device can decrypt and digest it
};

// One range of one tensor, or runs of bytes in it, and its destination: final memory, a staged
// tensor, or neither. In the last case the bytes are only checked, and pass through memory of the
// job.
struct LoadItem {
  std::uint32_t entry;  // in the catalogue
  ByteRange range;
  Bytes memory{};         // of `size()` bytes
  bool in_place = false;  // `memory` is a part of `LoadSettings::mapping`: the bytes are there
  std::optional<StagedRange> staged{};
  // If set, only these bytes of the range are loaded. Must outlive the load; `range` is theirs.
  const Runs* runs = nullptr;
  // If set, becomes 1, atomically, when the destination has all bytes and they are known to be
  // right, while other items still move.
  std::uint8_t* arrived = nullptr;

  // Returns how many bytes are loaded.
  std::uint64_t size() const noexcept { return runs != nullptr ? runs->size() : range.size; }
};

// Returns an item for all data of a tensor, without a destination.
LoadItem whole_tensor(const Catalogue& catalogue, std::uint32_t entry);

// Returns whether an item covers all data of its tensor, as one range.
inline bool is_whole(const LoadItem& item, const Entry& entry) {
  return item.runs == nullptr && item.size() == entry.data_size;
}

// Returns the offset of the first byte that a load of the item may read.
std::uint64_t begin_of(const LoadItem& item, const Entry& entry);

// Returns the offset behind the last byte of the item.
std::uint64_t end_of(const LoadItem& item, const Entry& entry);

struct LoadSettings {
  Verify verify = Verify::None;
  int threads = 1;
  // The memory that a job may take beyond its outputs.
  std::uint64_t memory_ceiling = 0;
  // If set, these are compared or computed, and not the digests that the file keeps for `verify`.
  DataDigests* data_digests = nullptr;
  // How many chunks at the end of the load each thread hashes on the host, although a device could:
  // it would end later.
  std::uint64_t last_chunks = 0;
  // Whether a load whose items have no destination goes on when data is damaged, and names all
  // damaged chunks and tensors in the end.
  bool names_all_damage = false;
  // The keys of an encrypted file.
  FileKeys* keys = nullptr;
  // Called when a load that checks anything (digests, MACs) fails, for each tensor that has not
  // arrived in whole or is not known to be right: its output must not be used.
  std::function<void(std::uint32_t entry)> zero_incomplete;
  // If set, called with the details of each whole tensor; from any worker.
  std::function<void(std::uint32_t entry, const TensorDetails& details)> keep_details;
  // The whole source, if items are in place.
  ConstBytes mapping;
  OpenAccess open_access = default_access;
};

// Fills the destination of every item and checks what `verify` asks for. Items may come in any
// order, and a tensor may have several. Encrypted data is decrypted in its destination, chunk by
// chunk, after the chunk's MAC was found right; of a part only the chunks that it touches, each
// once for all runs of an item. Dtypes that only tensor headers have, and that were not known
// before, are set in `catalogue`.
//
// Throws HashMismatch that names the tensor; Crypto for a wrong MAC; InvalidArgument for a tensor
// that has nothing to verify, for a range that is outside its tensor, and for a part of a tensor
// whose digests are to be compared and cover all of its data, and for items that
// overlap if the source is sequential.
void load(Source& source, Catalogue& catalogue, std::vector<LoadItem> items,
          const LoadSettings& settings, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
