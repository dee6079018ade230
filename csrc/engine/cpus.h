// How many CPUs there are to compute on.
#pragma once

namespace tensorizer {

// The CPUs that this process may use: its affinity, and the quota of its control groups, rounded
// up.
int usable_cpus();

}  // namespace tensorizer
