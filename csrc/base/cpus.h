// The number of CPUs that this process may use.
#pragma once

namespace tensorizer {

// Returns how many CPUs the affinity of this process allows, at most the quota of its control
// groups, rounded up. Thread-safe.
int usable_cpus();

}  // namespace tensorizer
