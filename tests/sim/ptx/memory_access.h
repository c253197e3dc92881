#pragma once
// From the addresses of an instruction's threads to host pointers, with every check on the way.

#include "tests/sim/ptx/exec.h"

namespace bm::sim::ptx {

/// Operand of a memory instruction that holds the address; Inst::imm is the offset added to it.
inline constexpr uint32_t kAddressOp = kMaxOperands - 1;

/// Fills x.pointers[lane] for every active lane: `bytes` naturally aligned bytes each. False after
/// raising the fault of the first lane that may not.
bool resolve(Exec& x, const Inst& in, uint32_t address_op, uint32_t bytes, Access access);

/// Passes of shared memory for `bytes` at x.pointers of every active lane. As many lanes as reach
/// 128 bytes go together.
void count_banks(Exec& x, uint32_t bytes);

/// Bytes and sectors of memory that an instruction reads or writes: `bytes` at every active lane's
/// address, the lanes of a warp together.
void count_sectors(Exec& x, const Inst& in, uint32_t address_op, uint32_t bytes, Access access);

/// Who touched each byte of shared memory since the last barrier (Launch::checks).
struct SharedCells {
  struct Touch {
    uint16_t lane = 0xffff;
    uint32_t epoch = 0, warp_epoch = 0;
  };
  struct Cell {
    Touch writer, readers[2];
    bool is_initialised = false, writer_is_atomic = false;
    uint8_t copies = 0;          ///< cp.async on their way here
    uint16_t products = 0;       ///< wgmma and tcgen05.mma that may still read it
    uint32_t commit = 0;         ///< tcgen05.commit of the last one; see TensorMemory
    uint32_t writer_fences = 0;  ///< of the writer's when it wrote
  };
  std::vector<Cell> cells;
  std::array<uint32_t, kMaxBlock / kWarp> warp_epochs{};
  std::array<uint32_t, kMaxBlock> fences{};  ///< fence.proxy.async of each thread so far
  uint32_t epoch = 0;
  Checks checks;

  void start(uint32_t bytes, const Checks& what);
  /// False after raising a fault.
  bool touch(Exec& x, const Inst& in, uint32_t lane, uint64_t address, uint32_t bytes,
             Access access);
  /// A wgmma of `lane`'s warpgroup starts to read, or its tcgen05.mma of commit `commit`.
  bool read_beside(Exec& x, const Inst& in, uint32_t lane, uint64_t address, uint32_t bytes,
                   uint64_t commit = 0);
  void end_read(uint64_t address, uint32_t bytes);

 private:
  bool is_concurrent(const Touch& other, uint32_t lane) const;
};

}  // namespace bm::sim::ptx
