#pragma once
// What the compiler may know about a target. Plain data; no device behind it.

#include <cstdint>
#include <string>

namespace bm::hal {

enum class Vendor : uint8_t { kCpu, kNull, kRef, kAmd, kNv, kOpenCl };

struct Arch {
  Vendor vendor = Vendor::kCpu;
  std::string name;            ///< "x86_64", "gfx1100", "sm_90", …
  std::string cpu;             ///< LLVM -mcpu, e.g. "znver4"; empty: generic
  std::string features;        ///< LLVM feature list "+avx2,-avx512f"; empty: of `cpu`
  uint32_t vector_bits = 128;  ///< preferred vector register width of one lane
  uint32_t units = 1;          ///< cores or compute units usable in parallel
  uint32_t max_block = 1;      ///< threads per block; 1: no work-groups
  uint32_t shared_memory_bytes = 0;
  uint64_t l1_bytes = 32 << 10;       ///< first level of data cache
  uint64_t l2_bytes = 1 << 20;        ///< last private cache level
  uint64_t llc_bytes = 8 << 20;       ///< last level if cores share it, else `l2_bytes`
  uint64_t clock_hz = 1'000'000'000;  ///< ticks per second of hal::Timestamp
  bool has_f16 = true, has_f64 = true;

  /// Text that names every field code generation depends on; part of the compile cache key.
  std::string key() const;
};

}  // namespace bm::hal
