// Reads a file around the page cache (O_DIRECT), at any offset and into any memory.
//
// The system reads whole blocks into memory that is aligned like them. So the blocks at the ends of
// a read pass through a buffer of the thread, and all of it does where the memory is not aligned as
// the file is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/descriptor.h"

namespace tensorizer {

class DirectFile {
 public:
  // Opens the file of a descriptor once more. Returns null if its file system cannot be read around
  // the page cache. `file` must stay open as long as this object.
  static std::unique_ptr<DirectFile> open(int file, const std::string& path);

  // Returns what offsets, sizes and addresses must be multiples of.
  std::uint64_t block() const noexcept { return block_; }

  // Does what read_at() of io/descriptor.h does, and reads through the page cache if the system
  // refuses to read around it. Thread-safe.
  std::uint64_t read_at(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel);

 private:
  DirectFile(int file, Descriptor direct, std::uint64_t block, const std::string& path)
      : file_(file), direct_(std::move(direct)), block_(block), path_(path) {}

  const int file_;
  const Descriptor direct_;
  const std::uint64_t block_;
  const std::string path_;
  std::atomic<bool> refused_ = false;
};

}  // namespace tensorizer
