// Files that do not exist, as far as their place tells.
#pragma once

#include "base/error.h"

namespace tensorizer {

// Returns whether there may be no file: S3 may refuse to tell whether there is an object, and web
// servers to list a folder.
inline bool may_not_exist(const Error& error) {
  return error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::PermissionDenied;
}

}  // namespace tensorizer
