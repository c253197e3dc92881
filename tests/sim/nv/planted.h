#pragma once
// Faults by name that are planted while an unmodified program runs; the names are those of the
// tables in tests/unit/nv_faults.

#include <optional>
#include <string_view>

#include "tests/sim/nv/options.h"

namespace bm::sim::nv {

struct Planted {
  std::string_view name;
  PlantEvent event = PlantEvent::kNone;
  PlantEffect effect = PlantEffect::kNone;
  void (*machine)(Options&) = nullptr;  ///< what is so from the beginning
  Failure failure = {};                 ///< a call that always fails, or none
  bool is_lost = false;                 ///< the GPU, from the beginning
  uint64_t nth = 1;                     ///< event
};

/// Nothing: no such name, or one that no program we know can meet here.
std::optional<Planted> find_planted(std::string_view name);

}  // namespace bm::sim::nv
