#pragma once
// What goes on beside the threads of a block: cp.async until it is waited for, wgmma until its
// registers may be read, tcgen05 until its mbarrier is waited for. Nothing is done before someone
// waits for it, so that a wait that is missing shows in results, and in faults where shared
// accesses are checked.
//
// Source: PTX ISA 8.5 and 9.0, "Data Movement and Conversion Instructions: Asynchronous copy" and
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".

#include <deque>
#include <map>
#include <vector>

#include "tests/sim/ptx/exec.h"
#include "tests/sim/ptx/tensor_memory.h"

namespace bm::sim::ptx {

inline constexpr uint32_t kWarpgroup = 4 * kWarp;

struct Beside {
  struct Copy {
    const std::byte* from = nullptr;
    uint32_t to = 0;  ///< in shared memory
    uint32_t take = 0, size = 0;
  };
  /// Of one thread; the last group is not committed.
  struct Copies {
    std::deque<std::vector<Copy>> groups = {{}};
  };
  struct Product {
    const Inst* in = nullptr;
    uint64_t left = 0, right = 0;      ///< descriptors
    bool is_added = false;             ///< scale-d
    std::vector<uint32_t> left_words;  ///< where the left operand is in registers: lane by lane
  };
  /// Accumulators that a product in flight has: [lane of the warpgroup][register].
  struct Sums {
    std::vector<uint32_t> values;
    uint32_t products = 0;
  };
  /// Of one warpgroup; the last group is not committed.
  struct Products {
    std::deque<std::vector<Product>> groups = {{}};
    std::map<uint32_t, Sums> sums;  ///< by number in Kernel::lists of equal registers
    /// Registers of left operands as the last wgmma.fence saw them, by number in Kernel::lists.
    std::map<uint32_t, std::vector<uint32_t>> fenced;
    bool is_open = false;  ///< wgmma.fence since registers were last in a thread's hands
  };
  std::vector<Copies> copies;      ///< by lane
  std::vector<Products> products;  ///< by warpgroup
  TensorMemory tensor;

  void start(uint32_t lanes);
};

/// fence.proxy.async
void fence_proxy(Exec& x, const Inst& in);

}  // namespace bm::sim::ptx
