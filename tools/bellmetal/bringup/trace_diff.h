#pragma once
// Two traces of a card's registers side by side: what one driver does and the other does not.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drivers/transport/pci_trace.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm::cli {

struct RegisterUse {
  uint64_t reads = 0, writes = 0;
  std::optional<uint64_t> last_written;
};
/// A register that the two do not use alike: written by one alone, or left with different values.
struct RegisterDifference {
  uint64_t offset = 0;  ///< in the BAR of the registers, bytes
  std::string name;     ///< empty: not known
  RegisterUse a, b;
};

/// AMD's registers are named by the IP discovery table that either driver has read, NVIDIA's by a
/// list of our own. Errors: kInvalidArgument (functions of different vendors, whose registers have
/// nothing in common); kUnsupported (neither AMD's nor NVIDIA's); kNotFound (one has no access to a
/// register: nothing can be said of it).
Result<std::vector<RegisterDifference>> diff_traces(const PciTrace& a, const PciTrace& b);

struct TraceDiffOptions {
  std::string a, b;  ///< files: ours or mmiotrace's
  bool as_json = false;
};
/// 0: they leave the same values; 1: they do not. What makes the two less alike than they look is
/// said on stderr, and in `notes` of the JSON.
int run_trace_diff(System& system, const TraceDiffOptions& options);

}  // namespace bm::cli
