// Loads of parts of tensors that are not one range of plain bytes.
#include "engine/load_mover.h"

namespace tensorizer {

void LoadMover::move_part(const LoadItem& item, Worker& worker) {
  if (!encrypted_) {
    move_pieces(item, plain_data(item, worker), worker);
    return;
  }
  std::unique_ptr<TensorSource> source = part_sources_.take(item.entry);
  if (!source->has(item.entry)) check_nonce(item, source->open(item.entry, worker.cancel));
  const ReadData read = [&](std::uint64_t position, std::span<const Bytes> pieces) {
    for (const Bytes piece : pieces) {
      source->read_part(position, piece, worker.cancel);
      position += piece.size();
    }
  };
  move_pieces(item, read, worker);
  part_sources_.give_back(std::move(source));
}

void LoadMover::move_pieces(const LoadItem& item, const ReadData& read, Worker& worker) {
  for (std::uint64_t at = 0; at < item.size(); at += plan_.piece_size) {
    worker.cancel.check();
    const std::uint64_t size = std::min(plan_.piece_size, item.size() - at);
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
