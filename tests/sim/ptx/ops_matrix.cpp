#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx {

std::span<const Operation> matrix_operations() { return {}; }

}  // namespace bm::sim::ptx
