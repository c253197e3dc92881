#pragma once
// Bounds checks in programs for targets without work-groups (BM_CHECKED).

#include "compiler/program/program.h"

namespace bm::compiler {

/// Puts a check before every load and store of params and local arrays, prefetches excepted. One
/// that fails reports kernel, access, param and element, and ends the process (StmtKind::kFault).
/// Local arrays start every block of the grid full of signalling NaNs, whatever the last kernel
/// left there. `has_rows`: they are rows kept between passes (Schedule::stages), of which nothing
/// is read that was not written; a load of what is still as at the start is reported too.
void insert_checks(Program& program, bool has_rows = false);

}  // namespace bm::compiler
