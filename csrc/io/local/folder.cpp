#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/error.h"
#include "io/local/open.h"
#include "io/uri.h"

namespace tensorizer {

std::string local_sibling(const std::string& uri, const std::string& name, const OptionList&) {
  std::string path = local_path(split_uri(uri));
  path.resize(path.rfind('/') + 1);  // npos + 1 is 0
  // So that nothing in the name is taken for a home directory or a scheme.
  return (path.empty() ? "./" : path) + name;
}

std::optional<std::string> local_file_name(const std::string& uri) {
  const std::string path = local_path(split_uri(uri));
  struct stat status;
  const bool exists = stat(path.c_str(), &status) == 0;
  if ((exists && !S_ISREG(status.st_mode)) || descriptor_alias(path) >= 0) return std::nullopt;
  const std::string name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  return name.empty() ? std::nullopt : std::optional(name);
}

void remove_local_file(const std::string& uri, const SinkOptions&, Cancel&) {
  const std::string path = local_path(split_uri(uri));
  struct stat status;
  const bool exists = lstat(path.c_str(), &status) == 0;
  const bool is_file = !exists || S_ISREG(status.st_mode) || S_ISLNK(status.st_mode);
  if (descriptor_alias(path) >= 0 || (!is_file && !S_ISDIR(status.st_mode))) {
    throw Error(ErrorKind::InvalidArgument,
                "cannot remove " + quote(path, 4096) + ": it is a stream or a device, and no file");
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    throw system_error(errno, "cannot remove", path);
}

std::optional<std::vector<std::string>> local_files_in(const std::string& uri,
                                                       std::string_view suffix, Cancel& cancel) {
  const std::string path = local_path(split_uri(uri));
  struct stat status;
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), &closedir);
  if (!folder) throw system_error(errno, "cannot list", path);
  std::vector<std::string> names;
  Pace pace(cancel);
  while (true) {
    pace.step();
    errno = 0;
    const dirent* const entry = readdir(folder.get());
    if (entry == nullptr) {
      if (errno != 0) throw system_error(errno, "cannot list", path);
      break;
    }
    const std::string_view name(entry->d_name);
    if (name.ends_with(suffix)) names.emplace_back(name);
  }
  // A file that was renamed meanwhile may be listed twice.
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (std::string& name : names) name = local_sibling(uri + "/", name, {});
  return names;
}

}  // namespace tensorizer
