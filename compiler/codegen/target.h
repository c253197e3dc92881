#pragma once
// What code generation wants to know of a CPU, derived from hal::Arch.

#include <cstdint>
#include <string>

#include "runtime/hal/arch.h"

namespace bm::compiler {

struct TargetInfo {
  uint32_t vector_bits = 128;
  uint32_t vector_registers = 16;
  bool has_fma = false;               ///< fused multiply-add of float32 and float64
  bool has_f16c = false;              ///< conversions float16 ↔ float32
  bool has_round = false;             ///< truncation of floats in one instruction
  std::string triple, cpu, features;  ///< for LLVM and clang; never empty triple and cpu
};

TargetInfo target_info(const hal::Arch& arch);

}  // namespace bm::compiler
