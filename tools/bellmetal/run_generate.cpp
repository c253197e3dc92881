#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

int run_generate(const GenerateOptions& options) {
  return report(Error{Code::kUnsupported, "generate is not part of this build yet"}, options.json);
}

}  // namespace bm::cli
