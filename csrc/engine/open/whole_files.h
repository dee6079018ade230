// Loads that are checked by the digests that a server keeps of whole files.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "codec/whole_hash.h"
#include "io/keeping_source.h"

namespace tensorizer {

// A file of a model. Offsets are those in the source of the model.
struct WholeFile {
  std::uint64_t begin;
  std::uint64_t end;
  std::string label;
  WholeDigest digest;
  WholeHash hash;  // of the bytes before `hashed`
  std::uint64_t hashed;

  // Moves it to another offset in the source of the model.
  void move_to(std::uint64_t offset) {
    end += offset - begin;
    hashed += offset - begin;
    begin = offset;
  }
};

// Returns a file whose first bytes, its head, were read; null if no server keeps a digest of it.
std::optional<WholeFile> whole_file(Source& file, ConstBytes head);

// Throws HashMismatch if a server keeps a digest of the file, and `bytes` do not have it.
void check_whole(Source& file, ConstBytes bytes);

// Hashes the bytes of another source while one load reads every byte behind the heads once. The
// bytes are hashed in the order of their file: a read that comes early is held up until those
// before it have been hashed. Reads must start in the order of the file.
class WholeFilesSource final : public KeepingSource {
 public:
  WholeFilesSource(std::shared_ptr<Source> source, std::vector<WholeFile> files)
      : KeepingSource(std::move(source)), files_(std::move(files)) {}

  // Reads what follows the last tensors. Throws HashMismatch for a file with another digest.
  void check(Cancel& cancel);

 private:
  void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WholeFile> files_;  // `hashed` is guarded by the mutex
};

}  // namespace tensorizer
