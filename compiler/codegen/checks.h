#pragma once
// Bounds checks in programs for targets without work-groups (BM_CHECKED).

#include "compiler/codegen/program.h"

namespace bm::compiler {

/// Puts a check before every load and store of params and local arrays, prefetches excepted. One
/// that fails reports kernel, access, param and element, and ends the process (StmtKind::kFault).
void insert_checks(Program& program);

}  // namespace bm::compiler
