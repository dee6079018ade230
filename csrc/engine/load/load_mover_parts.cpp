// Loads of items that move piece by piece, or that are not one range of bytes that are used as they
// are.
#include "engine/load/load_mover.h"

namespace tensorizer {

void LoadMover::move_pieces(const LoadItem& item, Worker& worker) {
  const Extent& e = extent(item);
  MovingItem moving{item};
  std::vector<std::byte> header;
  const PartSources::Taken chunks = open_chunks(item, worker);
  if (chunks != nullptr && chunks->details() != nullptr) {
    moving.details = *chunks->details();
  } else {
    read_arriving(job_.source, e.offset, e.header_size, header, worker.cancel);
    moving.header = header;
  }
  learn(moving);
  const bool digests = job_.digests() && job_.is_whole(item) && !moving.on_device;
  RunningDigests running(digests ? moving.wanted : DigestStart{});
  std::vector<Digest> found;
  if (digests && job_.hashes_chunks()) {
    found.resize(chunk_count(item.size(), job_.hashed_chunk()));
  }
  RunningChunks running_chunks(job_.chunk_hash(), job_.hashed_chunk(), found);
  const ReadData read = reader(item, moving.on_device ? nullptr : chunks.get(), worker);
  // Only pieces that pass through memory of the job must be small: a server is asked for much.
  const bool direct = !item.memory.empty() && item.runs == nullptr;
  std::uint64_t most = direct ? std::max(plan_.piece_size, plan_.strip_size) : plan_.piece_size;
  // Whole chunks of a whole tensor are decrypted where they are read to.
  if (encrypted_ && chunks != nullptr && moving.details->crypt.chunk_size < most) {
    most -= most % moving.details->crypt.chunk_size;
  }
  for (std::uint64_t at = 0; at < item.size(); at += most) {
    worker.cancel.check();
    const std::uint64_t size = std::min(most, item.size() - at);
    // Bytes that are only checked pass through memory of the port as well.
    const Bytes piece =
        item.memory.empty() ? worker.access.port->take(size) : item.memory.subspan(at, size);
    fetch(item, at, piece, read, worker);
    if (digests) {
      const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
      running.update(piece);
      running_chunks.update(piece);
    }
    if (item.staged) put(item, at, piece, worker);
    moved(size);
  }
  running_chunks.finish();
  repair_hashed(item, 0, found, false, worker);
  if (digests) check_.compare(item, running.finish());
  if (moving.on_device) {
    start_on_device(moving, 0, item.size(), worker);
  } else {
    complete(item, worker);
  }
}

PartSources::Taken LoadMover::open_chunks(const LoadItem& item, Worker& worker) {
  if (!job_.is_part_of_chunks(item) && (!encrypted_ || item.size() == 0)) return {};
  PartSources::Taken source = part_sources_.take(item.entry, worker.slots);
  if (!source->has(item.entry)) source->open(item.entry, worker.cancel);
  if (source->details() != nullptr) check_nonce(item, *source->details());
  return source;
}

ReadData LoadMover::reader(const LoadItem& item, TensorSource* chunks, Worker& worker) {
  return [&, chunks, begin = entry(item).data_offset](std::uint64_t position,
                                                      std::span<const Bytes> pieces) {
    if (chunks == nullptr) return job_.source.read(begin + position, pieces, worker.cancel);
    for (const Bytes piece : pieces) {
      chunks->read_part(position, piece, worker.cancel);
      position += piece.size();
    }
  };
}

void LoadMover::fetch(const LoadItem& item, std::uint64_t offset, Bytes out, const ReadData& read,
                      Worker& worker) {
  if (item.in_place) {
    if (job_.is_part_of_chunks(item)) check_in_place(item, offset, out.size(), worker);
  } else if (item.runs != nullptr) {
    gather(*item.runs, offset, out, plan_.gather, worker.access.scratch, read);
  } else {
    read(item.range.position + offset, {&out, 1});
  }
}

void LoadMover::check_in_place(const LoadItem& item, std::uint64_t offset, std::uint64_t size,
                               Worker& worker) {
  // The mapping holds all of the chunks. A local file is never read anew, so nothing writes to it.
  const Entry& e = entry(item);
  const std::uint64_t chunk = job_.catalogue.chunk_digests().chunk_size();
  const std::uint64_t position = item.range.position + offset;
  const std::uint64_t begin = position / chunk * chunk;
  const std::uint64_t end = std::min(chunk_count(position + size, chunk) * chunk, e.data_size);
  const ConstBytes bytes = job_.settings.mapping.subspan(e.data_offset + begin, end - begin);
  const ChunksOfItem chunks{item, begin, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  check_chunks({&chunks, 1}, worker);
}

}  // namespace tensorizer
