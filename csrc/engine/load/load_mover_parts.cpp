// Loads of parts of tensors that are not one range of bytes that are used as they are.
#include "engine/load/load_mover.h"

namespace tensorizer {

void LoadMover::move_part(const LoadItem& item, Worker& worker) {
  if (!job_.is_part_of_chunks(item)) {
    move_pieces(item, plain_data(item, worker), worker);
    return;
  }
  if (item.in_place) {
    read_chunks(item, 0, item.memory, worker);
    moved(item.size());
    return;
  }
  std::unique_ptr<TensorSource> source = open_part(item, worker.cancel);
  const ReadData read = [&](std::uint64_t position, std::span<const Bytes> pieces) {
    for (const Bytes piece : pieces) {
      source->read_part(position, piece, worker.cancel);
      position += piece.size();
    }
  };
  move_pieces(item, read, worker);
  part_sources_.give_back(std::move(source));
}

void LoadMover::read_chunks(const LoadItem& item, std::uint64_t offset, Bytes out, Worker& worker) {
  const std::uint64_t position = item.range.position + offset;
  if (!item.in_place) {
    std::unique_ptr<TensorSource> source = open_part(item, worker.cancel);
    source->read_part(position, out, worker.cancel);
    part_sources_.give_back(std::move(source));
    return;
  }
  // The mapping holds all of the chunks. A local file is never read anew, so nothing writes to it.
  const Entry& e = entry(item);
  const std::uint64_t size = job_.catalogue.chunk_digests().chunk_size();
  const std::uint64_t begin = position / size * size;
  const std::uint64_t end = std::min(chunk_count(position + out.size(), size) * size, e.data_size);
  const ConstBytes bytes = job_.settings.mapping.subspan(e.data_offset + begin, end - begin);
  const ChunksOfItem chunks{item, begin, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  check_chunks({&chunks, 1}, worker);
}

std::unique_ptr<TensorSource> LoadMover::open_part(const LoadItem& item, Cancel& cancel) {
  std::unique_ptr<TensorSource> source = part_sources_.take(item.entry);
  if (source->has(item.entry)) return source;
  const TensorDetails* const details = source->open(item.entry, cancel);
  if (details != nullptr) check_nonce(item, *details);
  return source;
}

void LoadMover::move_pieces(const LoadItem& item, const ReadData& read, Worker& worker) {
  // Only pieces that pass through memory of the job must be small: a server is asked for much.
  const bool direct = !item.memory.empty() && item.runs == nullptr;
  const std::uint64_t most =
      direct ? std::max(plan_.piece_size, plan_.strip_size) : plan_.piece_size;
  for (std::uint64_t at = 0; at < item.size(); at += most) {
    worker.cancel.check();
    const std::uint64_t size = std::min(most, item.size() - at);
    // Bytes that are only checked pass through memory of the port as well.
    const Bytes piece =
        item.memory.empty() ? worker.access.port->take(size) : item.memory.subspan(at, size);
    read_part(item, at, piece, read, worker);
    if (item.staged) put(item, at, piece, worker);
    moved(size);
  }
}

void LoadMover::read_part(const LoadItem& item, std::uint64_t offset, Bytes out,
                          const ReadData& read, Worker& worker) const {
  if (item.runs == nullptr) {
    read(item.range.position + offset, {&out, 1});
  } else {
    gather(*item.runs, offset, out, plan_.gather, worker.access.scratch, read);
  }
}

ReadData LoadMover::plain_data(const LoadItem& item, Worker& worker) const {
  const std::uint64_t begin = entry(item).data_offset;
  return [this, begin, &worker](std::uint64_t position, std::span<const Bytes> pieces) {
    job_.source.read(begin + position, pieces, worker.cancel);
  };
}

}  // namespace tensorizer
