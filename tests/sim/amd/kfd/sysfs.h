#pragma once
// The files the modelled driver shows in sysfs.

#include <map>
#include <string>

#include "tests/sim/amd/kfd/options.h"

namespace bm::sim::amd {

/// Facts of a chip as real cards show them, from public listings of sysfs.
struct Card {
  const char* chip;
  uint32_t target_version;
  uint32_t simds, simds_per_cu, arrays, arrays_per_engine, waves_per_simd, scratch_slots;
  uint32_t gc[3], bus[3];
  uint32_t vgpr_bytes;  ///< saved per compute unit
  uint32_t wave_bytes;  ///< of the control stack
};
const Card* find_card(const std::string& chip);  ///< nullptr: none
const Card& card_of(const std::string& chip);    ///< aborts where there is none

/// Sizes the kernel compares a queue's with. Source: Linux 6.12, kfd_queue.c,
/// kfd_queue_ctx_save_restore_size().
struct Sizes {
  uint32_t control_stack, save, debug;
};
Sizes sizes_of(const Card& card, uint32_t xccs);

/// Path → contents.
std::map<std::string, std::string> sysfs_of(const Options& options);
uint32_t gpu_id_of(uint32_t gpu);
uint32_t render_minor_of(uint32_t gpu);

}  // namespace bm::sim::amd
