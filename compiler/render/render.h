#pragma once
// Program → source text. Renderers translate one statement at a time; every choice that could
// change a result was made before.

#include <string>

#include "compiler/codegen/program.h"
#include "compiler/codegen/target.h"

namespace bm::compiler {

/// LLVM IR text (opaque pointers, LLVM 17 and later). Entry point: `program.name`, as CodeObject
/// says.
std::string render_llvm(const Program& program, const TargetInfo& target);

/// C with vector extensions for clang 15 and later; needs no header.
std::string render_c(const Program& program, const TargetInfo& target);

}  // namespace bm::compiler
