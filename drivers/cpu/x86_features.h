#pragma once
// Instruction set extensions of x86-64 as data: where CPUID reports them, what they build on, what
// LLVM calls them, and which processors have them.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/arch.h"

namespace bm::cpu::x86 {

/// Set of features: bit i is row i of the table.
using FeatureSet = uint64_t;

/// Answer of CPUID and XGETBV, so that tests can describe any machine.
struct Cpuid {
  enum Register : uint8_t { kEax, kEbx, kEcx, kEdx };
  /// Register of a leaf; 0 if the leaf does not exist.
  uint32_t (*read)(uint32_t leaf, uint32_t subleaf, Register reg);
  uint64_t xcr0 = 0;  ///< register state the system saves
};
/// This machine.
Cpuid host_cpuid();

/// Features present, without those whose base is missing.
FeatureSet detect_features(const Cpuid& cpuid);
std::optional<FeatureSet> feature_bit(std::string_view name);
/// `set` without features that need a missing one.
FeatureSet close_over_needs(FeatureSet set);
/// The feature and all it builds on.
FeatureSet with_needs(FeatureSet feature);
/// "+sse3,…,-avx512f,…": every row.
std::string feature_text(FeatureSet set);
uint32_t vector_bits(FeatureSet set);

/// Data caches of a core, in bytes; 0: not told.
struct Caches {
  uint64_t l1_bytes = 0;  ///< first level
  uint64_t l2_bytes = 0;  ///< largest that only threads of one core share
};
/// Source: leaf 4 (Intel SDM, volume 2A, CPUID: Deterministic Cache Parameters) or 8000001Dh (AMD
/// APM, volume 3, appendix E.4); where a hypervisor hides both, the L1 and L2 of leaves 80000005h
/// and 80000006h.
Caches detect_caches(const Cpuid& cpuid);

/// LLVM's name of the processor, or a level "x86-64-v3" if unknown or crippled by a hypervisor.
std::string detect_cpu(const Cpuid& cpuid, FeatureSet present);
/// Level 1–4 whose features a named processor at least has; nothing if the name is unknown.
std::optional<uint32_t> cpu_level(std::string_view cpu);
/// Features of x86-64-v1 … v4.
FeatureSet level_features(uint32_t level);

/// Arch for `tokens` after the name; see make_arch. Errors: as there.
Result<hal::Arch> make_arch(const Cpuid& cpuid, std::span<const std::string_view> tokens);

}  // namespace bm::cpu::x86
