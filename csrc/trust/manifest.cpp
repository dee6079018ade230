#include "trust/manifest.h"

#include <algorithm>

#include "base/utf8.h"

namespace tensorizer {

const ManifestFile* Manifest::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      files, name, {}, [](const ManifestFile& file) { return std::string_view(file.name); });
  return found != files.end() && found->name == name ? &*found : nullptr;
}

const char* fault_of_file_name(std::string_view name) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.empty()) return "it is empty";
  if (name.front() == '/') return "it is an absolute path";
  if (std::ranges::any_of(name, is_control)) return "it has a control character";
  if (!is_utf8(name)) return "it is not UTF-8";
  for (;;) {
    const std::size_t end = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, end);
    if (part.empty()) return "it has an empty part, or ends with '/'";
    if (part == "." || part == "..") return "it has the part '.' or '..'";
    if (end == name.size()) return nullptr;
    name.remove_prefix(end + 1);
  }
}

}  // namespace tensorizer
