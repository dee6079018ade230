#include "io/planted.h"

#include <limits.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <limits>
#include <utility>

namespace tensorizer {

namespace {

// A file or a link, and the folder that it is in.
struct Found {
  struct stat folder;
  struct stat made;
};

std::optional<Found> look_at(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);  // npos + 1 is 0
  Found found;
  if (stat(folder.empty() ? "." : folder.c_str(), &found.folder) != 0) return std::nullopt;
  if (lstat(path.c_str(), &found.made) != 0) return std::nullopt;
  return found;
}

}  // namespace

std::optional<std::string> link_target(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t length = readlink(path.c_str(), text, sizeof(text));
  if (length < 0) return std::nullopt;
  const std::string target(text, static_cast<std::size_t>(length));
  if (target.starts_with('/')) return target;
  return path.substr(0, path.rfind('/') + 1) + target;  // npos + 1 is 0
}

bool may_be_anybody(uid_t user) {
  uid_t overflow = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  if (user != overflow) return false;
  uid_t inside = 1;
  uid_t outside = 1;
  uid_t count = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  const bool has_all = inside == 0 && outside == 0 && count == std::numeric_limits<uid_t>::max();
  return !has_all;
}

bool may_be_planted(const struct stat& folder, const struct stat& made) {
  const bool all_may_create =
      (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  const bool is_known = made.st_uid == geteuid() || made.st_uid == folder.st_uid;
  // The kernel lets those who may write a file give it further names.
  const bool is_linked =
      S_ISREG(made.st_mode) && made.st_nlink > 1 && (made.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  return all_may_create && (!is_known || is_linked || may_be_anybody(made.st_uid));
}

std::optional<bool> may_be_planted(const std::string& path) {
  const std::optional<Found> found = look_at(path);
  if (!found) return std::nullopt;
  return may_be_planted(found->folder, found->made);
}

std::optional<FileIdentity> own_file_at(std::string path) {
  for (int links = 0; links <= kMostLinks; ++links) {
    const std::optional<Found> found = look_at(path);
    if (!found || may_be_planted(found->folder, found->made)) return std::nullopt;
    if (!S_ISLNK(found->made.st_mode)) return FileIdentity{found->made.st_dev, found->made.st_ino};
    std::optional<std::string> target = link_target(path);
    if (!target) return std::nullopt;
    path = std::move(*target);
  }
  return std::nullopt;
}

}  // namespace tensorizer
