// What the host may want to read about a job.
#pragma once

#include <string>

namespace tensorizer {

// Called on the thread that called the library, never with a secret. A program that sets none logs
// nothing.
using LogHook = void (*)(const std::string& text);
void set_log_hook(LogHook hook) noexcept;

// Whether anybody would read it.
bool is_logged() noexcept;
void log(const std::string& text);

}  // namespace tensorizer
