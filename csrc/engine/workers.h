// The threads of one job.
#pragma once

#include <functional>

#include "base/cancel.h"

namespace tensorizer {

// Runs `body` on `count` threads, of which the calling one is the first, and returns when all have
// ended. The first exception stops the others through `cancel` and is thrown again here. Where the
// system has no more threads to give, fewer run: `body` must finish the job on any number.
void run_workers(int count, Cancel& cancel, const std::function<void()>& body);

}  // namespace tensorizer
