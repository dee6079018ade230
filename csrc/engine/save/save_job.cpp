#include "engine/save/save_job.h"

#include <algorithm>

#include "codec/hmac.h"

namespace tensorizer {

void SaveJob::complete(std::size_t item, TensorHeaderImage& header, const Digests& digests,
                       const Digests& data_digest) const {
  if (chunks_are_known(item)) {
    std::ranges::copy(items[item].checked_chunks, layout.chunk_digests(first + item).begin());
  }
  if (header.bytes().empty()) {
    // Without a header, the digests cover the data alone.
    layout.set_data_digest(first + item, digests);
    return;
  }
  header.set_digests(digests);
  if (encryption() || chunk_size() > 0) {
    layout.set_header_digest(first + item, sha256(header.bytes()));
  }
  layout.set_data_digest(first + item, data_digest);
}

SavedBytes SaveJob::data(std::size_t item, std::uint64_t position, std::uint64_t size,
                         TensorAccess& access) const {
  if (items[item].staged) {
    const Bytes out = access.port->take(size);
    access.port->get(*items[item].staged, position, out);
    access.port->wait();
    return {out, out};
  }
  if (items[item].read) {
    const Bytes out = access.scratch.take(size);
    access.reader->read(*items[item].read, position, out);
    return {out, out};
  }
  const ConstBytes plain = items[item].memory.subspan(position, size);
  return {plain, encryption() ? access.scratch.take(size) : Bytes()};
}

ConstBytes SaveJob::encrypt(TensorHeaderImage& header, std::uint64_t position,
                            const SavedBytes& piece) const {
  if (!encryption()) return piece.plain;
  for (std::uint64_t at = 0; at < piece.out.size(); at += kCryptChunk) {
    const std::uint64_t chunk = (position + at) / kCryptChunk;
    const std::uint64_t size = std::min<std::uint64_t>(kCryptChunk, piece.out.size() - at);
    const ConstBytes key = encryption()->key->bytes();
    const Nonce nonce = nonce_after(header.nonce(), chunk);
    const Bytes out = piece.out.subspan(at, size);
    header.set_mac(chunk, encrypt_chunk(key, nonce, piece.plain.subspan(at, size), out));
  }
  return piece.out;
}

void SavedDigests::complete(TensorHeaderImage& header) {
  chunks_.finish();
  job_.complete(item_, header, digests_.finish(), data_digest_.finish());
}

void SaveJob::write_header(std::size_t item, const TensorHeaderImage& header,
                           Cancel& cancel) const {
  const ConstBytes piece = header.bytes();
  if (piece.empty()) return;
  sink.write(tensor(item).header_offset, {&piece, 1}, KeptUntil::Return, cancel);
}

void SaveJob::write_data(std::size_t item, std::uint64_t position, ConstBytes bytes,
                         Cancel& cancel) const {
  sink.write(tensor(item).data_offset() + position, {&bytes, 1}, kept_until(item), cancel);
  progress.done.fetch_add(bytes.size(), std::memory_order_relaxed);
}

}  // namespace tensorizer
