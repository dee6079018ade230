#include "base/hooks.h"

#include <atomic>

namespace tensorizer {

namespace {
std::atomic<RaiseHook> raise_hook{nullptr};
std::atomic<AloneHook> alone_hook{nullptr};
std::atomic<ScriptCheck> script_check{nullptr};
}  // namespace

void set_raise_hook(RaiseHook hook) noexcept { raise_hook.store(hook); }

void raise(const Error& error) {
  if (const RaiseHook hook = raise_hook.load(); hook && !in_script()) hook(error);
  throw error;
}

void set_script_check(ScriptCheck check) noexcept { script_check.store(check); }

bool in_script() {
  const ScriptCheck check = script_check.load();
  return check != nullptr && check();
}

void set_alone_hook(AloneHook hook) noexcept { alone_hook.store(hook); }

void run_alone(const std::function<void()>& work) {
  if (const AloneHook hook = alone_hook.load()) {
    hook(work);
  } else {
    work();
  }
}

}  // namespace tensorizer
