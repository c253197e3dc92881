#pragma once
// Numbering: the values of a finished program are numbered in the order in which it defines them.

#include "compiler/program/program.h"

namespace bm::compiler {

/// Until here a value's number says when it was made; from here on where it is: 0, 1, … down the
/// text of the program, then of its functions. Values that no block defines are gone. Numbers that
/// were taken before mean something else afterwards: the builder is not used again.
void number_values(Program& program);

}  // namespace bm::compiler
