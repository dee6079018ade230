// Access rights of files: copies their owner, mode and POSIX ACL.
#pragma once

#include <string>

namespace tensorizer {

// Copies from `target` to `file`: owner and group as far as the process may set them, mode, ACL,
// and the extended attributes "user.*". `file` must be new and not yet accessible to other users.
// If something cannot be copied, no user except the owner gets a right to `file` that the user did
// not have to `target`. Removes an ACL that `file` got from the default ACL of its folder. `target`
// may be open with O_PATH. `path` is its name, for systems without /proc.
void keep_access(int target, const std::string& path, int file);

}  // namespace tensorizer
