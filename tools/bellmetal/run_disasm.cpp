#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

int run_disasm(const DisasmOptions& options) {
  return report(Error{Code::kUnsupported, "disasm is not part of this build yet"}, options.json);
}

}  // namespace bm::cli
