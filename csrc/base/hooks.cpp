#include "base/hooks.h"

#include <atomic>

namespace tensorizer {

namespace {
std::atomic<RaiseHook> raise_hook{nullptr};
}  // namespace

void set_raise_hook(RaiseHook hook) noexcept { raise_hook.store(hook); }

void raise(const Error& error) {
  if (const RaiseHook hook = raise_hook.load()) hook(error);
  throw error;
}

}  // namespace tensorizer
