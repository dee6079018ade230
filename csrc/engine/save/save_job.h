// What SaveMover and SequentialSave share: where the bytes of a tensor are, and what is written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/digest/chunks.h"
#include "engine/save/save.h"
#include "format/tensors/tensor_header.h"

namespace tensorizer {

// A piece of a tensor's data. The ciphertext goes to `out`, which may be where the data is.
struct SavedBytes {
  ConstBytes plain;
  Bytes out;
};

struct SaveJob {
  Sink& sink;
  Layout& layout;
  std::size_t first;  // number of the first item in the layout
  std::span<const SaveItem> items;
  const SaveSettings& settings;
  Progress& progress;

  const PlacedTensor& tensor(std::size_t item) const { return layout.tensors()[first + item]; }
  std::uint64_t data_size(std::size_t item) const { return tensor(item).spec.data_size(); }
  HashSet hashes() const { return layout.kind().header.hashes; }
  const std::optional<Encryption>& encryption() const { return layout.kind().header.encryption; }

  // Returns the header of a tensor; one without bytes if the format has no such headers.
  TensorHeaderImage header(std::size_t item) const {
    const PlacedTensor& placed = tensor(item);
    return placed.header_size == 0
               ? TensorHeaderImage()
               : TensorHeaderImage(placed.spec, layout.kind().header, placed.header_size);
  }

  DigestStart digest_start(const TensorHeaderImage& header) const {
    return {header.hashed(), hashes()};
  }
  // Returns what to digest for the list of data digests, which cover the data alone.
  DigestStart data_digest_start() const {
    return {{}, layout.kind().data_digests ? HashSet{Hash::Sha256} : HashSet()};
  }

  std::uint64_t chunk_size() const { return layout.kind().chunk_size; }
  // Returns where the digests of an item's chunks go; empty if none are computed.
  std::span<Digest> chunk_digests(std::size_t item) const {
    return chunks_are_known(item) ? std::span<Digest>() : layout.chunk_digests(first + item);
  }
  bool chunks_are_known(std::size_t item) const {
    const FileKind& kind = layout.kind();
    return !items[item].checked_chunks.empty() && kind.chunk_size == kUsualChunk &&
           kind.chunk_hash == Hash::Sha256;
  }

  // Sets the digests in the header, and those in the layout that the prefix needs. The MACs must be
  // set before.
  void complete(std::size_t item, TensorHeaderImage& header, const Digests& digests,
                const Digests& data_digest) const;

  // Returns how much of a tensor that is not cut moves at a time: one chunk if the file is
  // encrypted, otherwise `staged`.
  std::uint64_t piece_size(std::uint64_t staged) const {
    return encryption() ? kCryptChunk : staged;
  }

  // Returns whether an item's data, or its ciphertext, is in memory of the worker before it is
  // written.
  bool uses_scratch(std::size_t item) const {
    return items[item].staged || items[item].read || encryption();
  }

  // Returns bytes of an item's data: where they are, or in memory of the worker.
  SavedBytes data(std::size_t item, std::uint64_t position, std::uint64_t size,
                  TensorAccess& access) const;

  // Returns the bytes to write for a piece. If the file is encrypted, encrypts them first, and sets
  // their MACs in the header. `position` must be the start of a chunk.
  ConstBytes encrypt(TensorHeaderImage& header, std::uint64_t position,
                     const SavedBytes& piece) const;

  // Returns how long the bytes that are written for an item stay valid: until the end if they are
  // memory of the caller, which stays.
  KeptUntil kept_until(std::size_t item) const {
    return settings.memory_stays && !uses_scratch(item) ? KeptUntil::End : KeptUntil::Return;
  }

  void write_header(std::size_t item, const TensorHeaderImage& header, Cancel& cancel) const;
  void write_data(std::size_t item, std::uint64_t position, ConstBytes bytes, Cancel& cancel) const;
};

// Computes the digests of a tensor that is saved piece by piece.
class SavedDigests {
 public:
  SavedDigests(const SaveJob& job, std::size_t item, const TensorHeaderImage& header)
      : job_(job),
        item_(item),
        digests_(job.digest_start(header)),
        data_digest_(job.data_digest_start()),
        chunks_(job.layout.kind().chunk_hash, job.chunk_size(), job.chunk_digests(item)) {}

  // Adds the next bytes of the data.
  void update(ConstBytes plain) {
    digests_.update(plain);
    data_digest_.update(plain);
    chunks_.update(plain);
  }
  // Completes the header. All data must have been added, and all MACs set.
  void complete(TensorHeaderImage& header);

 private:
  const SaveJob& job_;
  const std::size_t item_;
  RunningDigests digests_;
  RunningDigests data_digest_;
  RunningChunks chunks_;
};

}  // namespace tensorizer
