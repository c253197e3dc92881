#pragma once
// Readings of a card's power management firmware, as commands print them.

#include <string>

#include <nlohmann/json.hpp>

#include "drivers/amd/am/smu_metrics.h"

namespace bm::cli {

/// One line: "13 W of 300 W (board 37 W), edge 41 C, hotspot 50 C, …".
std::string sensors_text(const amd::am::Sensors& sensors);
/// Keys carry their unit, those that `gpu top` has as well are spelled as there.
nlohmann::ordered_json sensors_json(const amd::am::Sensors& sensors);

}  // namespace bm::cli
