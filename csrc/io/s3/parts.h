// The parts that an upload is cut into, as they fill.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

// One part: pieces of memory, in order. Its pieces point into its copies, so it is moved only.
struct UploadPart {
  explicit UploadPart(std::uint64_t of_number) : number(of_number) {}
  UploadPart(UploadPart&&) noexcept = default;
  UploadPart& operator=(UploadPart&&) noexcept = default;

  std::uint64_t number;  // from 0
  std::vector<ConstBytes> pieces;
  std::vector<std::vector<std::byte>> copies;  // of those that would not have stayed
};

// Takes the bytes of a file in any order, and gives out each part when it is whole. Any thread.
class UploadParts {
 public:
  // `total`: of the whole file, where it is known.
  UploadParts(std::uint64_t part_size, std::optional<std::uint64_t> total)
      : part_size_(part_size), total_(total) {}

  // Bytes from `offset` on. Those that do not stay where they are until the upload has ended are
  // copied. Parts that became whole by it are the caller's.
  std::vector<UploadPart> add(std::uint64_t offset, std::span<const ConstBytes> pieces, bool stay);

  // Now that the size of the file is known: what is left, which has to be whole. A file that fits
  // into one part is one, whatever room its offsets left between its first bytes and the others.
  std::vector<UploadPart> finish(std::uint64_t total);

  // How many bytes no part that was given out has.
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
