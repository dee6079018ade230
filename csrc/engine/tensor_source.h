// Reads the data of tensors as it was saved, piece by piece: decrypted, and verified if it is read
// in whole.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/check.h"
#include "engine/file_keys.h"
#include "format/catalogue.h"
#include "io/source.h"

namespace tensorizer {

// The context that all tensors of one file share. Must outlive the sources that use it.
struct TensorFile {
  Source& source;
  const Catalogue& catalogue;
  FileKeys* keys;  // null if the file is not encrypted
  const ExpectedDigests* expected_digests = nullptr;
};

// Used by one thread at a time.
class TensorSource {
 public:
  explicit TensorSource(const TensorFile& file) : file_(file) {}

  // Reads the next bytes of the data; from its start if `position` is 0. The call that reads the
  // last bytes throws HashMismatch if the data is not what was saved, or not what the expected
  // digests say. Throws Crypto for a chunk whose MAC is wrong, before it gives any byte of it.
  void read(std::uint32_t entry, std::uint64_t position, Bytes out, Cancel& cancel);

  // Reads the details of an encrypted tensor, so that parts of it can be read. The result is valid
  // until the next open() or read().
  const TensorDetails& open(std::uint32_t entry, Cancel& cancel);
  // Returns whether open() was called for this tensor last.
  bool has(std::uint32_t entry) const { return details_ && number_ == entry; }
  // Reads any part of the data of the open tensor. Checks the MACs of the chunks that it touches,
  // and no digests.
  void read_part(std::uint64_t position, Bytes out, Cancel& cancel);

 private:
  void begin(std::uint32_t entry, Bytes out, Cancel& cancel);
  void fill(std::uint64_t position, Bytes out, Cancel& cancel);
  TensorLocation location() const;
  const Entry& entry() const { return file_.catalogue.entries()[number_]; }

  const TensorFile& file_;
  std::uint32_t number_ = 0;
  std::vector<std::byte> header_;
  std::optional<TensorDetails> details_;
  SharedSecret key_;
  std::vector<std::byte> chunk_;           // the last chunk that was not read in one piece
  std::optional<std::uint64_t> chunk_at_;  // where it begins, if its MAC was right
  Expected expected_;
  std::optional<RunningDigests> digests_;
};

}  // namespace tensorizer
