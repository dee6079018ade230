#include "io/signed/signed_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

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

// Returns whether the bytes came again. Those that came first are wrong, whatever happens now.
bool read_anew(Source& file, std::uint64_t offset, Bytes out, Cancel& cancel) {
  try {
    return file.read_anew(offset, out, cancel);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Cancelled) throw;
    return false;
  }
}

}  // namespace

ReadHints SignedSource::hints(std::uint64_t offset, std::uint64_t length) {
  ReadHints hints = file_->hints(offset, length);
  // Shards arrive whole, so a gap inside one costs nothing.
  hints.read_cost = std::max(hints.read_cost, std::min(shards_.shard_size, kMostGap));
  hints.unit = shards_.shard_size;
  return hints;
}

void SignedSource::read_distinct(std::uint64_t offset, std::span<const Bytes> pieces,
                                 Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  const std::uint64_t first = offset / shards_.shard_size;
  const std::uint64_t last = (end - 1) / shards_.shard_size;
  std::vector<Edge> edges;
  edges.reserve(2);
  try {
    if (offset > first * shards_.shard_size || (first == last && end < end_of(last))) {
      edges.push_back(claim(first, cancel));
    }
    if (last > first && end < end_of(last)) edges.push_back(claim(last, cancel));
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
      read_distinct(from, part, cancel);
    } else {
      copy_into(part, edge.shard->bytes.data() + (from - begin));
    }
  }
}

SignedSource::Edge SignedSource::claim(std::uint64_t number, const Cancel& cancel) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Shared>& shard = shared_[number];
  const bool is_mine = shard == nullptr || (shard->state == Shared::State::Arriving &&
                                            !shard->doer.goes_on_beside(cancel));
  if (is_mine) shard = std::make_shared<Shared>(Shared{Doer(cancel)});
  return {number, shard, is_mine};
}

// Fetches in one read the shards that the pieces have in whole, and those of the caller's edges.
void SignedSource::fetch(std::uint64_t offset, std::span<const Bytes> pieces, std::span<Edge> edges,
                         Cancel& cancel) {
  const std::uint64_t end = offset + total_size(pieces);
  std::uint64_t begin = align_up(offset, shards_.shard_size);  // of what is in the pieces in whole
  std::uint64_t past = end == size_ ? end : end / shards_.shard_size * shards_.shard_size;
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
    const auto known = shared_.find(edge.number);
    if (known == shared_.end() || known->second != edge.shard) continue;  // fetched again meanwhile
    if (state == Shared::State::Failed) {
      shared_.erase(known);
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
    if (is_signed(first + i, digests[i])) continue;
    // A cache on the way may have damaged it.
    std::vector<std::byte> anew(end_of(first + i) - (first + i) * size);
    if (tensorizer::read_anew(*file_, (first + i) * size, anew, cancel)) {
      const Bytes piece(anew);
      hash_shards({&piece, 1}, size, std::span(digests).subspan(i, 1));
      if (is_signed(first + i, digests[i])) {
        copy_into(part_of(pieces, i * size, (i + 1) * size), anew.data());
        continue;
      }
    }
    refuse(first + i, digests[i]);
  }
}

}  // namespace tensorizer
