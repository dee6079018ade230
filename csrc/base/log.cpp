#include "base/log.h"

#include <atomic>

#include "tensorizer_ops/hooks.h"

namespace tensorizer {

namespace {
std::atomic<LogHook> log_hook{nullptr};
}  // namespace

void set_log_hook(LogHook hook) noexcept { log_hook.store(hook); }

bool is_logged() noexcept { return log_hook.load() != nullptr; }

void log(const std::string& text) {
  if (const LogHook hook = log_hook.load()) hook(text);
}

}  // namespace tensorizer
