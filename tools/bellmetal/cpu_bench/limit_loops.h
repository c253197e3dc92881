#pragma once
// The loops behind limits.h, for the widest vectors this processor has.

#include <cstddef>

namespace bm::cli {

/// Counts are in floats, a multiple of 16; addresses are aligned to 64 bytes.
struct LimitLoops {
  const char* name;
  void (*read)(const float* from, size_t count);
  void (*copy)(float* to, const float* from, size_t count);
  void (*stream)(float* to, const float* from, size_t count);
  void (*fma)(size_t rounds);
  double flops_per_round;  ///< of fma
};

const LimitLoops& limit_loops();

/// Tells the core that this thread only waits.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace bm::cli
