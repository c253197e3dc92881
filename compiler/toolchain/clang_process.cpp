#include "compiler/toolchain/toolchain.h"
namespace bm::compiler {
Result<std::vector<std::byte>> clang_compile(std::string_view, const TargetInfo&) { return fail(Code::kUnsupported, "not yet"); }
Result<std::string> clang_version() { return fail(Code::kUnsupported, "not yet"); }
}  // namespace bm::compiler
