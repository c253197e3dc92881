#pragma once
// What kernels may call: libm, memory functions and the compiler's runtime, bound at build time.
// Nothing is looked up by name in the process, so a kernel cannot reach anything else.

#include <span>
#include <string_view>

namespace bm::cpu {

struct External {
  std::string_view name;
  const void* address;
};

/// Sorted by name.
std::span<const External> externals();
/// Address of a function or nullptr.
const void* find_external(std::string_view name);

}  // namespace bm::cpu
