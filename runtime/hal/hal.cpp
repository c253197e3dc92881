#include "runtime/hal/arch.h"

#include <fmt/format.h>

namespace bm::hal {

std::string Arch::key() const {
  return fmt::format("{}|{}|{}|{}|v{}|u{}|b{}|l{}|c{},{},{}|{}{}", static_cast<int>(vendor), name,
                     cpu, features, vector_bits, units, max_block, shared_memory_bytes, l1_bytes,
                     l2_bytes, llc_bytes, has_f16, has_f64);
}

}  // namespace bm::hal
