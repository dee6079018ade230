#include "io/local/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kLargestBlock = 64 << 10;
// Of all file systems that do not tell.
constexpr std::uint64_t kUsualBlock = 4096;
// Bytes that pass through the buffer at a time.
constexpr std::uint64_t kBuffered = 1 << 20;
// Smaller pieces are copied out of the buffer together.
constexpr std::uint64_t kInPlace = 64 << 10;

// Memory of a thread, aligned for every block.
std::byte* buffer() {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<std::byte, Free> memory;
  if (!memory) {
    memory.reset(
        static_cast<std::byte*>(std::aligned_alloc(kLargestBlock, kBuffered + 2 * kLargestBlock)));
    if (!memory) throw std::bad_alloc();
  }
  return memory.get();
}

// Returns the size that everything must be a multiple of; 0 if the file cannot be read directly.
std::uint64_t block_of([[maybe_unused]] int file) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(status.stx_dio_offset_align, status.stx_dio_mem_align);
  }
#endif
  return kUsualBlock;
}

// The pieces that are still to be read.
class Rest {
 public:
  explicit Rest(std::span<const Bytes> pieces) : pieces_(pieces) { skip_empty(); }

  bool empty() const { return pieces_.empty(); }
  // Returns what is left of the first piece.
  Bytes first() const { return pieces_.front().subspan(taken_); }

  // Returns how many bytes there are, at most `most`, up to the next piece that is large.
  std::uint64_t until_large(std::uint64_t most) const {
    std::uint64_t size = first().size();
    for (std::size_t i = 1; i < pieces_.size() && size < most; ++i) {
      if (pieces_[i].size() >= kInPlace) break;
      size += pieces_[i].size();
    }
    return std::min(size, most);
  }

  void advance(std::uint64_t size) {
    while (size > 0) {
      const std::uint64_t moved = std::min<std::uint64_t>(size, first().size());
      taken_ += moved;
      size -= moved;
      skip_empty();
    }
  }

  void fill(ConstBytes bytes) {
    while (!bytes.empty()) {
      const std::size_t size = std::min(bytes.size(), first().size());
      std::memcpy(first().data(), bytes.data(), size);
      bytes = bytes.subspan(size);
      advance(size);
    }
  }

  std::vector<Bytes> all() const {
    std::vector<Bytes> left(pieces_.begin(), pieces_.end());
    if (!left.empty()) left.front() = first();
    return left;
  }

 private:
  void skip_empty() {
    while (!pieces_.empty() && taken_ == pieces_.front().size()) {
      pieces_ = pieces_.subspan(1);
      taken_ = 0;
    }
  }

  std::span<const Bytes> pieces_;
  std::uint64_t taken_ = 0;  // of the first one
};

}  // namespace

std::unique_ptr<DirectFile> DirectFile::open(int file, const std::string& path) {
  const std::uint64_t block = block_of(file);
  if (block == 0 || block > kLargestBlock || !std::has_single_bit(block)) return nullptr;
  Descriptor direct =
      open_descriptor(AT_FDCWD, "/proc/self/fd/" + std::to_string(file), O_RDONLY | O_DIRECT);
  if (!direct) return nullptr;
  return std::unique_ptr<DirectFile>(new DirectFile(file, std::move(direct), block, path));
}

std::uint64_t DirectFile::read_at(std::uint64_t offset, std::span<const Bytes> pieces,
                                  Cancel& cancel) {
  Rest rest(pieces);
  std::uint64_t done = 0;
  while (!rest.empty()) {
    if (refused_)
      return done + tensorizer::read_at(file_, offset + done, rest.all(), path_, cancel);
    cancel.check();
    const std::uint64_t at = offset + done;
    const std::uint64_t skipped = at % block_;  // in front of it in its block
    const Bytes piece = rest.first();
    // The part of the piece that has whole blocks of the file.
    const std::uint64_t before = std::min<std::uint64_t>((block_ - skipped) % block_, piece.size());
    const Bytes blocks = piece.subspan(before);
    const bool aligned = reinterpret_cast<std::uintptr_t>(blocks.data()) % block_ == 0;
    const bool in_place = aligned && blocks.size() >= std::max(kInPlace, block_);
    const std::uint64_t middle =
        in_place ? std::min<std::uint64_t>(blocks.size(), IoCursor::kMost) / block_ * block_ : 0;
    const std::uint64_t behind =
        in_place && blocks.size() - middle < block_ ? blocks.size() - middle : 0;
    std::uint64_t wanted = before + middle + behind;
    if (!in_place) {
      wanted = rest.until_large(kBuffered);
      // The next read begins with a block.
      if (wanted == kBuffered) wanted -= (at + wanted) % block_;
    }
    std::byte* const memory = buffer();
    std::array<iovec, 3> vectors;
    int count = 0;
    const auto add = [&](std::byte* to, std::uint64_t size) {
      if (size > 0) vectors[static_cast<std::size_t>(count++)] = {to, size};
    };
    if (in_place) {
      add(memory, before > 0 ? block_ : 0);
      add(blocks.data(), middle);
      add(memory + block_, behind > 0 ? block_ : 0);
    } else {
      add(memory, align_up(skipped + wanted, block_));
    }
    const ssize_t moved =
        preadv(direct_.get(), vectors.data(), count, static_cast<off_t>(at - skipped));
    if (moved < 0) {
      if (errno == EINTR) continue;
      if (errno != EINVAL) throw system_error(errno, "cannot read", path_);
      refused_ = true;
      continue;
    }
    if (static_cast<std::uint64_t>(moved) <= skipped) break;  // the end of the file
    const std::uint64_t arrived = std::min(static_cast<std::uint64_t>(moved) - skipped, wanted);
    if (in_place) {
      std::memcpy(piece.data(), memory + skipped, std::min(before, arrived));
      if (arrived > before + middle) {
        std::memcpy(blocks.data() + middle, memory + block_, arrived - before - middle);
      }
      rest.advance(arrived);
    } else {
      rest.fill({memory + skipped, arrived});
    }
    done += arrived;
  }
  return done;
}

}  // namespace tensorizer
