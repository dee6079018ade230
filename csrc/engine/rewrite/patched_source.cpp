#include "engine/rewrite/patched_source.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "engine/digest/chunks.h"
#include "engine/move/scratch_pool.h"
#include "engine/move/workers.h"
#include "engine/read_arriving.h"

namespace tensorizer {

namespace {

struct HashOfDigest {
  std::size_t operator()(const Digest& digest) const noexcept {
    std::size_t hash = 0;
    std::memcpy(&hash, digest.data(), sizeof(hash));
    return hash;
  }
};

// Bytes of the older file, and their digest.
struct Held {
  std::uint64_t offset;
  std::uint64_t size;
  Hash hash;
  Digest digest{};
};

// Returns the headers and chunks of a file as another one lists them. Their digests are not set.
std::vector<Held> headers_and_chunks_of(OpenFile& file, const ChunkDigests& like) {
  const SourceLocation location(file.source());
  const std::span<const Entry> entries = file.catalogue().entries();
  const std::uint64_t chunk_size = like.chunk_size();
  std::vector<Held> held;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    file.catalogue().check_header_size(i, location);
    if (entry.header_size() > 0) {
      held.push_back({entry.header_offset, entry.header_size(), Hash::Sha256});
    }
    for (std::uint64_t at = 0; at < entry.data_size; at += chunk_size) {
      held.push_back(
          {entry.data_offset + at, std::min(chunk_size, entry.data_size - at), like.hash()});
    }
  }
  return held;
}

// Reads all of them, as many at a time as SHA-256 hashes side by side, and sets their digests.
void set_digests(std::vector<Held>& held, Source& source, int threads, Cancel& cancel) {
  if (held.empty()) return;
  const auto together = static_cast<std::size_t>(sha256_lanes());
  const std::uint64_t largest = std::ranges::max_element(held, {}, &Held::size)->size;
  ScratchPool memory(largest * together);
  for_each_number((held.size() + together - 1) / together, threads, cancel, [&](std::size_t i) {
    const std::span<Held> rest = std::span(held).subspan(i * together);
    const Bytes block = memory.take(largest * together);
    Bytes left = block;
    ByHash<std::vector<ChunkedBytes>> read;
    for (Held& each : rest.first(std::min(together, rest.size()))) {
      const Bytes piece = left.first(each.size);
      source.read(each.offset, {&piece, 1}, cancel);
      read[each.hash].push_back({piece, {&each.digest, 1}});
      left = left.subspan(each.size);
    }
    for (const HashInfo& info : kHashes) digest_chunks(read[info.hash], info.hash, largest);
    memory.give_back(block);
  });
}

}  // namespace

PatchedSource::PatchedSource(OpenFile& newer, OpenFile& older, int threads, Cancel& cancel)
    : ForwardingSource({std::shared_ptr<Source>(), &newer.source()}), older_(older.source()) {
  const ChunkDigests& listed = newer.catalogue().chunk_digests();
  std::vector<Held> held = headers_and_chunks_of(older, listed);
  set_digests(held, older_, threads, cancel);
  std::unordered_map<Digest, std::uint64_t, HashOfDigest> offsets;
  offsets.reserve(held.size());
  for (const Held& each : held) offsets.try_emplace(each.digest, each.offset);
  const auto add = [&](std::uint64_t offset, std::uint64_t size, ConstBytes digest) {
    const auto found = offsets.find(digest_of(digest));
    if (found != offsets.end()) common_.push_back({offset, size, found->second});
  };
  const std::span<const Entry> entries = newer.catalogue().entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (entry.header_size() > 0) {
      add(entry.header_offset, entry.header_size(), listed.header_digest(i));
    }
    std::uint64_t chunk = 0;
    for (std::uint64_t at = 0; at < entry.data_size; at += listed.chunk_size(), ++chunk) {
      add(entry.data_offset + at, std::min(listed.chunk_size(), entry.data_size - at),
          listed.digest(i, chunk));
    }
  }
  std::ranges::sort(common_, {}, &Common::offset);
}

void PatchedSource::read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
  Source::read(offset, pieces, cancel);
}

std::size_t PatchedSource::read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) {
  // The first common bytes that end behind `offset`.
  auto common = std::ranges::upper_bound(
      common_, offset, {}, [](const Common& each) { return each.offset + each.size; });
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t at = offset + done;
    const bool here = common != common_.end() && common->offset <= at;
    const std::uint64_t until = common == common_.end() ? offset + out.size()
                                : here                  ? common->offset + common->size
                                                        : common->offset;
    const Bytes piece = out.subspan(done, std::min<std::uint64_t>(out.size() - done, until - at));
    if (here) {
      older_.read(common->older_offset + (at - common->offset), {&piece, 1}, cancel);
      kept_ += piece.size();
      ++common;
      done += piece.size();
      continue;
    }
    const std::size_t got = file_->read_up_to(at, piece, cancel);
    fetched_ += got;
    done += got;
    if (got < piece.size()) break;
  }
  return done;
}

void PatchedSource::confirm(Cancel& cancel) {
  file_->confirm(cancel);
  older_.confirm(cancel);
}

}  // namespace tensorizer
