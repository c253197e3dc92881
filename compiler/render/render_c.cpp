#include "compiler/render/render.h"
namespace bm::compiler {
std::string render_c(const Program&, const TargetInfo&) { return {}; }
}  // namespace bm::compiler
