// Reads the data of tensors as it was saved, piece by piece: decrypted, and verified if it is read
// in whole.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/digest/check.h"
#include "engine/digest/chunks.h"
#include "engine/digest/data_digests.h"
#include "engine/digest/file_keys.h"
#include "engine/move/move.h"
#include "format/catalogue.h"
#include "io/source.h"

namespace tensorizer {

// The context that all tensors of one file share. Must outlive the sources that use it.
struct TensorFile {
  Source& source;
  const Catalogue& catalogue;
  FileKeys* keys;                       // null if no key was given
  DataDigests* data_digests = nullptr;  // as in LoadSettings
  // Whether the chunks of plain data are compared with the digests that the file lists of them.
  bool checks_chunks = false;
  // Called, if it is set, for a chunk whose MAC is wrong, in place of throwing.
  std::function<void(std::uint32_t entry, std::uint64_t position, const std::string& what)>
      wrong_mac{};
};

// Used by one thread at a time.
class TensorSource {
 public:
  // Decrypts and checks chunks in a slot, if there are slots.
  explicit TensorSource(const TensorFile& file, ComputeSlots* slots = nullptr)
      : file_(file), slots_(slots) {}

  // Reads the next bytes of the data; from its start if `position` is 0. Throws Crypto for a chunk
  // whose MAC is wrong, and HashMismatch for one whose digest is, before it gives any byte of it.
  // If digests of chunks are not checked, the call that reads the last bytes throws HashMismatch if
  // the data is not what was saved, or not what `data_digests` say.
  void read(std::uint32_t entry, std::uint64_t position, Bytes out, Cancel& cancel);

  // Opens a tensor, so that parts of it can be read.
  void open(std::uint32_t entry, Cancel& cancel);
  // Returns the details of an open tensor that is encrypted, and null for any other. They are valid
  // until the next open() or read().
  const TensorDetails* details() const { return details_ ? &*details_ : nullptr; }
  // Returns whether open() was called for this tensor last.
  bool has(std::uint32_t entry) const { return opened_ == entry; }
  // Reads any part of the data of the open tensor. Checks the MACs of the chunks that it touches,
  // or their digests if the file says so, before it gives any byte of them.
  void read_part(std::uint64_t position, Bytes out, Cancel& cancel);

 private:
  void begin(std::uint32_t entry, Bytes out, Cancel& cancel);
  void fill(std::uint64_t position, Bytes out, Cancel& cancel);
  // Fills `out` with parts of chunks of this size.
  void fill_from_chunks(std::uint64_t chunk_size, std::uint64_t position, Bytes out,
                        Cancel& cancel);
  // Decrypts or checks whole chunks. `position` is where the first one begins.
  void check(std::uint64_t position, Bytes chunks, Cancel& cancel);
  // Returns memory for the first chunks of the open tensor: as many as `out` has in whole, or else
  // `chunk_` for one.
  Bytes first_bytes(Bytes out);
  // Compares or keeps the digests of the data that read() has given in whole.
  void compare();
  [[noreturn]] void fail_chunk(std::uint64_t position) const;
  TensorLocation location() const;
  const Entry& entry() const { return file_.catalogue.entries()[number_]; }

  const TensorFile& file_;
  ComputeSlots* const slots_;
  std::uint32_t number_ = 0;
  std::optional<std::uint32_t> opened_;
  std::vector<std::byte> header_;
  std::optional<TensorDetails> details_;
  SharedSecret key_;
  std::vector<std::byte> chunk_;           // the last chunk that was not read in one piece
  std::optional<std::uint64_t> chunk_at_;  // where it begins, if it was right
  Digests expected_;
  std::optional<RunningDigests> digests_;
  std::vector<Digest> found_;  // of the chunks of the data that read() gives
  std::optional<RunningChunks> chunks_;
};

}  // namespace tensorizer
