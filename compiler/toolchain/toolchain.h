#pragma once
// Source text → object bytes.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/targets/target.h"
#include "runtime/base/result.h"

namespace bm::compiler {

/// Version text of the loaded LLVM component, e.g. "19.1.7".
/// Errors: kNotFound naming the places looked at and the package that provides it.
Result<std::string> llvm_version();

/// Compiles LLVM IR in this process. Thread: any.
/// Errors: kNotFound (component missing; for CPUs it names a clang that is there instead); kCompile
/// with LLVM's message.
Result<std::vector<std::byte>> llvm_compile(std::string_view ir, const TargetInfo& target);

/// Makes PTX of LLVM IR in this process, for target.cpu ("sm_90"). Thread: any.
/// Cards newer than this LLVM get what the last one it knows takes.
/// Errors: kNotFound (component missing, or its LLVM was built without NVPTX); kCompile with
/// LLVM's message.
Result<std::string> llvm_ptx(std::string_view ir, const TargetInfo& target);

/// Disassembles the code sections of a relocatable object.
Result<std::string> llvm_disassemble(std::span<const std::byte> object, const TargetInfo& target);

/// Compiles C by running clang (BM_CLANG, or the first of clang-22, clang-19, clang in PATH).
/// Errors: kNotFound (no clang); kCompile with its log and the source line; kTimeout after 60 s.
Result<std::vector<std::byte>> clang_compile(std::string_view source, const TargetInfo& target);

/// The same for several sources in one process, whose start costs more than a small kernel does:
/// objects in the order of the sources. Errors: as before, but kCompile does not say of which; and
/// where this clang does not write such objects one behind another.
Result<std::vector<std::vector<std::byte>>> clang_compile_all(std::span<const std::string> sources,
                                                              const TargetInfo& target);

/// Path and version of the clang that clang_compile runs.
Result<std::string> clang_version();

}  // namespace bm::compiler
