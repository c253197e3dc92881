#pragma once
// What the code that our compiler makes consists of, and whether the simulator knows all of it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::test {

struct OpcodeReport {
  uint64_t kernels = 0, instructions = 0;
  std::map<std::string, uint64_t> opcodes;  ///< emitted, by name; both halves of a dual one
  /// "gfx1100: LLVM says …": instructions that LLVM's disassembler and the simulator's decoder read
  /// differently, and opcodes that nothing executes. Each opcode of the simulator's tables has a
  /// test of its own (bm_sim_amd_isa_test, Tables.*), so these are all that are not verified.
  std::set<std::string> unverified;
};

/// Goes through the code of one object file for `chip`. Errors: no object, or no LLVM.
Status look_at(std::span<const std::byte> object, std::string_view chip, OpcodeReport& report);

std::string to_string(const OpcodeReport& report);

}  // namespace bm::test
