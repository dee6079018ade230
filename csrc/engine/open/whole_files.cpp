#include "engine/open/whole_files.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kPiece = 1 << 20;

void compare(WholeFile& file) {
  const std::string found = file.hash.finish();
  if (found == file.digest.hex) return;
  throw Error(ErrorKind::HashMismatch, file.label + ": the " + file.digest.name() +
                                           " of all its bytes is " + found +
                                           ", and its server says " + file.digest.hex +
                                           ": it arrived damaged, or is damaged there");
}

}  // namespace

std::optional<WholeFile> whole_file(Source& file, ConstBytes head) {
  const std::optional<WholeDigest> digest = file.digest();
  if (!digest || !file.size() || file.sequential()) return std::nullopt;
  WholeHash hash(digest->hash, *file.size());
  hash.update(head);
  return WholeFile{0, *file.size(), file.label(), *digest, std::move(hash), head.size()};
}

void check_whole(Source& file, ConstBytes bytes) {
  if (std::optional<WholeFile> whole = whole_file(file, bytes)) compare(*whole);
}

void WholeFilesSource::read_distinct(std::uint64_t offset, std::span<const Bytes> pieces,
                                     Cancel& cancel) {
  file_->read(offset, pieces, cancel);
  WholeFile& file = *std::ranges::upper_bound(files_, offset, {}, &WholeFile::end);
  std::unique_lock lock(mutex_);
  while (file.hashed < offset) cancel.wait(changed_, lock);
  if (file.hashed > offset) throw Error(ErrorKind::Internal, "bytes were read twice to be hashed");
  lock.unlock();
  for (const Bytes piece : pieces) file.hash.update(piece);
  lock.lock();
  file.hashed += total_size(pieces);
  changed_.notify_all();
}

void WholeFilesSource::check(Cancel& cancel) {
  std::vector<std::byte> bytes;
  for (WholeFile& file : files_) {
    while (file.hashed < file.end) {
      bytes.resize(std::min(kPiece, file.end - file.hashed));
      const Bytes piece(bytes);
      read(file.hashed, {&piece, 1}, cancel);
    }
    compare(file);
  }
}

}  // namespace tensorizer
