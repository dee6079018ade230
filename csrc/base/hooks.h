// The hook by which a host, such as Python, replaces an Error with an exception of its own. The
// hooks that C++ programs may also set are in tensorizer_ops/hooks.h.
#pragma once

#include "base/error.h"

namespace tensorizer {

// Throws the host's own exception for an error. If it returns, or if no hook is set, the Error
// itself is thrown.
using RaiseHook = void (*)(const Error&);
void set_raise_hook(RaiseHook hook) noexcept;

// Throws `error` as the host wants to see it. Called at the border of the library.
[[noreturn]] void raise(const Error& error);

}  // namespace tensorizer
