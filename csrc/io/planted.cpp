#include "io/planted.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

namespace tensorizer {

namespace {

constexpr int kMostLinks = 40;  // as in the kernel

// What has a path, and its folder.
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
  std::error_code failure;
  for (int links = 0; links <= kMostLinks; ++links) {
    const std::optional<Found> found = look_at(path);
    if (!found || may_be_planted(found->folder, found->made)) return std::nullopt;
    if (!S_ISLNK(found->made.st_mode)) return FileIdentity{found->made.st_dev, found->made.st_ino};
    const std::filesystem::path target = std::filesystem::read_symlink(path, failure);
    if (failure) return std::nullopt;
    path = std::filesystem::path(path).replace_filename(target).string();
  }
  return std::nullopt;
}

}  // namespace tensorizer
