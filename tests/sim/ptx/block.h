#pragma once
// Executes the blocks of a launch, one at a time: groups of threads at the same instruction, lowest
// program counter first; barriers; faults.

#include <atomic>
#include <mutex>
#include <vector>

#include "tests/sim/ptx/beside.h"
#include "tests/sim/ptx/exec.h"
#include "tests/sim/ptx/memory_access.h"

namespace bm::sim::ptx {

/// What the host threads of one launch share.
struct Progress {
  std::atomic<uint64_t> steps{0}, lane_instructions{0}, blocks{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  bool has_fault = false;
  Fault fault;
  Traffic traffic;  ///< under `mutex`

  void report(const Fault& f);
};

class BlockRunner {
 public:
  /// `image`: address of the module's variables.
  BlockRunner(const Kernel& kernel, const Launch& launch, uint64_t image, Memory& memory,
              Progress& progress);
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  /// False after a fault, which is in `progress`, or when another thread's fault stops the launch.
  bool run(Dim3 block);

 private:
  using Lanes = std::vector<uint16_t>;
  struct Group {
    uint32_t pc = 0;
    Lanes lanes;
  };
  struct Waiter {
    uint32_t pc = 0;  ///< of the barrier
    uint16_t lane = 0;
  };
  struct Barrier {
    std::vector<Waiter> waiters;
    uint32_t arrived = 0;       ///< waiters and those who only arrived
    uint32_t expected = kNone;  ///< kNone: every thread that is still there
    uint32_t votes = 0, ayes = 0;
  };

  void fill_constants(uint64_t image);
  void fill_special(const Constant& c);
  void fill_block();
  void start(Dim3 block);
  bool run_group(Group& g);
  bool step_flow(Group& g, const Inst& in);
  bool account(uint32_t pc);
  void select(const Group& g, const Inst& in);
  void select_guarded(const Group& g, const Inst& in);
  void insert(uint32_t pc, Lanes lanes);
  void park_active(Group& g);
  uint32_t limit_after(uint32_t pc) const;
  void branch(Group& g, const Inst& in);
  bool scatter(Group& g, const Inst& in);
  bool leave(Group& g, const Inst& in);
  bool arrive(Group& g, const Inst& in);
  bool pass_together(Group& g, const Inst& in);
  bool arrive_one(uint16_t lane, const Inst& in, uint32_t pc);
  void release_complete();
  void release(Barrier& b);
  bool converge(Group& g, const Inst& in);
  bool warp_barrier(Group& g, const Inst& in);
  void release_warp(uint32_t warp);
  bool unblock();
  void deadlock();
  void remove_active(Group& g);
  Lanes new_lanes();
  void recycle(Lanes lanes);

  const Kernel& kernel_;
  const Launch& launch_;
  Progress& progress_;
  Exec x_;
  std::vector<std::byte> file_, local_, shared_;
  SharedCells cells_;
  Beside beside_;
  std::vector<Group> ready_;    ///< by program counter, ascending
  std::vector<Group> blocked_;  ///< waiting for lanes of their warp
  std::vector<Waiter> warp_waiters_[kMaxBlock / kWarp];
  std::array<Barrier, 16> barriers_;
  std::vector<Lanes> spare_;
  Lanes subset_;
  std::array<uint32_t, kMaxBlock / kWarp> live_masks_{};
  uint32_t live_ = 0;
  uint64_t pending_steps_ = 0, pending_lanes_ = 0;
  uint64_t progress_mark_ = 0, useful_ = 0;
  uint32_t backward_ = 0;
};

}  // namespace bm::sim::ptx
