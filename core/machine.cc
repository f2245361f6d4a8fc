// What the cgroup (v1 or v2) and the machine leave to this process.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/executor.h"

namespace attnd {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

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

// The first words of a control file, looked for in this process's group and, as containers see it, at the mount itself.
bool ReadControl(const std::string& controller, const std::string& name, std::string* first,
                 std::string* second = nullptr) {
  const std::string mount = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
  for (const std::string& directory : {mount + CgroupPath(controller), mount}) {
    std::ifstream file(absl::StrCat(directory, "/", name));
    if (file >> *first) {
      if (second != nullptr) file >> *second;
      return true;
    }
  }
  return false;
}

double QuotaCpus() {
  std::string quota, period;
  if (ReadControl("", "cpu.max", &quota, &period)) {
    if (quota != "max" && !period.empty()) return std::stod(quota) / std::stod(period);
  } else if (ReadControl("cpu", "cpu.cfs_quota_us", &quota) && ReadControl("cpu", "cpu.cfs_period_us", &period)) {
    if (std::stod(quota) > 0 && std::stod(period) > 0) return std::stod(quota) / std::stod(period);
  }
  return std::numeric_limits<double>::infinity();
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
  std::string text;
  if (ReadControl("", "memory.max", &text) || ReadControl("memory", "memory.limit_in_bytes", &text)) {
    // "max" and v1's near-2^63 number both mean that there is no limit.
    if (text != "max") bytes = std::min<std::int64_t>(bytes, text.size() > 18 ? kNoLimit : std::stoll(text));
  }
  return bytes;
}

}  // namespace attnd
