#include "io/node/node_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codec/hmac.h"
#include "io/file_lock.h"
#include "io/source.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPrefix = "tensorizer_ops-load-";

// Where locks are, behind all bytes: one of all users, and one of each block.
constexpr std::uint64_t kUsers = std::uint64_t{1} << 60;
constexpr std::uint64_t kBlocks = kUsers + 1;

// The mark of a block that is there.
constexpr std::byte kThere{1};

constexpr auto kWait = std::chrono::milliseconds(1);

struct flock bytes_to_lock(short kind, std::uint64_t begin, std::uint64_t end) {
  struct flock lock = {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(begin);
  lock.l_len = static_cast<off_t>(end - begin);
  return lock;
}

// Locks bytes of an open file. Returns false if somebody else has locked one of them.
bool lock_bytes(int file, short kind, std::uint64_t begin, std::uint64_t end,
                const std::string& path) {
  struct flock lock = bytes_to_lock(kind, begin, end);
  if (fcntl(file, F_OFD_SETLK, &lock) == 0) return true;
  if (errno != EAGAIN && errno != EACCES) throw system_error(errno, "cannot lock", path);
  return false;
}

// After the system has ended without writing all that it had in memory, a block that is marked may
// not be there.
std::string boot_of_system(Cancel& cancel) {
  const std::string path = "/proc/sys/kernel/random/boot_id";
  const Descriptor file = open_descriptor(AT_FDCWD, path, O_RDONLY);
  if (!file) throw system_error(errno, "cannot open", path);
  std::string boot(64, '\0');
  const Bytes piece = std::as_writable_bytes(std::span(boot));
  boot.resize(read_at(file.get(), 0, {&piece, 1}, path, cancel));
  return boot;
}

std::string name_of(const std::string& content, Cancel& cancel) {
  const std::string all =
      content + '\n' + std::to_string(geteuid()) + '\n' + boot_of_system(cancel);
  return std::string(kPrefix) + to_hex(sha256(as_bytes(all))).substr(0, 32);
}

}  // namespace

NodeFile::NodeFile(const std::string& folder, const std::string& content, std::uint64_t size,
                   Cancel& cancel)
    : folder_(folder),
      path_((std::filesystem::path(folder) / name_of(content, cancel)).string()),
      blocks_at_(align_up(size, kBlock)) {
  if (size >= kUsers) throw system_error(EFBIG, "cannot grow", path_);
  std::error_code failure;
  std::filesystem::create_directories(folder_, failure);
  if (failure) throw system_error(failure.value(), "cannot create", folder_);
  open(cancel);
  if (ftruncate(file_.get(), static_cast<off_t>(blocks_at_ + blocks_at_ / kBlock)) != 0) {
    const int failure = errno;
    leave();
    throw system_error(failure, "cannot grow", path_);
  }
}

// A file is removed only by who has locked it alone. So one that still has its name when this
// process has locked it, too, keeps the name.
void NodeFile::open(Cancel& cancel) {
  do {
    file_ = open_unblocked(path_, O_RDWR | O_NOFOLLOW, cancel);
    if (!file_ && errno == ENOENT) {
      remove_unused();
      file_ = open_unblocked(path_, O_CREAT | O_RDWR | O_NOFOLLOW, cancel, 0600);
    }
    if (!file_) throw system_error(errno, "cannot open", path_);
    struct stat status;
    if (fstat(file_.get(), &status) != 0) throw system_error(errno, "cannot look at", path_);
    // A link may be to another file of this user, which would be overwritten.
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0077) != 0 ||
        status.st_nlink > 1) {
      throw system_error(EACCES, "cannot trust what others can write:", path_);
    }
    while (!lock_bytes(file_.get(), F_RDLCK, kUsers, kUsers + 1, path_)) cancel.sleep(kWait);
  } while (!has_name(file_));
}

NodeFile::~NodeFile() { leave(); }

void NodeFile::leave() {
  try {
    // First, or those that leave at the same moment would take each other for users.
    lock_bytes(file_.get(), F_UNLCK, kUsers, kUsers + 1, path_);
    if (lock_bytes(file_.get(), F_WRLCK, kUsers, kUsers + 1, path_) && has_name(file_)) {
      unlink(path_.c_str());
    }
  } catch (const Error&) {  // the file stays
  }
}

void NodeFile::remove_unused() const {
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, failure)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    const Descriptor file =
        open_descriptor(AT_FDCWD, entry.path(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (file && lock_bytes(file.get(), F_WRLCK, kUsers, kUsers + 1, entry.path())) {
      unlink(entry.path().c_str());
    }
  }
}

// Returns the blocks from `begin` on that are there, or else those that are not.
NodeFile::Run NodeFile::marked(std::uint64_t begin, std::uint64_t end, Cancel& cancel) const {
  std::vector<std::byte> marks(end - begin);
  const Bytes piece(marks);
  read_at(file_.get(), blocks_at_ + begin, {&piece, 1}, path_, cancel);
  const auto other = std::ranges::find_if(marks, [&](std::byte mark) { return mark != marks[0]; });
  return {marks[0] == kThere ? State::There : State::Awaited, begin,
          begin + static_cast<std::uint64_t>(other - marks.begin()), Descriptor()};
}

NodeFile::Run NodeFile::next(std::uint64_t begin, std::uint64_t end, Cancel& cancel) const {
  Run run = marked(begin, end, cancel);
  if (run.state == State::There) return run;
  // A lock keeps out those that lock by way of other descriptors.
  Descriptor claim =
      open_descriptor(AT_FDCWD, "/proc/self/fd/" + std::to_string(file_.get()), O_RDWR);
  if (!claim) throw system_error(errno, "cannot open again", path_);
  while (!lock_bytes(claim.get(), F_WRLCK, kBlocks + begin, kBlocks + run.end, path_)) {
    struct flock other = bytes_to_lock(F_WRLCK, kBlocks + begin, kBlocks + run.end);
    if (fcntl(claim.get(), F_OFD_GETLK, &other) != 0) {
      throw system_error(errno, "cannot lock", path_);
    }
    if (other.l_type == F_UNLCK) continue;  // it was let go of meanwhile
    const std::uint64_t from = static_cast<std::uint64_t>(other.l_start) - kBlocks;
    if (from <= begin) {
      run.end = std::min(run.end, from + static_cast<std::uint64_t>(other.l_len));
      return run;
    }
    run.end = from;
  }
  // Others may have fetched some before the lock was taken.
  run = marked(begin, run.end, cancel);
  if (run.state == State::There) return run;
  run.state = State::Claimed;
  run.claim = std::move(claim);
  return run;
}

void NodeFile::put(const Run& run, std::span<const ConstBytes> bytes, Cancel& cancel) const {
  write_at(file_.get(), run.begin * kBlock, bytes, path_, cancel);
  const std::vector<std::byte> marks(run.end - run.begin, kThere);
  const ConstBytes piece(marks);
  write_at(file_.get(), blocks_at_ + run.begin, {&piece, 1}, path_, cancel);
}

void NodeFile::replace(std::uint64_t offset, ConstBytes bytes, Cancel& cancel) const {
  write_at(file_.get(), offset, {&bytes, 1}, path_, cancel);
}

void NodeFile::read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) const {
  const std::uint64_t wanted = total_size(pieces);
  const std::uint64_t got = read_at(file_.get(), offset, pieces, path_, cancel);
  if (got < wanted) throw_source_ended(quote(path_), offset + got, wanted - got);
}

}  // namespace tensorizer
