#include "tools/bellmetal/cpu_bench/machine_load.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

namespace bm::cli {
namespace {

struct Process {
  long parent = 0;
  uint64_t ticks = 0;
};

/// Fields after the name, which may hold blanks: state, parent, …, 12th to 15th: user and system
/// time of the process and of its children that have ended.
Process read_process(const std::filesystem::path& folder) {
  std::ifstream in(folder / "stat");
  std::string text;
  std::getline(in, text);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream fields(text.substr(end + 1));
  std::string state, skipped;
  Process p;
  fields >> state >> p.parent;
  for (int i = 0; i < 9; ++i) fields >> skipped;
  for (uint64_t ticks = 0, i = 0; i < 4 && fields >> ticks; ++i) p.ticks += ticks;
  return p;
}

/// Ticks of this process and the children it talks to now.
uint64_t own_ticks() {
  uint64_t sum = read_process("/proc/self").ticks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.empty() || !std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    const Process p = read_process(entry.path());
    if (p.parent == ::getpid()) sum += p.ticks;
  }
  return sum;
}

}  // namespace

MachineLoad::MachineLoad() : start_(now()) {}

MachineLoad::Ticks MachineLoad::now() {
  std::ifstream in("/proc/stat");
  std::string cpu;
  in >> cpu;
  Ticks t;
  uint64_t value = 0;
  // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user already.
  for (int field = 0; field < 8 && in >> value; ++field) {
    t.total += value;
    if (field != 3 && field != 4) t.busy += value;
  }
  t.own = own_ticks();
  return t;
}

double MachineLoad::others() const {
  const Ticks end = now();
  if (end.total <= start_.total) return 0;
  const auto busy = static_cast<double>(end.busy - start_.busy);
  const auto own = static_cast<double>(end.own) - static_cast<double>(start_.own);
  return std::max(0.0, busy - own) / static_cast<double>(end.total - start_.total);
}

}  // namespace bm::cli
