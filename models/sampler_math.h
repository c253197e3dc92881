#pragma once
// Arithmetic of sampling that is the same on every machine: plain IEEE operations in a fixed order.

#include <cstdint>

namespace bm::models {

/// Philox4x32-10: ten rounds of the counter-based generator of Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3" (SC 2011).
struct PhiloxBlock {
  uint32_t words[4];
};
PhiloxBlock philox4x32(const PhiloxBlock& counter, uint64_t key);

/// e^x for x ≤ 0, within 2 units in the last place; 0 below −708. Built from additions and
/// multiplications alone, unlike the C library's, which differs between systems.
double portable_exp(double x);

/// Natural logarithm of a positive normal number, within 3 units in the last place; built alike.
double portable_log(double x);

}  // namespace bm::models
