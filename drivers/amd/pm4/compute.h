#pragma once
// A kernel launch as PM4 packets. Pure.

#include <array>
#include <cstdint>
#include <span>

#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/regs/registers.h"

namespace bm::amd::pm4 {

/// User registers at a wave's start, at most (COMPUTE_USER_DATA_0 … 15).
inline constexpr size_t kMaxUserData = 16;

/// What a launch puts into registers. RSRC words as in the kernel descriptor; LDS and privilege are
/// added by the launch plan.
struct Launch {
  uint64_t entry = 0;  ///< of the code, multiple of 256
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  uint32_t tmpring = 0;
  /// Scratch of each chiplet, multiples of 256; empty: registers stay as they are.
  std::span<const uint64_t> scratch{};
  std::array<uint32_t, kMaxUserData> user_data{};
  uint32_t num_user_data = 0;
  std::array<uint32_t, 3> threads{1, 1, 1};  ///< of a work-group
  std::array<uint32_t, 3> groups{1, 1, 1};
  bool is_wave32 = true;
};

/// Where the patchable words are.
struct LaunchWords {
  uint32_t user_data = 0;  ///< first of num_user_data
  uint32_t groups = 0;     ///< x, y, z
};

/// DISPATCH_DIRECT's last word. Errors: none; wave32 only where the chip has it (caller's promise).
uint32_t dispatch_initiator(RegisterSet set, bool is_wave32);

/// Cache invalidation between kernels, registers, DISPATCH_DIRECT, wait for its end.
/// With more than one chiplet the words must lie in an indirect buffer.
LaunchWords launch(Writer& writer, const RegisterMap& registers, RegisterSet set,
                   const Launch& launch);

/// Done by chiplet `xcc` alone where `xccs` run the words: without PRED_EXEC each would write, some
/// long after the host has gone on. Returns as Writer::put(); dwords where there are several below.
uint32_t release_once(Writer& writer, const ReleaseMem& packet, uint32_t xccs, uint32_t xcc = 0);
inline constexpr uint32_t kReleaseDwords = 8, kOnceDwords = kReleaseDwords + 2;

/// Writes of the CPU through the BAR become visible: request and wait. Nothing where `registers` do
/// not have the bus block.
void flush_bar_writes(Writer& writer, const RegisterMap& registers);

}  // namespace bm::amd::pm4
