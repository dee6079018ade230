#include "io/save_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/number.h"
#include "base/world.h"

namespace tensorizer {

namespace {

namespace fs = std::filesystem;

// A record lists at most two models of a few thousand files.
constexpr std::uint64_t kMostRecord = 16 << 20;

// How many tags are tried.
constexpr int kMostTags = 100;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) throw system_error(error.value(), "cannot list", folder);
  return names;
}

// How the names of all records of a stem begin.
std::string record_start(const std::string& stem) { return "." + stem + ".saving-"; }

bool is_record(std::string_view name, std::string_view start) {
  return name.starts_with(start) && is_tag(name.substr(start.size()));
}

bool is_later(const timespec& a, const timespec& b) {
  return std::pair(a.tv_sec, a.tv_nsec) > std::pair(b.tv_sec, b.tv_nsec);
}

// Returns the files of a record. Their names are not checked.
std::map<std::string, std::uint64_t> parse(std::string_view text) {
  std::map<std::string, std::uint64_t> files;
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    const std::size_t space = line.find(' ');
    const auto size = parse_number(line.substr(0, space));
    if (size && space != line.npos) files.emplace(line.substr(space + 1), *size);
    text.remove_prefix(end + 1);
  }
  return files;
}

// Returns the files that an open record lists and that have not changed since. A file that is newer
// than the record, or of another size, is one that a user has put there.
std::vector<std::string> unchanged(int record, const std::string& folder) {
  struct stat written;
  if (fstat(record, &written) != 0 || !S_ISREG(written.st_mode)) return {};
  std::string text(std::min(static_cast<std::uint64_t>(written.st_size), kMostRecord), '\0');
  Cancel cancel{Cancel::Unattended{}};
  const Bytes bytes = std::as_writable_bytes(std::span(text));
  text.resize(read_at(record, 0, {&bytes, 1}, folder, cancel));
  const std::map<std::string, std::uint64_t> files = parse(text);
  std::vector<std::string> names;
  for (const auto& [name, size] : files) {
    struct stat found;
    if (name.find('/') == name.npos && lstat((folder + name).c_str(), &found) == 0 &&
        static_cast<std::uint64_t>(found.st_size) == size &&
        !is_later(found.st_mtim, written.st_mtim)) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace

std::string random_tag() {
  char text[kTagSize + 1];
  std::snprintf(text, sizeof(text), "%08x", random_number());
  return text;
}

bool is_tag(std::string_view text) {
  return text.size() == kTagSize && text.find_first_not_of("0123456789abcdef") == text.npos;
}

SaveRecord::SaveRecord(const std::string& folder, const std::string& stem, Unneeded unneeded,
                       Cancel& cancel)
    : folder_(folder), stem_(stem), unneeded_(std::move(unneeded)) {
  folders_.create(folder, folder + stem);
  try {
    create(cancel);
  } catch (...) {
    if (!path_.empty()) unlink(path_.c_str());
    throw;
  }
}

SaveRecord::~SaveRecord() {
  try {
    close();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

// The record is there before the folder is read. So of two saves that begin at the same time, at
// least one sees the record of the other.
void SaveRecord::create(Cancel& cancel) {
  for (int tags = 0; tags < kMostTags; ++tags) {
    cancel.check();
    tag_ = random_tag();
    path_ = folder_ + record_start(stem_) + tag_;
    file_ = open_descriptor(AT_FDCWD, path_, O_CREAT | O_EXCL | O_RDWR, 0666);
    if (!file_) {
      path_.clear();
      if (errno == EEXIST) continue;
      throw system_error(errno, "cannot create a file in the folder of", folder_ + stem_);
    }
    const bool is_taken = !lock_file(file_) && errno == EWOULDBLOCK;
    const std::vector<std::string> names = names_in(folder_);
    const auto has_tag = [begin = stem_ + "-" + tag_](const std::string& name) {
      return name.starts_with(begin);
    };
    // Another save takes a record for that of a killed process until it is locked.
    if (!is_taken && has_name(file_) && !std::ranges::any_of(names, has_tag)) {
      clean_up_others(names, cancel);
      return;
    }
    unlink(path_.c_str());
  }
  path_.clear();
  throw system_error(EEXIST, "cannot create a file in the folder of", folder_ + stem_);
}

void SaveRecord::clean_up_others(std::span<const std::string> names, Cancel& cancel) {
  const std::string start = record_start(stem_);
  for (const std::string& name : names) {
    if (!is_record(name, start) || name == start + tag_) continue;
    const std::string path = folder_ + name;
    const Descriptor record = open_unblocked(path, O_RDWR | O_NOFOLLOW, cancel);
    shared_ |= !record || !lock_file(record) || !clean_up(record, path, cancel);
  }
}

bool SaveRecord::clean_up(const Descriptor& record, const std::string& path, Cancel& cancel) const {
  const FileLock turn(lock_path(), cancel);
  try {
    remove_listed(record.get());
  } catch (const Error&) {
    return false;
  }
  return unlink(path.c_str()) == 0;
}

std::vector<std::string> SaveRecord::listed(const std::string& folder, const std::string& stem) {
  const std::string start = record_start(stem);
  std::vector<std::string> files;
  for (const std::string& name : names_in(folder)) {
    if (!is_record(name, start)) continue;
    const Descriptor record =
        open_descriptor(AT_FDCWD, folder + name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (record) std::ranges::move(unchanged(record.get(), folder), std::back_inserter(files));
  }
  return files;
}

std::string SaveRecord::lock_path() const { return folder_ + "." + stem_ + ".saving"; }

void SaveRecord::take_turn(Cancel& cancel) { turn_.emplace(lock_path(), cancel); }

void SaveRecord::write(std::span<const File> added, std::span<const std::string> replaced,
                       bool fsync) {
  std::string text;
  const auto put = [&](const std::string& name, std::uint64_t size) {
    text += std::to_string(size) + " " + name + "\n";
  };
  for (const File& file : added) put(file.name, file.size);
  for (const std::string& name : replaced) {
    struct stat status;
    if (lstat((folder_ + name).c_str(), &status) == 0) {
      put(name, static_cast<std::uint64_t>(status.st_size));
    }
  }
  const ConstBytes bytes = as_bytes(text);
  Cancel cancel{Cancel::Unattended{}};
  write_at(file_.get(), 0, {&bytes, 1}, path_, cancel);
  if (!fsync) return;
  if (fdatasync(file_.get()) != 0) throw_write_error(errno, path_);
  sync_folder(open_folder(AT_FDCWD, folder_), folder_);
  folders_.sync();
}

void SaveRecord::close() {
  if (path_.empty()) return;
  const std::string path = std::exchange(path_, {});
  remove_listed(file_.get());
  unlink(path.c_str());
  file_.close();
  turn_.reset();
}

void SaveRecord::remove_listed(int record) const {
  std::vector<std::string> names = unchanged(record, folder_);
  if (names.empty()) return;
  for (const std::string& name : unneeded_(std::move(names))) {
    const std::string path = folder_ + name;
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      throw system_error(errno, "cannot remove", path);
    }
  }
}

}  // namespace tensorizer
