#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <random>
#include <utility>

#include "base/control_groups.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number.h"
#include "base/world.h"
#include "io/local/direct_file.h"
#include "io/local/open.h"

namespace tensorizer {

namespace {

// Measured on a virtual disk with a cold file: 0.8 GB/s with 2 readers, 1.7 with 8, 2.0 with 16,
// and no more with 32.
constexpr int kColdReadsInFlight = 16;
// Small enough to be in the processor's cache still when its CRC32 is computed.
constexpr std::uint64_t kWarmPiece = 256 << 10;
// The system call of one more read takes as long as copying a page from the cache.
constexpr std::uint64_t kWarmReadCost = 4 << 10;
constexpr int kSamples = 16;
// The bytes that the system is asked to bring into the page cache at a time, and in all.
constexpr std::uint64_t kCachedStep = 1 << 20;
constexpr std::uint64_t kCachedAhead = 16 << 20;
// With no more cold samples than this, a file counts as warm: other use of memory evicts a few
// pages of warm files as well.
constexpr int kFewSamples = 2;

std::uint64_t file_size(int file, const std::string& name) {
  struct stat status;
  if (fstat(file, &status) != 0) throw system_error(errno, "cannot examine", name);
  if (!S_ISBLK(status.st_mode)) return static_cast<std::uint64_t>(status.st_size);
  std::uint64_t size = 0;
  if (ioctl(file, BLKGETSIZE64, &size) != 0) throw system_error(errno, "cannot measure", name);
  return size;
}

bool is_of(int file, std::initializer_list<std::uint32_t> file_systems) {
  struct statfs status;
  if (fstatfs(file, &status) != 0) return false;
  return std::ranges::find(file_systems, static_cast<std::uint32_t>(status.f_type)) !=
         file_systems.end();
}

bool lives_in_memory(int file) { return is_of(file, {TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC}); }

// Returns whether the file is read from a server, whose client has reasons for its cache.
bool is_remote(int file) {
  constexpr std::uint32_t kCifs = 0xff534d42;  // which older headers lack, as the next ones
  constexpr std::uint32_t kSmb2 = 0xfe534d42;
  constexpr std::uint32_t kFuse = 0x65735546;
  constexpr std::uint32_t kCeph = 0x00c36400;
  constexpr std::uint32_t kLustre = 0x0bd00bd0;
  return is_of(file, {NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, V9FS_MAGIC, AFS_SUPER_MAGIC,
                      CODA_SUPER_MAGIC, kCifs, kSmb2, kFuse, kCeph, kLustre});
}

// Returns a number in a file of /proc or /sys; null if there is none.
std::optional<std::uint64_t> number_in(const std::string& path, std::string_view before) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(before)) continue;
    const std::size_t begin = line.find_first_of("0123456789", before.size());
    if (begin == std::string::npos) return std::nullopt;
    const std::size_t end = line.find_first_not_of("0123456789", begin);
    return parse_number(std::string_view(line).substr(begin, end - begin));
  }
  return std::nullopt;
}

// Returns about how many bytes the page cache can hold: what is available to this machine, at most
// the limits of containers.
std::uint64_t room_in_cache() {
  constexpr auto kNoLimit = std::numeric_limits<std::uint64_t>::max();
  const auto kibibytes = number_in("/proc/meminfo", "MemAvailable:");
  std::uint64_t room = kibibytes ? *kibibytes << 10 : kNoLimit;
  for_each_control_group("memory", [&](const std::string& directory, bool unified) {
    const char* const file = unified ? "/memory.max" : "/memory.limit_in_bytes";
    room = std::min(room, number_in(directory + file, "").value_or(kNoLimit));
  });
  return room;
}

// Returns false if the file system does not support mapping, or the address space is limited:
// reading still works.
template <typename Map>
bool is_mapped(const Map& map) {
  try {
    map();
    return true;
  } catch (const Error& error) {
    if (error.system_errno() == ENODEV || error.system_errno() == ENOMEM) return false;
    throw;
  }
}

class FileSource : public Source {
 public:
  FileSource(Descriptor file, std::uint64_t start, const std::string& name, FileAccess access)
      : file_(std::move(file)),
        start_(start),
        access_(access),
        size_(file_size(file_.get(), name)),
        identity_(identity_of(file_.get())),
        name_(name),
        label_(quote(name, 4096)) {
    if (access == FileAccess::Direct) goes_direct_ = can_go_direct();
  }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t wanted = total_size(pieces);
    const std::uint64_t done = read_some(offset, pieces, cancel);
    if (done == wanted) return;
    if (offset + wanted <= size_) throw_truncated(offset + done);
    throw_source_ended(label_, offset + done, wanted - done);
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return read_some(offset, {&out, 1}, cancel);
  }

  std::optional<std::uint64_t> size() const override { return size_; }
  std::uint64_t start() const override { return start_; }

  std::optional<std::string> version() const override {
    struct stat status;
    if (fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    std::string text;
    for (const auto part :
         {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
          static_cast<std::int64_t>(status.st_size),
          static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec)}) {
      text += std::to_string(part) + " ";
    }
    return text;
  }

  std::shared_ptr<Mapping> map() override {
    if (size_ == 0) return nullptr;
    std::shared_ptr<Mapping> mapping;
    const auto make = [&] { mapping = std::make_shared<Mapping>(file_.get(), size_, name_); };
    return is_mapped(make) ? mapping : nullptr;
  }

  bool map_into(Mapping& mapping, std::uint64_t position) override {
    return is_mapped([&] { mapping.add(file_.get(), position, size_, name_); });
  }

  std::optional<FileIdentity> identity() const override { return identity_; }

  ReadHints hints(std::uint64_t offset, std::uint64_t length) override {
    ReadHints hints;
    if (goes_direct_ || is_cold(offset, length)) {
      // A file that does not fit into the page cache would evict all others, and be read again.
      if (access_ == FileAccess::Auto && !goes_direct_ && length > room_in_cache() / 2 &&
          !is_remote(file_.get())) {
        goes_direct_ = can_go_direct();
      }
      hints.reads_in_flight = kColdReadsInFlight;
    } else {
      hints.read_size = kReadFromMemory;
      hints.cached_size = kWarmPiece;
      hints.read_cost = kWarmReadCost;
    }
    return hints;
  }

  bool cache(std::uint64_t offset, std::uint64_t size, Cancel& cancel) override {
    if (access_ == FileAccess::Direct && can_go_direct()) return false;
    const std::uint64_t end = std::min(offset + size, size_);
    for (std::uint64_t at = offset, asked = offset; at < end; at += kCachedStep) {
      cancel.check();
      // The disk has many requests at a time, and the host waits for the first of them.
      for (; asked < std::min(end, at + kCachedAhead); asked += kCachedStep) {
        posix_fadvise(file_.get(), static_cast<off_t>(asked),
                      static_cast<off_t>(std::min(kCachedStep, end - asked)), POSIX_FADV_WILLNEED);
      }
      std::byte last;
      const Bytes piece(&last, 1);
      const std::uint64_t place = std::min(at + kCachedStep, end) - 1;
      if (read_at(file_.get(), place, {&piece, 1}, name_, cancel) == 0) throw_truncated(place);
    }
    return true;
  }

  std::uint64_t block() const override { return goes_direct_ ? direct_->block() : 1; }

  const std::string& label() const override { return label_; }

 private:
  std::uint64_t read_some(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
    if (offset >= size_) return 0;  // files of /proc, of size 0, may block: a link leads to kmsg
    return goes_direct_ ? direct_->read_at(offset, pieces, cancel)
                        : read_at(file_.get(), offset, pieces, name_, cancel);
  }

  // `end`: an offset at which the file has no bytes any more.
  [[noreturn]] void throw_truncated(std::uint64_t end) const {
    end = std::min(end, file_size(file_.get(), name_));
    throw Error(ErrorKind::InvalidFormat,
                label_ + " ends at byte " + std::to_string(end) + ", but had " +
                    std::to_string(size_) +
                    " bytes when it was opened: it was truncated since; to replace a file, "
                    "rename another one over it");
  }

  // Opens the file for reads around the page cache. Returns false, and says so once in the log, if
  // the file system has no such reads.
  bool can_go_direct() {
    if (lives_in_memory(file_.get())) return false;
    const std::lock_guard lock(opening_direct_);
    if (!direct_) direct_ = DirectFile::open(file_.get(), name_);
    if (!direct_ && !std::exchange(said_, true)) {
      log(label_ + " is read through the page cache: its file system has no other way");
    }
    return direct_ != nullptr;
  }

  // Returns true if the range is mostly not in the page cache, judged by single bytes spread over
  // it.
  bool is_cold(std::uint64_t offset, std::uint64_t length) const {
    if (offset >= size_) return false;
    length = std::min(length, size_ - offset);
    if (length == 0) return false;
    // Sampling a cold page makes the system fetch it, so each call takes samples elsewhere.
    std::minstd_rand random(random_number());
    const std::uint64_t step = std::max<std::uint64_t>(length / kSamples, 1);
    int cold = 0;
    for (std::uint64_t sample = 0; sample < kSamples && sample * step < length; ++sample) {
      const std::uint64_t jitter =
          std::uniform_int_distribution<std::uint64_t>(0, step - 1)(random);
      std::byte byte;
      const iovec vector{&byte, 1};
      const auto at = static_cast<off_t>(offset + sample * step + jitter);
      if (preadv2(file_.get(), &vector, 1, at, RWF_NOWAIT) >= 0) continue;
      if (errno == EOPNOTSUPP) return !lives_in_memory(file_.get());
      ++cold;
    }
    return cold > kFewSamples;
  }

  const Descriptor file_;
  const std::uint64_t start_;
  const FileAccess access_;
  const std::uint64_t size_;
  const std::optional<FileIdentity> identity_;
  const std::string name_;
  const std::string label_;
  std::mutex opening_direct_;
  std::unique_ptr<DirectFile> direct_;  // set before goes_direct_
  bool said_ = false;
  std::atomic<bool> goes_direct_ = false;
};

}  // namespace

std::unique_ptr<Source> file_source(Descriptor file, std::uint64_t start, const std::string& name,
                                    FileAccess access) {
  return std::make_unique<FileSource>(std::move(file), start, name, access);
}

}  // namespace tensorizer
