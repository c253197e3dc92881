#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

int run_selftest(const SelftestOptions& options) {
  return report(Error{Code::kUnsupported, "selftest is not part of this build yet"}, options.json);
}

}  // namespace bm::cli
