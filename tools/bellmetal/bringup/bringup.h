#pragma once
// The commands of the bring-up bench; each prints and returns the program's exit code.

#include <string>

#include "tools/bellmetal/bringup/card.h"

namespace bm::cli {

struct BootOptions {
  CardOptions card;
  std::string trace;  ///< file; empty: none
  bool has_stats = false, always_reset = false;
};
/// Boots a card stage by stage and closes it again.
int run_boot(System& system, const BootOptions& options);

}  // namespace bm::cli
