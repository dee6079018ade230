// The control groups of this process, which limit what a container may use.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tensorizer {

// Calls `use` with the directory of each control group that the process is in and that has this
// controller ("cpu", "memory"), from the root of the hierarchy on. `unified` says which version of
// control groups it is of, and so which files it has: true for version 2. `list` is a
// file as Linux has one for each process.
void for_each_control_group(
    std::string_view controller,
    const std::function<void(const std::string& directory, bool unified)>& use,
    const char* list = "/proc/self/cgroup");

}  // namespace tensorizer
