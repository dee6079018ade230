#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "base/control_groups.h"

namespace tensorizer {

namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

int cpus_for(double quota, double period) {
  if (quota <= 0 || period <= 0) return kNoLimit;
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

// Reads cpu.max, which holds "QUOTA PERIOD", or "max PERIOD" if there is no quota.
int unified_limit(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max") return kNoLimit;
  return cpus_for(std::strtod(quota.c_str(), nullptr), period);
}

int legacy_limit(const std::string& directory) {
  double quota = 0;
  double period = 0;
  std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  return cpus_for(quota, period);
}

int quota_of_control_groups() {
  int cpus = kNoLimit;
  for_each_control_group("cpu", [&](const std::string& directory, bool unified) {
    cpus = std::min(cpus, unified ? unified_limit(directory) : legacy_limit(directory));
  });
  return cpus;
}

int cpus_by_affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  // The machine has more CPUs than the set can hold.
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int usable_cpus() {
  // The quota is read once: that opens files, and it hardly ever changes. The affinity is one cheap
  // call.
  static const int quota = quota_of_control_groups();
  return std::min(cpus_by_affinity(), quota);
}

}  // namespace tensorizer
