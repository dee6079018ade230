// Log messages for the host.
#pragma once

#include <string>

namespace tensorizer {

// Returns whether the host has set a log hook (tensorizer_ops/hooks.h).
bool is_logged() noexcept;

// Calls the log hook, if set. Must run on the thread that called the library. `text` must not
// contain a secret.
void log(const std::string& text);

}  // namespace tensorizer
