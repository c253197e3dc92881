#pragma once
// KernelIr and Schedule → Program.

#include "compiler/program/program.h"
#include "compiler/targets/target.h"
#include "compiler/schedules/schedule.h"
#include "runtime/base/result.h"

namespace bm::compiler {

/// Errors: kUnsupported for more than 64 loops in one kernel.
Result<Program> lower(const ir::KernelIr& kernel, const Schedule& schedule,
                      const TargetInfo& target);

}  // namespace bm::compiler
