#pragma once
// Wait states that CDNA3 wants between its matrix instructions and others. Hardware does not hold
// back a VALU or memory instruction until the result of an MFMA is there, nor an MFMA until what
// the VALU wrote is; compilers put other instructions or s_nop between them.
//
// Sources: LLVM, GCNHazardRecognizer.cpp (GFX940_XDL_N_Pass… and GFX940_SMFMA_N_Pass…: passes and
// 3, passes and 2); passes of each shape: LLVM, SISchedule.td (SIDPGFX942FullSpeedModel). LLVM also
// makes the code that is checked: a mistake of its tables is found by nobody here.
// Not modelled: instructions on float64, and accumulators that one MFMA takes from another.

#include <optional>
#include <string>
#include <vector>

#include "tests/sim/amd/isa/instruction.h"

namespace bm::sim::amd {

class MatrixHazards {
 public:
  /// Wait states that the result of `in` takes until others may read or write it; 0: `in` is no
  /// matrix instruction, or not modelled.
  static uint32_t states_of(const Instruction& in);

  /// What is wrong with executing `in` now. `states`: states_of(in).
  std::optional<std::string> problem(const Instruction& in, uint32_t states) const;
  void issue(const Instruction& in, uint32_t states);

 private:
  struct Write {
    Slot dst;
    uint64_t until = 0;  ///< state from which on it may be used
    bool is_matrix = false;
  };
  std::vector<Write> writes_;
  uint64_t now_ = 0;
};

}  // namespace bm::sim::amd
