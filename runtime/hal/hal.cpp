#include "runtime/hal/arch.h"

#include <fmt/format.h>

namespace bm::hal {

std::string Arch::key() const {
  return fmt::format("{}|{}|{}|{}|v{}|u{}|b{}|l{}|c{},{},{}|{}{}", static_cast<int>(vendor), name,
                     cpu, features, vector_bits, units, max_block, local_memory_bytes,
                     first_cache_bytes, cache_bytes, shared_cache_bytes, has_f16, has_f64);
}

}  // namespace bm::hal
