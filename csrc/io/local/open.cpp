#include "io/local/open.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "io/local/missing_file.h"
#include "io/planted.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// How often to check whether a FIFO has a reader; the system offers no way to wait for one.
constexpr std::chrono::milliseconds kReaderInterval{5};

struct stat examine(int descriptor, const std::string& name) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) throw system_error(errno, "cannot open", name);
  return status;
}

bool has_offsets(const struct stat& status) {
  return S_ISREG(status.st_mode) || S_ISBLK(status.st_mode);
}

bool is_stream(const struct stat& status) {
  return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) || S_ISSOCK(status.st_mode);
}

[[noreturn]] void throw_unusable(const std::string& doing, const std::string& name,
                                 const struct stat& status) {
  if (S_ISDIR(status.st_mode)) throw system_error(EISDIR, doing, name);
  throw Error(ErrorKind::InvalidArgument,
              doing + " " + quote(name, 4096) + ": it is neither a file nor a stream of bytes");
}

Descriptor duplicate(int number, const std::string& name) {
  Descriptor copy(fcntl(number, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_error(errno, "cannot open", name);
  return copy;
}

std::uint64_t position_of(const Descriptor& file, const std::string& name) {
  const off_t position = lseek(file.get(), 0, SEEK_CUR);
  if (position < 0) throw system_error(errno, "cannot find the position of", name);
  return static_cast<std::uint64_t>(position);
}

int status_flags(int number, const std::string& name) {
  const int flags = fcntl(number, F_GETFL);
  if (flags < 0) throw system_error(errno, "cannot open", name);
  return flags;
}

bool is_in_proc(const std::string& path) {
  struct stat proc;
  struct stat link;
  return stat("/proc", &proc) == 0 && lstat(path.c_str(), &link) == 0 && link.st_dev == proc.st_dev;
}

[[noreturn]] void refuse_planted(const std::string& path, const std::string& kind) {
  throw Error(ErrorKind::PermissionDenied,
              "cannot save to " + quote(path, 4096) + ": it is a " + kind +
                  " of another user, in a folder in which all may create files: save to another "
                  "name",
              EACCES, path);
}

Descriptor open_fifo_for_writing(const std::string& path, Cancel& cancel) {
  for (;;) {
    Descriptor fifo = open_descriptor(AT_FDCWD, path, O_WRONLY | O_NONBLOCK);
    if (fifo) return fifo;
    if (errno != ENXIO) throw system_error(errno, "cannot save to", path);
    cancel.sleep(kReaderInterval);
  }
}

std::unique_ptr<Sink> open_in_place(const std::string& path, InPlaceEnd end,
                                    const SinkOptions& options, Cancel& cancel) {
  // Reading is needed only to move the body up behind a head that outgrows its room.
  Descriptor file = open_unblocked(path, O_RDWR, cancel);
  if (!file && errno == EACCES) file = open_unblocked(path, O_WRONLY, cancel);
  if (!file) throw system_error(errno, "cannot save to", path);
  fcntl(file.get(), F_SETFL, 0);
  return in_place_sink(std::move(file), 0, end, path, options);
}

// Replacing a file needs no right to write it, so it would bypass a write protection.
void must_be_writable(const std::string& path) {
  if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0 && errno != ENOENT) {
    throw system_error(errno, "cannot save to", path);
  }
}

std::unique_ptr<Sink> open_file_sink(const std::string& path, const SinkOptions& options,
                                     Cancel& cancel) {
  must_be_writable(path);
  if (const std::string target = follow_links(path); !target.empty()) {
    if (std::unique_ptr<Sink> sink = replacing_sink(target, options)) return sink;
  }
  return open_in_place(path, InPlaceEnd::Cut, options, cancel);
}

// `name`: for messages.
std::unique_ptr<Source> open_descriptor_source(int number, const std::string& name,
                                               FileAccess access) {
  if ((status_flags(number, name) & O_ACCMODE) == O_WRONLY) {
    throw Error(ErrorKind::InvalidArgument, quote(name) + " is not open for reading");
  }
  Descriptor file = duplicate(number, name);
  const struct stat status = examine(file.get(), name);
  if (is_stream(status)) return stream_source(std::move(file), name);
  if (!has_offsets(status)) throw_unusable("cannot open", name, status);
  const std::uint64_t start = position_of(file, name);
  return file_source(std::move(file), start, name, access);
}

std::unique_ptr<Source> open_path_source(const std::string& path, FileAccess access,
                                         Cancel& cancel) {
  if (const int number = descriptor_alias(path); number >= 0) {
    return open_descriptor_source(number, path, access);
  }
  Descriptor file = open_unblocked(path, O_RDONLY | O_NOCTTY, cancel);
  if (!file) {
    const int number = errno;
    const Error error = system_error(number, "cannot open", path);
    if (error.kind() != ErrorKind::NotFound) throw error;
    throw Error(error.kind(), std::string(error.message()) + advice_on_missing(path), number, path);
  }
  const struct stat status = examine(file.get(), path);
  if (is_stream(status)) return stream_source(std::move(file), path);
  if (!has_offsets(status)) throw_unusable("cannot open", path, status);
  fcntl(file.get(), F_SETFL, 0);
  return file_source(std::move(file), 0, path, access);
}

std::unique_ptr<Sink> open_descriptor_sink(int number, const std::string& name,
                                           const SinkOptions& options) {
  const int flags = status_flags(number, name);
  const struct stat status = examine(number, name);
  if (!has_offsets(status) && !is_stream(status)) throw_unusable("cannot save to", name, status);
  if ((flags & O_ACCMODE) == O_RDONLY) {
    throw Error(ErrorKind::InvalidArgument, quote(name) + " is not open for writing");
  }
  if (has_offsets(status)) {
    if ((flags & O_APPEND) != 0) {
      throw Error(ErrorKind::InvalidArgument,
                  quote(name) +
                      " is open for appending, so the index, which is known last, could "
                      "not be put at the front; open it without O_APPEND");
    }
    Descriptor file = duplicate(number, name);
    const std::uint64_t start = position_of(file, name);
    return in_place_sink(std::move(file), start, InPlaceEnd::MovePosition, name, options);
  }
  if (S_ISFIFO(status.st_mode)) {
    // O_NONBLOCK on a duplicate would affect all processes that share the open pipe. Opening it
    // again gives a file description of our own.
    Descriptor own =
        open_descriptor(AT_FDCWD, "/proc/self/fd/" + std::to_string(number), O_WRONLY | O_NONBLOCK);
    if (own) return stream_sink(std::move(own), true, name);
  }
  return stream_sink(duplicate(number, name), (flags & O_NONBLOCK) != 0, name);
}

std::unique_ptr<Sink> open_path_sink(const std::string& path, const SinkOptions& options,
                                     Cancel& cancel) {
  if (const int number = descriptor_alias(path); number >= 0) {
    return open_descriptor_sink(number, path, options);
  }
  struct stat status;
  const bool exists = lstat(path.c_str(), &status) == 0;
  const bool is_device = exists && (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode));
  if (options.replace_links && !is_device) {
    if (exists && S_ISREG(status.st_mode)) must_be_writable(path);
    if (std::unique_ptr<Sink> sink = replacing_sink(path, options)) return sink;
    throw system_error(EACCES, "cannot replace", path);
  }
  if (stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) throw system_error(errno, "cannot save to", path);
    if (!options.replaces.empty()) must_be_writable(options.replaces);
    return replacing_sink(follow_links(path), options);
  }
  if (S_ISREG(status.st_mode)) return open_file_sink(path, options, cancel);
  if (const std::string target = follow_links(path); may_be_planted(target).value_or(false)) {
    refuse_planted(path, "stream or device");
  }
  if (S_ISBLK(status.st_mode)) return open_in_place(path, InPlaceEnd::Nothing, options, cancel);
  if (S_ISFIFO(status.st_mode)) {
    return stream_sink(open_fifo_for_writing(path, cancel), true, path);
  }
  if (S_ISCHR(status.st_mode)) {
    Descriptor device = open_descriptor(AT_FDCWD, path, O_WRONLY | O_NOCTTY | O_NONBLOCK);
    if (!device) throw system_error(errno, "cannot save to", path);
    return stream_sink(std::move(device), true, path);
  }
  throw_unusable("cannot save to", path, status);
}

}  // namespace

std::string follow_links(std::string path) {
  for (int links = 0; links <= kMostLinks; ++links) {
    std::optional<std::string> target = link_target(path);
    if (!target) {
      if (errno == EINVAL || errno == ENOENT) return path;
      throw system_error(errno, "cannot save to", path);
    }
    if (is_in_proc(path)) return {};
    if (may_be_planted(path).value_or(false)) refuse_planted(path, "link");
    path = std::move(*target);
  }
  throw system_error(ELOOP, "cannot save to", path);
}

std::unique_ptr<Source> open_local_source(const std::string& uri, const SourceOptions& options,
                                          Cancel& cancel) {
  const Uri split = split_uri(uri);
  if (split.scheme == "fd") {
    return open_descriptor_source(parse_descriptor(split.rest), uri, options.file_access);
  }
  return open_path_source(local_path(split), options.file_access, cancel);
}

namespace {

std::unique_ptr<Sink> open_local_sink(const std::string& uri, const SinkOptions& options,
                                      Cancel& cancel) {
  const Uri split = split_uri(uri);
  if (split.scheme == "fd") return open_descriptor_sink(parse_descriptor(split.rest), uri, options);
  return open_path_sink(local_path(split), options, cancel);
}

std::unique_ptr<SharedSink> open_shared_local_sink(const std::string& uri,
                                                   const std::optional<std::string>& joined,
                                                   const SinkOptions& options, Cancel&) {
  const Uri split = split_uri(uri);
  if (split.scheme != "fd") {
    const std::string path = local_path(split);
    struct stat status;
    const bool exists = stat(path.c_str(), &status) == 0;
    if (!exists && errno != ENOENT) throw system_error(errno, "cannot save to", path);
    if (exists && S_ISDIR(status.st_mode)) throw system_error(EISDIR, "cannot save to", path);
    if (!exists || S_ISREG(status.st_mode)) {
      if (exists) must_be_writable(path);
      if (!options.replaces.empty()) must_be_writable(options.replaces);
      const std::string target = options.replace_links ? path : follow_links(path);
      if (!target.empty()) {
        if (auto sink = shared_file_sink(target, joined, options)) return sink;
      }
    }
  }
  throw Error(ErrorKind::InvalidArgument,
              quote(uri, 4096) +
                  " is written in place, which several processes cannot do: save to a file that "
                  "can be replaced, to S3 or to Azure");
}

constexpr UriScheme kFileSchemes[] = {{"", "a plain path"}, {"file", "file://"}};
constexpr UriScheme kDescriptorSchemes[] = {{"fd", "fd:N"}};

}  // namespace

const PlaceKind local_files{
    .folder = "local",
    .schemes = kFileSchemes,
    .on_server = false,
    .open_source = &open_local_source,
    .open_sink = &open_local_sink,
    .open_shared_sink = &open_shared_local_sink,
    .sibling = &local_sibling,
    .file_name = &local_file_name,
    .remove = &remove_local_file,
    .swap = &swap_local_file,
    .files_in = &local_files_in,
};

const PlaceKind local_descriptors{
    .folder = "local",
    .schemes = kDescriptorSchemes,
    .on_server = false,
    .open_source = &open_local_source,
    .open_sink = &open_local_sink,
    .open_shared_sink = &open_shared_local_sink,
};

}  // namespace tensorizer
