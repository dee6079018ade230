// What all who save have in common: where a tensor's bytes are, and what is written of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/digest.h"
#include "engine/save.h"
#include "format/tensors/tensor_header.h"

namespace tensorizer {

// A piece of a tensor's data. The ciphertext goes to `out`, which may be where the data is.
struct SavedBytes {
  ConstBytes plain;  // empty if the device encrypts: then `out` gets the ciphertext at once
  Bytes out;
  DeviceCodec* codec = nullptr;  // null if the host digests and encrypts
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
  HashKinds hashes() const { return layout.kind().header.hashes; }
  const std::optional<Encryption>& encryption() const { return layout.kind().header.encryption; }

  TensorHeaderImage header(std::size_t item) const {
    return {tensor(item).spec, layout.kind().header, tensor(item).header_size};
  }

  DigestStart digest_start(const TensorHeaderImage& header) const {
    return {header.hashed(), hashes().crc32, hashes().sha256};
  }
  // Of the data alone.
  DigestStart data_digest_start() const { return {{}, false, layout.kind().data_digests}; }

  // Sets digests in the header, and notes what the records need. Called when the MACs are set.
  void complete(std::size_t item, TensorHeaderImage& header, const Digests& digests,
                const Digests& data_digest) const;

  // How much of a tensor moves at a time where it is not cut: a chunk of what is encrypted.
  std::uint64_t piece_size(std::uint64_t staged) const {
    return encryption() ? kCryptChunk : staged;
  }

  // Whether an item's data, or its ciphertext, is in memory of the worker before it is written.
  bool passes(std::size_t item) const {
    return items[item].staged || items[item].read || encryption();
  }

  DeviceCodec* codec_of(std::size_t item, TensorAccess& access) const {
    return items[item].staged ? access.port->codec(*items[item].staged) : nullptr;
  }

  // Returns bytes of an item's data: where they are, or in memory of the worker.
  SavedBytes data(std::size_t item, std::uint64_t position, std::uint64_t size,
                  TensorAccess& access) const;

  // What is written of a piece: its ciphertext, whose MACs go into the header, where the file is
  // encrypted. `position` is at the start of a chunk.
  ConstBytes encrypt(std::size_t item, TensorHeaderImage& header, std::uint64_t position,
                     const SavedBytes& piece) const;

  // Whether what is written of an item's data is the caller's memory, which stays.
  KeptUntil kept_until(std::size_t item) const {
    return settings.memory_stays && !passes(item) ? KeptUntil::End : KeptUntil::Return;
  }

  void write_header(std::size_t item, const TensorHeaderImage& header, Cancel& cancel) const;
  void write_data(std::size_t item, std::uint64_t position, ConstBytes bytes, Cancel& cancel) const;
};

// The digests of a tensor that is saved piece by piece.
class SavedDigests {
 public:
  SavedDigests(const SaveJob& job, std::size_t item, const TensorHeaderImage& header,
               TensorAccess& access)
      : job_(job),
        item_(item),
        codec_(job.codec_of(item, access)),
        digests_(codec_ ? DigestStart{} : job.digest_start(header)),
        data_digest_(codec_ ? DigestStart{} : job.data_digest_start()) {}

  // The next bytes of the data. Does nothing if the device digests them.
  void update(ConstBytes plain) {
    digests_.update(plain);
    data_digest_.update(plain);
  }
  // Completes the header, whose MACs are set, when all data has been seen.
  void complete(TensorHeaderImage& header);

 private:
  const SaveJob& job_;
  const std::size_t item_;
  DeviceCodec* const codec_;
  RunningDigests digests_;
  RunningDigests data_digest_;
};

}  // namespace tensorizer
