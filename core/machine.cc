// What the cgroups (v1 or v2) and the machine leave to this process.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/executor.h"

namespace attnd {
namespace {

// This process's directory below the mount of a v1 controller ("cpu", "memory") or, with an empty name, of v2.
std::string CgroupPath(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? controllers == ",," : controllers.find("," + controller + ",") != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return "/";
}

// Where limits of this process may stand: its group, those around it, and the mount itself, which is all that a
// container without a namespace of its own sees of its group.
std::vector<std::string> Groups(const std::string& controller) {
  const std::string mount = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
  std::vector<std::string> groups;
  for (std::string path = CgroupPath(controller); path.size() > 1; path.resize(path.rfind('/'))) {
    groups.push_back(mount + path);
  }
  groups.push_back(mount);
  return groups;
}

// The first words of a control file; false where there is none.
bool ReadControl(const std::string& path, std::string* first, std::string* second = nullptr) {
  std::ifstream file(path);
  return file >> *first && (second == nullptr || file >> *second);
}

double QuotaCpus() {
  double cpus = std::numeric_limits<double>::infinity();
  const auto limit = [&cpus](const std::string& quota, const std::string& period) {
    if (quota != "max" && std::stod(quota) > 0 && std::stod(period) > 0) {
      cpus = std::min(cpus, std::stod(quota) / std::stod(period));
    }
  };
  std::string quota, period;
  for (const std::string& group : Groups("")) {
    if (ReadControl(group + "/cpu.max", &quota, &period)) limit(quota, period);
  }
  for (const std::string& group : Groups("cpu")) {
    if (ReadControl(group + "/cpu.cfs_quota_us", &quota) && ReadControl(group + "/cpu.cfs_period_us", &period)) {
      limit(quota, period);
    }
  }
  return cpus;
}

}  // namespace

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affine = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double cpus = std::min<double>(affine, std::ceil(QuotaCpus()));
  return std::max(1, static_cast<int>(cpus));
}

std::int64_t UsableMemoryBytes() {
  std::int64_t bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const auto limit = [&bytes](const std::string& path) {
    std::string text;
    // "max" and v1's near-2^63 number both mean that there is no limit.
    if (ReadControl(path, &text) && text != "max" && text.size() <= 18) {
      bytes = std::min<std::int64_t>(bytes, std::stoll(text));
    }
  };
  for (const std::string& group : Groups("")) limit(group + "/memory.max");
  for (const std::string& group : Groups("memory")) limit(group + "/memory.limit_in_bytes");
  return bytes;
}

}  // namespace attnd
