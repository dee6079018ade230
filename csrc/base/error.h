// Makes errors of failed system calls, and quotes text from outside for messages.
//
// An Error (tensorizer_ops/error.h) is thrown where the fault is found, and translated once: at the
// border in ops, or in python/core.
#pragma once

#include <string>
#include <string_view>

#include "tensorizer_ops/error.h"

namespace tensorizer {

// Returns the Error for a failed system call. `doing` says what was tried: "cannot open".
Error system_error(int system_errno, const std::string& doing, const std::string& path);

// Returns `text` in single quotes, with everything escaped that is not printable UTF-8, cut after
// `limit` bytes, and without the secrets that base/redaction.h knows. So a hostile name cannot
// break or flood a message, or repeat a secret.
std::string quote(std::string_view text, std::size_t limit = 200);

}  // namespace tensorizer
