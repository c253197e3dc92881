#pragma once
// A card booted by the lower half (drivers/nv/gsp), as the upper half takes it.

#include <memory>

#include "drivers/nv/gsp/card.h"
#include "drivers/nv/rm_gsp/running_card.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

std::unique_ptr<RunningCard> make_running(std::unique_ptr<GspCard> card);

}  // namespace bm::nv::gsp
