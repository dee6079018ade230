// The hooks by which a host, such as Python, replaces an Error with an exception of its own, and
// keeps its threads from changing tensors. The hooks that C++ programs may also set are in
// tensorizer_ops/hooks.h.
#pragma once

#include <functional>

#include "base/error.h"

namespace tensorizer {

// Throws the host's own exception for an error. If it returns, or if no hook is set, or in a
// program that knows no exceptions of the host, the Error itself is thrown.
using RaiseHook = void (*)(const Error&);
void set_raise_hook(RaiseHook hook) noexcept;

// Throws `error` as the host wants to see it. Called at the border of the library.
[[noreturn]] void raise(const Error& error);

// Returns whether the current thread runs such a program, as the interpreter of TorchScript is.
using ScriptCheck = bool (*)();
void set_script_check(ScriptCheck check) noexcept;
bool in_script();

// Runs `work` once, while no other thread of the host runs the host's code.
using AloneHook = void (*)(const std::function<void()>& work);
void set_alone_hook(AloneHook hook) noexcept;

// Runs `work` once, alone if a hook is set. No lock of the library may be held that other threads
// of the host wait for while they run its code.
void run_alone(const std::function<void()>& work);

}  // namespace tensorizer
