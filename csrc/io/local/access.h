// Who may do what with a file: its owner, mode and POSIX ACL.
#pragma once

#include <string>

namespace tensorizer {

// Gives `file`, which is new and which nobody else may open yet, what `target` has: owner and group
// where the process may, mode, ACL, and the extended attributes "user.*". Where something cannot be
// kept, nobody but the owner gets a right to `file` that he had not to `target`; a default ACL that
// `file` got from its folder goes. `target` may be open with O_PATH. `path` is its name, for
// systems without /proc.
void keep_access(int target, const std::string& path, int file);

}  // namespace tensorizer
