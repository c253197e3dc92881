#pragma once
// The process that makes the calls, as the simulated kernel sees it.

#include "tests/sim/notify/process.h"

namespace bm::sim::nv {

using notify::open_process;
using notify::Process;

}  // namespace bm::sim::nv
