// Replaces a small file, if nobody else has.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "io/file_lock.h"
#include "io/local/open.h"
#include "io/local/replacement.h"
#include "io/new_folders.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// Returns whether the file has this content; null is no file.
bool has_content(const std::string& path, std::optional<ConstBytes> content, Cancel& cancel) {
  const Descriptor file = open_unblocked(path, O_RDONLY, cancel);
  if (!file && errno != ENOENT) throw system_error(errno, "cannot open", path);
  if (!file || !content) return !file && !content;
  struct stat status;
  if (fstat(file.get(), &status) != 0) throw system_error(errno, "cannot examine", path);
  if (S_ISDIR(status.st_mode)) throw system_error(EISDIR, "cannot save to", path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::InvalidArgument, quote(path, 4096) + " is not a regular file");
  }
  std::vector<std::byte> bytes(content->size() + 1);
  const Bytes room(bytes);
  bytes.resize(read_at(file.get(), 0, {&room, 1}, path, cancel));
  return std::ranges::equal(bytes, *content);
}

}  // namespace

bool swap_local_file(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
                     const SinkOptions& options, Cancel& cancel) {
  const std::string path = local_path(split_uri(uri));
  const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  const std::string folder = path.substr(0, name);
  NewFolders folders;
  if (!folder.empty()) folders.create(folder, path);
  const FileLock turn(folder + "." + path.substr(name) + ".swap", cancel);
  if (!turn.holds()) {
    throw Error(ErrorKind::InvalidArgument, "no file can be locked in the folder of " +
                                                quote(path, 4096) +
                                                ", so others could change it at the same time");
  }
  if (!has_content(path, known, cancel)) return has_content(path, next, cancel);
  const std::unique_ptr<Replacement> file = Replacement::create(path);
  if (!file) throw system_error(EACCES, "cannot replace", path);
  write_at(file->file(), 0, {&next, 1}, path, cancel);
  if (options.fsync && fdatasync(file->file()) != 0) throw_write_error(errno, path);
  file->commit(options.fsync);
  if (options.fsync) folders.sync();
  return true;
}

}  // namespace tensorizer
