#include "io/upload/parts.h"

#include <algorithm>

#include "base/error.h"

namespace tensorizer {

std::vector<UploadPart> UploadParts::add(std::uint64_t offset, std::span<const ConstBytes> pieces,
                                         bool stay) {
  std::vector<UploadPart> whole;
  for (ConstBytes left : pieces) {
    while (!left.empty()) {
      const std::uint64_t number = offset / part_size_;
      const ConstBytes bytes =
          left.first(std::min<std::uint64_t>(left.size(), (number + 1) * part_size_ - offset));
      PartPiece piece;
      if (stay) {
        piece.bytes = bytes;
      } else {
        piece.copy.assign(bytes.begin(), bytes.end());
        piece.bytes = piece.copy;
      }
      {
        const std::lock_guard lock(mutex_);
        Open& part = open_[number];
        part.pieces.emplace(offset, std::move(piece));
        part.filled += bytes.size();
        if (part.filled == size_of(number)) whole.push_back(close(number));
      }
      offset += bytes.size();
      left = left.subspan(bytes.size());
    }
  }
  return whole;
}

std::vector<UploadPart> UploadParts::finish(std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  total_ = total;
  if (total <= part_size_ && !open_.empty()) {
    Open& first = open_[0];
    for (auto part = std::next(open_.begin()); part != open_.end(); part = open_.erase(part)) {
      first.pieces.merge(part->second.pieces);
      first.filled += part->second.filled;
    }
  }
  std::vector<UploadPart> whole;
  while (!open_.empty()) {
    const auto& [number, part] = *open_.begin();
    if (part.filled != size_of(number)) {
      throw Error(ErrorKind::Internal,
                  "part " + std::to_string(number + 1) + " of an upload was not written in whole");
    }
    whole.push_back(close(number));
  }
  return whole;
}

std::uint64_t UploadParts::held() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [number, part] : open_) bytes += part.filled;
  return bytes;
}

std::uint64_t UploadParts::size_of(std::uint64_t number) const {
  const std::uint64_t begin = number * part_size_;
  if (!total_ || *total_ >= begin + part_size_) return part_size_;
  return *total_ > begin ? *total_ - begin : 0;
}

UploadPart UploadParts::close(std::uint64_t number) {
  UploadPart part(number);
  auto node = open_.extract(number);
  for (auto& [offset, piece] : node.mapped().pieces) {
    part.pieces.push_back(piece.bytes);
    // Moving the vector does not move its bytes, so the piece stays valid.
    if (!piece.copy.empty()) part.copies.push_back(std::move(piece.copy));
  }
  return part;
}

}  // namespace tensorizer
