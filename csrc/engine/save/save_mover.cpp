#include "engine/save/save_mover.h"

#include <algorithm>

namespace tensorizer {

namespace {

// Pieces of this size are still in the processor's cache when they are written after they were
// read.
constexpr std::size_t kCachedPiece = 512 << 10;
constexpr std::size_t kCacheLine = 64;

// Reads bytes into the cache: the kernel copies them from there a fifth faster than from memory.
void fetch(ConstBytes bytes) noexcept {
  const volatile std::byte* const first = bytes.data();
  for (std::size_t at = 0; at < bytes.size(); at += kCacheLine) static_cast<void>(first[at]);
}

}  // namespace

void SaveMover::move_bundle(const Task& task, Worker& worker) {
  if (task.count == 1 && job_.data_size(task.first) > piece_) {
    move_whole(task.first, worker);
    return;
  }
  std::vector<TensorHeaderImage> headers;
  std::vector<SavedBytes> data;
  headers.reserve(task.count);
  data.reserve(task.count);
  gather(task, headers, data, worker);
  digest_bundle(task, headers, data, worker);
  std::vector<ConstBytes> pieces;
  pieces.reserve(2 * headers.size());
  std::uint64_t written = 0;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    if (!headers[i].bytes().empty()) pieces.push_back(headers[i].bytes());
    const ConstBytes bytes = job_.encryption() ? ConstBytes(data[i].out) : data[i].plain;
    if (!bytes.empty()) pieces.push_back(bytes);
    written += bytes.size();
  }
  if (pieces.empty()) return;
  job_.sink.write(job_.tensor(task.first).header_offset, pieces, KeptUntil::Return, worker.cancel);
  job_.progress.done.fetch_add(written, std::memory_order_relaxed);
}

ConstBytes SaveMover::move_strip(const Task& task, StripDigest& digest, Worker& worker) {
  const SavedBytes piece = job_.data(task.first, task.position, task.size, worker.access);
  ConstBytes bytes = piece.plain;
  if (job_.encryption()) {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Cipher);
    bytes = job_.encrypt(header_of(task.first), task.position, piece);
  }
  digest_chunks_of(task, worker);
  // With SHA-256 the strip is written in whole: it is read once more later anyway, and the page
  // cache keeps larger writes in larger blocks.
  const bool in_pieces = job_.hashes().in_order().empty();
  const std::size_t most = in_pieces ? kCachedPiece : bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += most) {
    worker.cancel.check();
    const std::size_t size = std::min(most, bytes.size() - at);
    if (digest.wanted()) {
      digest.update(piece.plain.subspan(at, size));
    } else if (in_pieces) {
      fetch(bytes.subspan(at, size));
    }
    job_.write_data(task.first, task.position + at, bytes.subspan(at, size), worker.cancel);
  }
  return piece.plain;
}

void SaveMover::digest_chunks_of(const Task& task, Worker& worker) {
  const std::uint64_t chunk_size = job_.chunk_size();
  if (chunk_size == 0) return;
  const ConstBytes data = job_.items[task.first].memory.first(job_.data_size(task.first));
  const std::uint64_t first = chunk_count(task.position, chunk_size);
  const std::uint64_t end = chunk_count(task.position + task.size, chunk_size);
  if (first == end) return;
  const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
  const ChunkedBytes chunks{data.subspan(first * chunk_size),
                            job_.chunk_digests(task.first).subspan(first, end - first)};
  digest_chunks({&chunks, 1}, job_.layout.kind().chunk_hash, chunk_size);
}

DigestStart SaveMover::digest_start(std::uint32_t tensor) {
  return job_.digest_start(header_of(tensor));
}

void SaveMover::finish(std::uint32_t tensor, const Digests& digests, Worker& worker) {
  TensorHeaderImage& header = header_of(tensor);
  RunningDigests data_digest(job_.data_digest_start());
  if (job_.layout.kind().data_digests) {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
    data_digest.update(job_.items[tensor].memory.first(job_.data_size(tensor)));
  }
  job_.complete(tensor, header, digests, data_digest.finish());
  job_.write_header(tensor, header, worker.cancel);
  headers_[tensor].reset();
}

TensorHeaderImage& SaveMover::header_of(std::uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  if (!headers_[tensor]) headers_[tensor].emplace(job_.header(tensor));
  return *headers_[tensor];
}

void SaveMover::gather(const Task& task, std::vector<TensorHeaderImage>& headers,
                       std::vector<SavedBytes>& data, Worker& worker) {
  TensorAccess& access = worker.access;
  std::uint64_t staged_size = 0;
  std::uint64_t scratch_size = 0;
  for (std::uint32_t i = task.first; i < task.first + task.count; ++i) {
    if (!job_.uses_scratch(i)) continue;
    (job_.items[i].staged ? staged_size : scratch_size) +=
        align_up(job_.data_size(i), kElementAlignment);
  }
  Bytes staged = staged_size > 0 ? access.port->take(staged_size) : Bytes();
  Bytes scratch = scratch_size > 0 ? access.scratch.take(scratch_size) : Bytes();
  for (std::uint32_t i = task.first; i < task.first + task.count; ++i) {
    headers.push_back(job_.header(i));
    const SaveItem& item = job_.items[i];
    const std::uint64_t size = job_.data_size(i);
    SavedBytes piece;
    if (job_.uses_scratch(i)) {
      Bytes& left = item.staged ? staged : scratch;
      piece.out = left.first(size);
      left = left.subspan(align_up(size, kElementAlignment));
    }
    if (item.staged) {
      access.port->get(*item.staged, 0, piece.out);
      piece.plain = piece.out;
    } else if (item.read) {
      access.reader->read(*item.read, 0, piece.out);
      piece.plain = piece.out;
    } else {
      piece.plain = item.memory.first(size);
    }
    data.push_back(piece);
  }
  if (staged_size > 0) access.port->wait();
}

void SaveMover::digest_bundle(const Task& task, std::vector<TensorHeaderImage>& headers,
                              const std::vector<SavedBytes>& data, Worker& worker) {
  std::vector<DigestStart> starts;
  std::vector<ConstBytes> plain;
  starts.reserve(task.count);
  plain.reserve(task.count);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    starts.push_back(job_.digest_start(headers[i]));
    plain.push_back(data[i].plain);
  }
  std::vector<Digests> digests;
  std::vector<Digests> data_digests(task.count);
  {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
    digests = digest_all(starts, plain);
    if (job_.layout.kind().data_digests) {
      starts.assign(task.count, job_.data_digest_start());
      data_digests = digest_all(starts, plain);
    }
    if (job_.chunk_size() > 0) {
      std::vector<ChunkedBytes> chunks;
      chunks.reserve(task.count);
      for (std::size_t i = 0; i < task.count; ++i) {
        chunks.push_back({plain[i], job_.chunk_digests(task.first + i)});
      }
      digest_chunks(chunks, job_.layout.kind().chunk_hash, job_.chunk_size());
    }
  }
  if (job_.encryption()) {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Cipher);
    for (std::size_t i = 0; i < headers.size(); ++i) {
      job_.encrypt(headers[i], 0, data[i]);
    }
  }
  for (std::size_t i = 0; i < headers.size(); ++i) {
    job_.complete(task.first + i, headers[i], digests[i], data_digests[i]);
  }
}

void SaveMover::move_whole(std::uint32_t item, Worker& worker) {
  TensorHeaderImage header = job_.header(item);
  SavedDigests digests(job_, item, header);
  const std::uint64_t size = job_.data_size(item);
  for (std::uint64_t at = 0; at < size; at += piece_) {
    worker.cancel.check();
    const SavedBytes piece = job_.data(item, at, std::min(piece_, size - at), worker.access);
    {
      const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
      digests.update(piece.plain);
    }
    ConstBytes bytes = piece.plain;
    if (job_.encryption()) {
      const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Cipher);
      bytes = job_.encrypt(header, at, piece);
    }
    job_.write_data(item, at, bytes, worker.cancel);
  }
  digests.complete(header);
  job_.write_header(item, header, worker.cancel);
}

}  // namespace tensorizer
