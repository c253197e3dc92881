#pragma once
// What a wave has asked for and not waited for: memory operations outstanding by counter, and the
// registers that they will write. Hardware does not hold back an instruction that wants such a
// register; s_waitcnt and its successors do.
//
// Sources: LLVM 19, SIInsertWaitcnts.cpp (which instruction counts where, order of each kind, flat
// addresses), AMDGPU instruction syntax, "waitcnt" (fields). AMD's ISA reference guides have the
// rules under "Data Dependency Resolution"; these were not compared with them.

#include <array>
#include <bitset>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/amd/isa/instruction.h"

namespace bm::sim::amd {

/// What an instruction means to the counters.
struct Traffic {
  enum class Kind : uint8_t {
    kNone,
    kVector,  ///< VMEM: returns in order
    kLds,     ///< in order
    kScalar,  ///< SMEM and messages that answer: in any order
    kFlat,    ///< either memory or LDS: both counters
    kWait,
    kBarrier,
  };
  static constexpr uint32_t kCounters = 3;
  static constexpr uint8_t kNoLimit = 0xff;

  Kind kind = Kind::kNone;
  uint8_t counters = 0;  ///< bit n: counter n goes up
  bool has_dst = false;  ///< a register is written when it returns
  bool writes_lds = false;
  std::array<uint8_t, kCounters> most = {kNoLimit, kNoLimit, kNoLimit};  ///< kWait
};
Traffic traffic_of(const Instruction& in, Isa isa);

/// The operations of one wave.
class Waits {
 public:
  /// What is wrong with executing `in` now; nothing: all that it wants is there.
  std::optional<std::string> problem(const Instruction& in, const Traffic& t) const;
  /// `in` is executed.
  void issue(const Instruction& in, const Traffic& t);

 private:
  struct Operation {
    Traffic::Kind kind = Traffic::Kind::kNone;
    uint8_t counters = 0;
    bool writes_lds = false;
    Slot dst;  ///< no dwords: none
  };
  static constexpr size_t kCodes = 1024;

  bool is_pending(uint32_t code, uint32_t dwords) const;
  bool is_in_order_behind(const Slot& dst, Traffic::Kind kind) const;
  void wait(const Traffic& t);

  std::vector<Operation> operations_;                     ///< oldest first
  std::array<uint32_t, Traffic::kCounters> counts_ = {};  ///< at most so many are outstanding
  std::bitset<kCodes> pending_;                           ///< by operand code
};

}  // namespace bm::sim::amd
