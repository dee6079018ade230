// The threads of one job.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "base/cancel.h"
#include "base/redaction.h"
#include "io/source.h"

namespace tensorizer {

// Runs `body` on `count` threads, of which the calling one is the first, and returns when all have
// ended. The first exception stops the others through `cancel` and is rethrown here. If the system
// cannot start that many threads, fewer run: `body` must finish the job on any number. All of them
// redact as the calling one does (RedactedQuotes).
void run_workers(int count, Cancel& cancel, const std::function<void()>& body);

// How many threads work that waits for disks or servers is worth.
inline constexpr int kWaitingWorkers = 16;
// The same for reads of files that are like the one of these hints.
inline int waiting_workers(const ReadHints& hints) {
  const int wanted = hints.reads_in_flight;
  return wanted > 0 ? std::min(wanted, kWaitingWorkers) : kWaitingWorkers;
}

// Calls `body` once for each number below `count`, on up to `workers` threads. The calling thread
// checks for signals until all have ended. Otherwise like run_workers().
void for_each_number(std::size_t count, int workers, Cancel& cancel,
                     const std::function<void(std::size_t)>& body);

}  // namespace tensorizer
