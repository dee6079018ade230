#include "engine/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

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

// Returns the lowest limit of the group and its ancestors up to the root of the hierarchy.
int tightest(const std::string& root, std::string group, int (*limit)(const std::string&)) {
  int cpus = limit(root);
  while (group.size() > 1) {
    cpus = std::min(cpus, limit(root + group));
    group.resize(group.rfind('/'));
  }
  return cpus;
}

int quota_of_control_groups() {
  int cpus = kNoLimit;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:/path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers == ",,") {
      cpus = std::min(cpus, tightest("/sys/fs/cgroup", path, unified_limit));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      cpus = std::min(cpus, tightest("/sys/fs/cgroup/cpu", path, legacy_limit));
    }
  }
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
