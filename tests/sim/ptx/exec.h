#pragma once
// State of the block being executed, as instruction handlers see it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/sim/ptx/machine.h"

// Lanes touch only their own column's element. clang is not told: what it then fails to vectorise
// it reports as a warning.
#if defined(__clang__)
#define BM_LANES_INDEPENDENT
#else
#define BM_LANES_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace bm::sim::ptx {

struct SharedCells;
struct Beside;

struct Exec {
  std::byte* file = nullptr;
  uint32_t stride = 0;  ///< lanes rounded up to whole warps: columns of the file
  uint32_t lanes = 0;

  // The threads the current instruction is for, ascending.
  const uint16_t* active = nullptr;
  uint32_t count = 0;
  bool is_dense = false;  ///< all of them: handlers may compute the padding too

  const Kernel* kernel = nullptr;
  const Launch* launch = nullptr;
  Memory* memory = nullptr;
  std::span<const std::byte> params;
  std::byte* shared = nullptr;
  uint32_t shared_bytes = 0;
  std::byte* local = nullptr;    ///< kernel->info.local_bytes per lane
  SharedCells* cells = nullptr;  ///< when shared accesses are checked
  Beside* beside = nullptr;      ///< copies and products that go on
  Traffic traffic;
  Dim3 block;

  uint64_t clock = 0;  ///< steps of this block so far

  bool has_faulted = false;
  Fault fault;
  uint32_t fault_lane = 0;

  std::array<std::byte*, kMaxBlock> pointers;  ///< what memory handlers resolved

  template <class T>
  T* reg(uint32_t place) const {
    return reinterpret_cast<T*>(file + size_t{place} * stride);
  }

  /// Only the first fault counts.
  void raise(const Inst& in, uint32_t lane, Fault::Kind kind, uint64_t address, Access access,
             std::string_view detail = {});
};

/// f(lane) for every active lane, and for the padding of a full block.
template <class F>
inline void each(const Exec& x, F&& f) {
  if (x.is_dense) {
    for (uint32_t base = 0; base < x.stride; base += kWarp) {
      BM_LANES_INDEPENDENT
      for (uint32_t j = 0; j < kWarp; ++j) f(base + j);
    }
  } else {
    for (uint32_t k = 0; k < x.count; ++k) f(x.active[k]);
  }
}

/// The same without the padding: for effects outside the register file.
template <class F>
inline void each_thread(const Exec& x, F&& f) {
  for (uint32_t k = 0; k < x.count; ++k) f(x.active[k]);
}

}  // namespace bm::sim::ptx
