// The hook by which a host, such as Python, replaces an Error by an exception of its own.
// tensorizer_ops/hooks.h has the hooks that C++ programs may set, too.
#pragma once

#include "base/error.h"

namespace tensorizer {

// Throws the host's own exception for an error; may return, and the Error itself is thrown then.
// A program that sets none sees every Error as it is.
using RaiseHook = void (*)(const Error&);
void set_raise_hook(RaiseHook hook) noexcept;

// Called at the border: throws `error` as the host wants to see it.
[[noreturn]] void raise(const Error& error);

}  // namespace tensorizer
