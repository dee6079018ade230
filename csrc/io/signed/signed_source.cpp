#include "io/signed/signed_source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "codec/hmac.h"

namespace tensorizer {

namespace {

// How many bytes of shards stay in memory for other reads, or two shards if that is more.
constexpr std::uint64_t kShared = 16 << 20;
// The longest gap between wanted bytes that is read along with them.
constexpr std::uint64_t kMostGap = 2 << 20;

// Copies bytes into the pieces, one after another.
void copy_into(std::span<const Bytes> pieces, const std::byte* from) {
  for (const Bytes piece : pieces) {
    std::memcpy(piece.data(), from, piece.size());
    from += piece.size();
  }
}

}  // namespace

SignedShards within_file(SignedShards shards) {
  shards.shard_size = std::min(shards.shard_size, std::max<std::uint64_t>(shards.file_size, 1));
  return shards;
}

void hash_together(std::span<Sha256> messages, std::span<const std::vector<Bytes>> parts) {
  std::vector<Sha256Update> updates;
  for (std::size_t round = 0; round == 0 || !updates.empty(); ++round) {
    updates.clear();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (round < parts[i].size()) updates.push_back({&messages[i], parts[i][round]});
    }
    sha256_update(updates);
  }
}

void hash_shards(std::span<const Bytes> pieces, std::uint64_t shard_size,
                 std::span<Sha256Digest> digests) {
  const auto lanes = static_cast<std::size_t>(sha256_lanes());
  for (std::size_t first = 0; first < digests.size(); first += lanes) {
    const std::size_t count = std::min(lanes, digests.size() - first);
    std::vector<Sha256> hashes(count);
    std::vector<std::vector<Bytes>> parts(count);
    for (std::size_t i = 0; i < count; ++i) {
      parts[i] = part_of(pieces, (first + i) * shard_size, (first + i + 1) * shard_size);
    }
    hash_together(hashes, parts);
    for (std::size_t i = 0; i < count; ++i) digests[first + i] = hashes[i].finish();
  }
}

void check_size(const Source& file, std::uint64_t expected, const std::string& signer) {
  const std::uint64_t size = file.size().value();
  if (size == expected) return;
  throw Error(ErrorKind::HashMismatch, file.label() + ": it has " + std::to_string(size) +
                                           " bytes, and " + signer + " signed " +
                                           std::to_string(expected) +
                                           ": it is another version, or was changed");
}

void throw_other_bytes(const Source& file, std::uint64_t begin, std::uint64_t end, ConstBytes found,
                       ConstBytes expected, const std::string& signer) {
  throw Error(ErrorKind::HashMismatch, file.label() + ": its bytes from " + std::to_string(begin) +
                                           " to " + std::to_string(end) + " are not those that " +
                                           signer + " signed: their SHA-256 is " + to_hex(found) +
                                           ", and should be " + to_hex(expected) +
                                           ": they are damaged, or were changed");
}

SignedSource::SignedSource(std::shared_ptr<Source> file, SignedShards shards)
    : KeepingSource(std::move(file)), shards_(within_file(std::move(shards))) {
  check_size(*file_, shards_.file_size, shards_.signer);
}

void SignedSource::read_distinct(std::uint64_t offset, std::span<const Bytes> pieces,
                                 Cancel& cancel) {
  const std::uint64_t wanted = total_size(pieces);
  const std::uint64_t there = shards_.file_size - std::min(offset, shards_.file_size);
  if (wanted > there) throw_source_ended(label(), shards_.file_size, wanted - there);
  fill(offset, pieces, cancel);
}

std::size_t SignedSource::read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) {
  const std::uint64_t there = shards_.file_size - std::min(offset, shards_.file_size);
  const Bytes piece = out.first(std::min<std::uint64_t>(out.size(), there));
  fill(offset, {&piece, 1}, cancel);
  return piece.size();
}

ReadHints SignedSource::hints(std::uint64_t offset, std::uint64_t length) {
  ReadHints hints = file_->hints(offset, length);
  // Shards arrive whole, so a gap inside one costs nothing.
  hints.read_cost = std::max(hints.read_cost, std::min(shards_.shard_size, kMostGap));
  hints.unit = shards_.shard_size;
  return hints;
}

std::uint64_t SignedSource::end_of(std::uint64_t shard) const {
  return std::min((shard + 1) * shards_.shard_size, shards_.file_size);
}

void SignedSource::fill(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  if (end == offset) return;
  const std::uint64_t first = offset / shards_.shard_size;
  const std::uint64_t last = (end - 1) / shards_.shard_size;
  std::vector<Edge> edges;
  edges.reserve(2);
  try {
    if (offset > first * shards_.shard_size || (first == last && end < end_of(last))) {
      edges.push_back(claim(first));
    }
    if (last > first && end < end_of(last)) edges.push_back(claim(last));
    fetch(offset, pieces, edges, cancel);
  } catch (...) {
    publish(edges, Shared::State::Failed);
    throw;
  }
  publish(edges, Shared::State::Checked);
  for (Edge& edge : edges) {
    // What this reader claimed is published by now, so no two readers wait for each other.
    std::unique_lock lock(mutex_);
    while (edge.shard->state == Shared::State::Arriving) cancel.wait(changed_, lock);
    const bool failed = edge.shard->state == Shared::State::Failed;
    lock.unlock();
    const std::uint64_t begin = edge.number * shards_.shard_size;
    const std::uint64_t from = std::max(begin, offset);
    const std::uint64_t to = std::min(end_of(edge.number), end);
    const std::vector<Bytes> part = part_of(pieces, from - offset, to - offset);
    if (failed) {
      fill(from, part, cancel);
    } else {
      copy_into(part, edge.shard->bytes.data() + (from - begin));
    }
  }
}

SignedSource::Edge SignedSource::claim(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Shared>& shard = shared_[number];
  const bool is_mine = shard == nullptr;
  if (is_mine) shard = std::make_shared<Shared>();
  return {number, shard, is_mine};
}

// Fetches in one read the shards that the pieces have in whole, and those of the caller's edges.
void SignedSource::fetch(std::uint64_t offset, std::span<const Bytes> pieces, std::span<Edge> edges,
                         Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  std::uint64_t begin = align_up(offset, shards_.shard_size);  // of what is in the pieces in whole
  std::uint64_t past =
      end == shards_.file_size ? end : end / shards_.shard_size * shards_.shard_size;
  std::vector<Bytes> all;
  if (begin < past) all = part_of(pieces, begin - offset, past - offset);
  std::uint64_t first = begin / shards_.shard_size;
  for (Edge& edge : edges) {
    if (!edge.is_mine) continue;
    const std::uint64_t from = edge.number * shards_.shard_size;
    edge.shard->bytes.resize(end_of(edge.number) - from);
    const bool is_first = all.empty() || from < offset;
    if (is_first) first = edge.number;
    all.insert(is_first ? all.begin() : all.end(), Bytes(edge.shard->bytes));
  }
  if (all.empty()) return;
  file_->read(first * shards_.shard_size, all, cancel);
  check(first, all, cancel);
}

void SignedSource::publish(std::span<Edge> edges, Shared::State state) {
  const std::lock_guard lock(mutex_);
  for (Edge& edge : edges) {
    if (!edge.is_mine) continue;
    edge.shard->state = state;
    if (state == Shared::State::Failed) {
      shared_.erase(edge.number);
    } else {
      checked_.push_back(edge.number);
    }
  }
  const std::uint64_t most = std::max<std::uint64_t>(kShared / shards_.shard_size, 2);
  while (checked_.size() > most) {
    shared_.erase(checked_.front());
    checked_.pop_front();
  }
  changed_.notify_all();
}

void SignedSource::check(std::uint64_t first, std::span<const Bytes> pieces, Cancel& cancel) {
  const std::uint64_t size = shards_.shard_size;
  std::vector<Sha256Digest> digests(align_up(total_size(pieces), size) / size);
  hash_shards(pieces, size, digests);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const auto is_right = [&] {
      const ConstBytes wanted = shards_.digests.subspan((first + i) * kSha256Size, kSha256Size);
      return std::ranges::equal(wanted, digests[i]);
    };
    if (is_right()) continue;
    // A cache on the way may have damaged it.
    std::vector<std::byte> anew(end_of(first + i) - (first + i) * size);
    if (file_->read_anew((first + i) * size, anew, cancel)) {
      const Bytes piece(anew);
      hash_shards({&piece, 1}, size, std::span(digests).subspan(i, 1));
      if (is_right()) {
        copy_into(part_of(pieces, i * size, (i + 1) * size), anew.data());
        continue;
      }
    }
    throw_other_bytes(*file_, (first + i) * size, end_of(first + i), digests[i],
                      shards_.digests.subspan((first + i) * kSha256Size, kSha256Size),
                      shards_.signer);
  }
}

}  // namespace tensorizer
