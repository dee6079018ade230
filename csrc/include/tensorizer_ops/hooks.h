// Functions of the program that the library calls. All are optional and process-wide.
#pragma once

#include <string>

namespace tensorizer {

// Called about every 50 ms on the thread that called the library, while its call runs. Throw from
// it to end the call: the exception leaves the call as it is, and a save leaves its target as it
// was. No lock of the library is held meanwhile.
using InterruptHook = void (*)();

// Sets the hook; null removes it. Thread-safe.
void set_interrupt_hook(InterruptHook hook) noexcept;

// Called with one line for each load from a server: how long it took, and where the time went. Runs
// on the thread that called the library. The text holds no secret.
using LogHook = void (*)(const std::string& text);

// Sets the hook; null removes it. Thread-safe.
void set_log_hook(LogHook hook) noexcept;

}  // namespace tensorizer
