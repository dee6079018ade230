#include "base/control_groups.h"

#include <fstream>

namespace tensorizer {

void for_each_control_group(
    std::string_view controller,
    const std::function<void(const std::string& directory, bool unified)>& use, const char* list) {
  std::ifstream groups(list);
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:/path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    const bool unified = controllers == ",,";
    const std::string name(controller);
    if (!unified && controllers.find("," + name + ",") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + name;
    use(root, unified);
    for (std::size_t end = 0; end != std::string::npos && path.size() > 1;) {
      end = path.find('/', end + 1);
      use(root + path.substr(0, end), unified);
    }
  }
}

}  // namespace tensorizer
