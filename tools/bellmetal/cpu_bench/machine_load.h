#pragma once
// How much of the machine other processes use while something is measured.

#include <cstdint>
#include <vector>

namespace bm::cli {

/// Counts from construction. Source of the fields: proc(5), /proc/stat and /proc/PID/stat.
class MachineLoad {
 public:
  MachineLoad();
  /// Share of all cores' time, 0 to 1, that went neither to this process and its children nor to
  /// idling. 0 where /proc is missing.
  double others() const;

 private:
  struct Ticks {
    uint64_t busy = 0, total = 0, own = 0;
  };
  static Ticks now();
  Ticks start_;
};

}  // namespace bm::cli
