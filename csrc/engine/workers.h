// The threads of one job.
#pragma once

#include <functional>

#include "base/cancel.h"

namespace tensorizer {

// Runs `body` on `count` threads, of which the calling one is the first, and returns when all have
// ended. The first exception stops the others through `cancel` and is rethrown here. If the system
// cannot start that many threads, fewer run: `body` must finish the job on any number.
void run_workers(int count, Cancel& cancel, const std::function<void()>& body);

}  // namespace tensorizer
