// The data of one tensor as it was saved: read piece by piece, in order, decrypted and verified on
// the way.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/check.h"
#include "engine/file_keys.h"
#include "format/tensor_header.h"
#include "io/source.h"

namespace tensorizer {

// What all tensors of one file share.
struct TensorFile {
  Source& source;
  const Index& index;
  FileKeys* keys;  // of an encrypted file
  const ExpectedDigests* expected_digests = nullptr;
};

class TensorSource {
 public:
  explicit TensorSource(const TensorFile& file) : file_(file) {}

  // The next bytes of the data; from its start where `position` is 0. The last ones throw
  // Error(HashMismatch) when the whole is not what was saved, or what a pin says; a chunk whose MAC
  // is wrong is an Error(Crypto) before any of it is given.
  void read(std::uint32_t entry, std::uint64_t position, Bytes out, Cancel& cancel);

 private:
  void begin(std::uint32_t entry, Bytes out, Cancel& cancel);
  void fill(std::uint64_t position, Bytes out, Cancel& cancel);
  TensorLocation location() const;
  const Entry& entry() const { return file_.index.entries()[number_]; }

  const TensorFile& file_;
  std::uint32_t number_ = 0;
  std::vector<std::byte> bytes_;
  std::optional<TensorHeader> header_;
  SharedSecret key_;
  std::vector<std::byte> chunk_;           // the last one that was not asked for in one piece
  std::optional<std::uint64_t> chunk_at_;  // where it begins, when it is right
  Expected expected_;
  std::optional<RunningDigests> digests_;
};

}  // namespace tensorizer
