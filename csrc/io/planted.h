// Files of this machine that another user may have made to choose what is read or written.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "io/file_identity.h"

namespace tensorizer {

// How many links lead from one to the next at the most, as in the kernel.
inline constexpr int kMostLinks = 40;

// Returns where the link `path` leads; null and errno if it is none.
std::optional<std::string> link_target(const std::string& path);

// Returns whether all users from outside of this user namespace, such as a container, have this
// number here.
bool may_be_anybody(uid_t user);

// Returns whether another user may have made a file or link in a folder, to choose or change what
// is saved there. The rule is that of fs.protected_regular and fs.protected_symlinks in Linux.
bool may_be_planted(const struct stat& folder, const struct stat& made);

// Asks that of what has a path, and not of what a link leads to; null if there is nothing. Looks
// once: others may remove theirs at any moment.
std::optional<bool> may_be_planted(const std::string& path);

// Returns which file a path leads to; null if there is none, or if it, or a link on the way, may be
// planted.
std::optional<FileIdentity> own_file_at(std::string path);

}  // namespace tensorizer
