#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

int run_bench(const BenchOptions& options) {
  return report(Error{Code::kUnsupported, "bench is not part of this build yet"}, options.json);
}

}  // namespace bm::cli
