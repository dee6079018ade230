// How the library makes the messages of its errors.
//
// An Error (tensorizer_ops/error.h) is thrown where the fault is found, and translated once, at the
// border in ops.
#pragma once

#include <string>
#include <string_view>

#include "tensorizer_ops/error.h"

namespace tensorizer {

// The Error for a failed system call: `doing` says what was tried ("cannot open").
Error system_error(int system_errno, const std::string& doing, const std::string& path);

// `text` in single quotes with everything escaped that is not printable UTF-8, cut after `limit`
// bytes, so that a hostile name cannot break or flood a message.
std::string quote(std::string_view text, std::size_t limit = 200);

}  // namespace tensorizer
