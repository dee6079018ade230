#include "engine/load/load_check.h"

#include <algorithm>
#include <utility>

#include "engine/digest/chunks.h"

namespace tensorizer {

DigestStart LoadCheck::digests_wanted(const LoadItem& item,
                                      const std::optional<TensorDetails>& details) {
  if (job_.hashes_chunks()) return {};
  Digests& expected = this->expected(item);
  if (job_.data_digests() != nullptr) {
    expected = job_.data_digests()->expected_of(item.entry);
    return {{}, {Hash::Sha256}};
  }
  expected = compared(*details, job_.settings.verify);
  const HashSet hashes = hashes_of(expected);
  // The MACs of encrypted data are always checked.
  if (hashes.empty() && !job_.encrypted() && !job_.verified_by_source()) {
    if (job_.catalogue.has_digests_of_others()) {
      fail(location(item), ErrorKind::InvalidFormat,
           "there is nothing to verify: the file lists hashes of tensors with other names, types "
           "or shapes");
    }
    fail(location(item), ErrorKind::InvalidArgument,
         "there is nothing to verify: the file was saved without hashes, and convert() writes a "
         "copy with hashes");
  }
  return {details->hashed, hashes};
}

void LoadCheck::compare(const LoadItem& item, const Digests& found) {
  if (job_.hashes_chunks()) return;
  const Entry& entry = job_.entry(item);
  const bool data_alone = job_.data_digests() != nullptr;
  if (data_alone) job_.settings.data_digests->keep(item.entry, found);
  const std::string wrong = compare_digests(
      location(item), data_alone ? entry.data_offset : entry.header_offset, expected(item), found);
  if (wrong.empty()) return;
  {
    // The damage to a chunk of the tensor says more than that to the whole.
    const std::lock_guard lock(mutex_);
    if (std::ranges::any_of(damages_, [&](const Damage& d) { return d.entry == item.entry; })) {
      return;
    }
  }
  found_damage(item, 0, ErrorKind::HashMismatch, wrong);
}

void LoadCheck::check_chunks(std::span<const ChunksOfItem> all, Cancel& cancel) {
  const std::uint64_t size = job_.hashed_chunk();
  std::uint64_t count = 0;
  for (const ChunksOfItem& each : all) count += chunk_count(each.bytes.size(), size);
  std::vector<Digest> found(count);
  std::vector<ChunkedBytes> chunks;
  chunks.reserve(all.size());
  std::span<Digest> left = found;
  for (const ChunksOfItem& each : all) {
    const std::uint64_t own = chunk_count(each.bytes.size(), size);
    chunks.push_back({each.bytes, left.first(own)});
    left = left.subspan(own);
  }
  digest_chunks(chunks, job_.chunk_hash(), size);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ChunksOfItem& each = all[i];
    if (!job_.checks_parts()) {
      compare_chunks(each.item, each.position, chunks[i].digests);
      continue;
    }
    tensorizer::check_chunks(
        job_.source, location(each.item), job_.catalogue.chunk_digests(), each.position, each.bytes,
        chunks[i].digests, cancel,
        [&](std::uint64_t position, Bytes) { found_wrong_chunk(each.item, position); });
  }
}

void LoadCheck::compare_chunks(const LoadItem& item, std::uint64_t position,
                               std::span<const Digest> found,
                               const std::function<void(std::uint64_t position)>& wrong) {
  if (job_.compares_chunks()) {
    tensorizer::compare_chunks(job_.catalogue.chunk_digests(), item.entry, position, found, wrong);
  } else if (!found.empty()) {
    job_.settings.data_digests->keep(item.entry, position / job_.hashed_chunk(), found);
  }
}

void LoadCheck::found_wrong_chunk(const LoadItem& item, std::uint64_t position) {
  found_damage(item, position, ErrorKind::HashMismatch,
               describe_damage(location(item), job_.catalogue.chunk_digests(), position));
}

void LoadCheck::found_damage(const LoadItem& item, std::uint64_t position, ErrorKind kind,
                             const std::string& what) {
  if (!job_.settings.names_all_damage) fail(location(item), kind, what);
  const std::lock_guard lock(mutex_);
  damages_.push_back({item.entry, position, kind, what});
}

void LoadCheck::throw_damage() {
  constexpr std::size_t kMostNamed = 100;
  if (damages_.empty()) return;
  std::ranges::sort(damages_, {}, [](const Damage& d) { return std::pair(d.entry, d.position); });
  std::string message = std::string(job_.location.label) + ": ";
  for (std::size_t i = 0; i < damages_.size() && i < kMostNamed; ++i) {
    const Entry& entry = job_.catalogue.entries()[damages_[i].entry];
    message +=
        (i > 0 ? "\n" : "") + describe(entry.name, damages_[i].entry) + ": " + damages_[i].what;
  }
  if (damages_.size() > kMostNamed) {
    message += "\nand " + std::to_string(damages_.size() - kMostNamed) + " more";
  }
  throw Error(damages_.front().kind, message);
}

}  // namespace tensorizer
