// Cuts an upload into parts.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

// One part: pieces of memory, in order. Not copyable, because the pieces point into the copies.
struct UploadPart {
  explicit UploadPart(std::uint64_t of_number) : number(of_number) {}
  UploadPart(UploadPart&&) noexcept = default;
  UploadPart& operator=(UploadPart&&) noexcept = default;

  std::uint64_t number;  // from 0
  std::vector<ConstBytes> pieces;
  std::vector<std::vector<std::byte>> copies;  // of pieces that the caller does not keep
};

// Collects the bytes of a file in any order, and returns each part when it is complete.
// Thread-safe.
class UploadParts {
 public:
  // `total`: the size of the file, if it is known.
  UploadParts(std::uint64_t part_size, std::optional<std::uint64_t> total)
      : part_size_(part_size), total_(total) {}

  // Adds bytes from `offset` on, and returns the parts that they complete. Copies the bytes unless
  // they stay in the caller's memory until the upload has ended (`stay`).
  std::vector<UploadPart> add(std::uint64_t offset, std::span<const ConstBytes> pieces, bool stay);

  // Returns the remaining parts, now that the size of the file is known. Throws Error(Internal) if
  // one is incomplete. A file that fits into one part becomes one, of all pieces in order, even if
  // their offsets leave a gap behind the head.
  std::vector<UploadPart> finish(std::uint64_t total);

  // Returns the number of bytes that were added and not yet returned in a part.
  std::uint64_t held() const;

 private:
  struct PartPiece {
    ConstBytes bytes;
    std::vector<std::byte> copy;
  };
  struct Open {
    std::map<std::uint64_t, PartPiece> pieces;  // by offset
    std::uint64_t filled = 0;
  };

  std::uint64_t size_of(std::uint64_t number) const;
  UploadPart close(std::uint64_t number);

  const std::uint64_t part_size_;
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> total_;
  std::map<std::uint64_t, Open> open_;
};

}  // namespace tensorizer
