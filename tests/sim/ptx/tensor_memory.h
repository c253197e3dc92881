#pragma once
// Tensor memory of a block, its products (tcgen05.mma) and the mbarriers that these announce
// themselves at. A product is done when threads ask an mbarrier for it again, not before. Who
// knows that it is done is kept by thread: who waited, and whom that one met at a barrier since.
//
// Source: PTX ISA 9.0, "TensorCore 5th Generation Family Instructions" and "mbarrier".

#include <array>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "tests/sim/ptx/machine.h"

namespace bm::sim::ptx {

struct TensorMemory {
  static constexpr uint32_t kLanes = 128, kColumns = 512, kLeastColumns = 32, kQuarter = 32;
  static constexpr uint16_t kNobody = 0xffff;

  struct Product {
    const Inst* in = nullptr;
    uint64_t left = 0, right = 0;   ///< descriptors
    uint32_t form = 0, column = 0;  ///< instruction descriptor, first column
    bool is_added = false;
    uint16_t lane = 0;  ///< of the block
  };
  /// Products since the commit before, and where they announce themselves.
  struct Commit {
    uint32_t mbarrier = 0;
    uint64_t number = 0;
    std::vector<Product> products;
    uint64_t asked_at = 0;  ///< Exec::clock when somebody first asked, in vain; 0: nobody did
  };
  struct Mbarrier {
    uint32_t count = 1, pending = 1;
    uint64_t phases = 0;       ///< complete
    uint64_t last_commit = 0;  ///< that completed one
    uint16_t starter = kNobody;
    uint32_t fences = 0;  ///< of the starter when it started
  };
  enum class Loads : uint8_t { kNone, kDone, kFenced };
  struct Thread {
    uint64_t known_commit = 0;  ///< it and those before are done
    uint32_t fences = 0;        ///< fence.mbarrier_init
    bool needs_fence = false;   ///< tcgen05.fence::after_thread_sync
    Loads loads = Loads::kNone;
  };
  struct Load {
    uint32_t place = 0, value = 0;
    uint16_t lane = 0;
  };

  std::vector<uint32_t> cells;                  ///< [lane][column]
  std::array<uint64_t, kColumns> writers = {};  ///< last commit that writes a column; 0: none
  uint32_t first = 0, columns = 0;              ///< allocated
  bool may_allocate = true;
  uint16_t issuer = kNobody;
  std::vector<Product> open;   ///< not committed
  std::deque<Commit> commits;  ///< not done
  uint64_t committed = 0;
  std::map<uint32_t, Mbarrier> mbarriers;  ///< by address in shared memory
  std::vector<Thread> threads;
  std::vector<std::vector<Load>> loads;  ///< by warp, not waited for
  uint64_t polls = 0;                    ///< in vain, since something was committed

  void start(uint32_t lanes);
  /// A barrier lets these go.
  void meet(std::span<const uint16_t> lanes);
};

/// fence.mbarrier_init
void fence_mbarriers(Exec& x, const Inst& in);

}  // namespace bm::sim::ptx
