// What the host may want to read about a job.
#pragma once

#include <string>

namespace tensorizer {

// Whether the host has set a log hook (tensorizer_ops/hooks.h).
bool is_logged() noexcept;

// Calls the log hook, on the thread that called the library. `text` holds no secret.
void log(const std::string& text);

}  // namespace tensorizer
