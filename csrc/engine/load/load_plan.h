// Decides how a load is done before anything moves: what is read of each item, in which tasks, by
// how many workers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/load/load.h"
#include "engine/read_arriving.h"

namespace tensorizer {

// The arguments of load().
struct LoadJob {
  Source& source;
  Catalogue& catalogue;
  std::span<const LoadItem> items;  // in the order of the file
  const LoadSettings& settings;
  FileLocation location;

  const Entry& entry(const LoadItem& item) const { return catalogue.entries()[item.entry]; }
  bool encrypted() const { return catalogue.encrypted(); }
  bool is_whole(const LoadItem& item) const { return tensorizer::is_whole(item, entry(item)); }
  const DataDigests* data_digests() const { return settings.data_digests; }
  // Returns whether the digests that the file keeps for verification are compared.
  bool verifies() const { return settings.verify != Verify::None && data_digests() == nullptr; }
  // Returns whether the source gives only signed bytes, so that all are verified, also those for
  // which the file keeps no digests.
  bool verified_by_source() const { return verifies() && source.signed_as().has_value(); }
  // Returns whether any digests are compared or computed.
  bool digests() const { return verifies() || data_digests() != nullptr; }
  // Returns whether the digests of chunks are compared with those that the file lists, in place of
  // the digests of whole tensors.
  bool compares_chunks() const {
    return tensorizer::compares_chunks(catalogue, settings.verify, data_digests());
  }
  // Returns whether the digests of chunks are compared or computed.
  bool hashes_chunks() const {
    return compares_chunks() || (data_digests() != nullptr && data_digests()->in_chunks());
  }
  // Return the hash of the chunks that are hashed, and their size.
  Hash chunk_hash() const {
    return data_digests() != nullptr ? Hash::Sha256 : catalogue.chunk_digests().hash();
  }
  std::uint64_t hashed_chunk() const {
    return data_digests() != nullptr ? kModelDigestChunk : catalogue.chunk_digests().chunk_size();
  }
  // Returns whether parts of tensors are checked by the chunks that they touch.
  bool checks_parts() const { return compares_chunks() && !encrypted(); }
  // Returns whether hashes of whole tensors are computed in order for most tensors.
  bool hashes_in_order() const {
    return (settings.verify == Verify::All || data_digests() != nullptr) && !hashes_chunks();
  }
  // Returns whether the device of an item's tensor can decrypt and digest its bytes, as far as is
  // known without its details.
  bool checks_on_device(const LoadItem& item) const;
  // Returns whether an item has no destination, and its data is only checked.
  bool is_only_checked(const LoadItem& item) const {
    return !item.staged && item.memory.empty() && item.size() > 0;
  }
  // Returns whether the details of an item's tensor move with its data.
  bool needs_details(const LoadItem& item) const {
    return is_whole(item) && ((encrypted() && item.size() > 0) || verifies() ||
                              settings.keep_details || !entry(item).dtype);
  }
  // Returns whether an item is a part of a tensor that is read in whole chunks, because only these
  // can be decrypted or checked. If the tensor is encrypted, they are known from its details, which
  // do not move with the item.
  bool is_part_of_chunks(const LoadItem& item) const {
    return (encrypted() || checks_parts()) && item.size() > 0 && !is_whole(item);
  }
};

struct LoadPlan {
  std::vector<Extent> extents;  // of the items: what is read of each
  std::uint64_t size = 0;       // of all data
  Plan plan;
  MoveSettings move;
  std::uint64_t strip_size = 0;
  // How many bytes of a staged item that is not cut pass through the port at a time.
  std::uint64_t piece_size = 0;
  GatherLimits gather{};
  // How many bytes of a strip are read before they are digested.
  std::uint64_t cached_size = 0;
};

// Throws InvalidFormat if a tensor header that is needed has an impossible size.
LoadPlan plan_load(const LoadJob& job);

}  // namespace tensorizer
