#include "io/local/replacement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/world.h"
#include "io/local/access.h"
#include "io/local/open.h"
#include "io/planted.h"

namespace tensorizer {

namespace {

bool is_refusal(int system_errno) {
  return system_errno == EACCES || system_errno == EPERM || system_errno == EROFS;
}

constexpr const char* kPrefix = ".tensorizer-";

std::string temporary_name() {
  char text[64];
  std::snprintf(text, sizeof(text), "%s%d-%08x%08x", kPrefix, static_cast<int>(getpid()),
                random_number(), random_number());
  return text;
}

// Returns false if rename() in `folder` refuses to put another file over `target`.
bool allows_rename(const struct stat& folder, const struct stat& target) {
  const uid_t user = geteuid();
  return (folder.st_mode & S_ISVTX) == 0 || user == 0 || user == target.st_uid ||
         user == folder.st_uid;
}

bool is_mount_point(int folder, const std::string& name) {
  struct statx details;
  return statx(folder, name.c_str(), AT_SYMLINK_NOFOLLOW, 0, &details) == 0 &&
         (details.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// Opens a file whose access rights a new one gets. Returns an empty Descriptor if there is none, or
// another user may have made it.
Descriptor open_example(const std::string& path) {
  const std::string file = follow_links(path);
  const std::size_t name = file.rfind('/') + 1;  // npos + 1 is 0
  const Descriptor folder =
      open_descriptor(AT_FDCWD, name == 0 ? "." : file.substr(0, name), O_PATH | O_DIRECTORY);
  Descriptor example = open_descriptor(folder.get(), file.substr(name), O_PATH | O_NOFOLLOW);
  struct stat above;
  struct stat status;
  const bool known = fstat(folder.get(), &above) == 0 && fstat(example.get(), &status) == 0;
  if (!known || !S_ISREG(status.st_mode) || may_be_planted(above, status)) return {};
  return example;
}

}  // namespace

Replacement::Replacement(const std::string& path, std::string folder, std::string name)
    : path_(path), folder_(std::move(folder)), name_(std::move(name)) {}

std::unique_ptr<Replacement> Replacement::of(const std::string& path) {
  if (path.ends_with('/')) throw system_error(EISDIR, "cannot save to", path);
  const std::size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return std::unique_ptr<Replacement>(
      new Replacement(path, std::move(folder), path.substr(slash + 1)));  // npos + 1 is 0
}

std::unique_ptr<Replacement> Replacement::create(const std::string& path, bool named,
                                                 const std::string& older) {
  std::unique_ptr<Replacement> made = of(path);
  made->folder_descriptor_ = open_descriptor(AT_FDCWD, made->folder_, O_PATH | O_DIRECTORY);
  if (!made->folder_descriptor_) {
    if (errno != ENOENT) throw system_error(errno, "cannot save to", path);
    made->folders_.create(made->folder_, path);
    made->folder_descriptor_ = open_descriptor(AT_FDCWD, made->folder_, O_PATH | O_DIRECTORY);
    if (!made->folder_descriptor_) throw system_error(errno, "cannot save to", path);
  }
  const int parent = made->folder_descriptor_.get();
  const Descriptor target = open_descriptor(parent, made->name_, O_PATH | O_NOFOLLOW);
  bool exists = static_cast<bool>(target);
  if (!exists && errno != ENOENT) throw system_error(errno, "cannot save to", path);
  struct stat status;
  if (exists && fstat(target.get(), &status) != 0) {
    throw system_error(errno, "cannot examine", path);
  }
  if (exists && S_ISDIR(status.st_mode)) throw system_error(EISDIR, "cannot save to", path);
  struct stat above;
  if (fstat(parent, &above) != 0) throw system_error(errno, "cannot save to", path);
  const bool planted = exists && S_ISREG(status.st_mode) && may_be_planted(above, status);
  if (planted && !allows_rename(above, status)) {
    throw Error(ErrorKind::PermissionDenied,
                "cannot save to " + quote(path, 4096) +
                    ": it belongs to another user, who could change what is saved there, in a "
                    "folder in which all may create files: save to another name",
                EACCES, path);
  }
  if (exists && !allows_rename(above, status)) return nullptr;
  if (exists && is_mount_point(parent, made->name_)) return nullptr;
  if (planted) exists = false;  // it is neither written in place nor an example
  const bool keeps = exists && S_ISREG(status.st_mode);
  Descriptor like;
  if (!exists && !older.empty()) like = open_example(older);
  // Only the owner may open it until it has the access rights of the target.
  if (!made->create_file(exists, keeps || like ? 0600 : 0666, named)) return nullptr;
  if (keeps) keep_access(target.get(), path, made->file());
  if (like) keep_access(like.get(), older, made->file());
  return made;
}

std::unique_ptr<Replacement> Replacement::join(const std::string& path, const std::string& name) {
  if (!name.starts_with(kPrefix) || name.find('/') != std::string::npos) {
    throw Error(ErrorKind::InvalidArgument, quote(name) + " is no file that is being saved");
  }
  std::unique_ptr<Replacement> joined = of(path);
  joined->folder_descriptor_ = open_descriptor(AT_FDCWD, joined->folder_, O_PATH | O_DIRECTORY);
  if (joined->folder_descriptor_) {
    joined->file_ = open_descriptor(joined->folder_descriptor_.get(), name, O_RDWR | O_NOFOLLOW);
  }
  if (!joined->file_) {
    if (errno != ENOENT) throw system_error(errno, "cannot save to", path);
    throw system_error(ENOENT,
                       "this process does not see what another one has begun to save, in the "
                       "folder of",
                       path);
  }
  joined->temporary_ = name;
  return joined;
}

Replacement::~Replacement() {
  if (committed_ || temporary_.empty()) return;
  unlinkat(folder_descriptor_.get(), temporary_.c_str(), 0);
}

// Returns false if the system refuses and there is a target (`exists`). Throws if there is none.
bool Replacement::create_file(bool exists, unsigned mode, bool named) {
  const int parent = folder_descriptor_.get();
  // An unnamed file can be linked to a name only through /proc.
  if (!named && access("/proc/self/fd", X_OK) == 0) {
    file_ = open_descriptor(parent, ".", O_TMPFILE | O_RDWR, mode);
  }
  while (!file_) {
    std::string name = temporary_name();
    file_ = open_descriptor(parent, name, O_CREAT | O_EXCL | O_RDWR, mode);
    if (file_) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST) {
      if (exists && is_refusal(errno)) return false;
      throw system_error(errno, "cannot create a file in the folder of", path_);
    }
  }
  return true;
}

void Replacement::publish() {
  const int parent = folder_descriptor_.get();
  if (temporary_.empty()) {
    const std::string unnamed = "/proc/self/fd/" + std::to_string(file_.get());
    if (linkat(AT_FDCWD, unnamed.c_str(), parent, name_.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
    // linkat() does not replace a target that exists: link to a temporary name, then rename.
    while (errno == EEXIST && temporary_.empty()) {
      std::string name = temporary_name();
      if (linkat(AT_FDCWD, unnamed.c_str(), parent, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        temporary_ = std::move(name);
      }
    }
    if (temporary_.empty()) throw system_error(errno, "cannot save to", path_);
  } else if (const int status = file_.close(); status != 0) {
    throw_write_error(status, path_);
  }
  if (renameat(parent, temporary_.c_str(), parent, name_.c_str()) != 0) {
    throw system_error(errno, "cannot replace", path_);
  }
}

void Replacement::commit(bool fsync) {
  Descriptor folder;
  if (fsync) folder = open_folder(folder_descriptor_.get(), ".");
  publish();
  committed_ = true;
  file_.close();
  if (!fsync) return;
  sync_folder(folder, folder_);
  folders_.sync();
}

}  // namespace tensorizer
