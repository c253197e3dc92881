#pragma once
// The platform security processor: takes its own system from a bootloader, then, over a ring of
// commands, everybody else's firmware.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/amd/am/video_memory.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

// Layouts: psp_gfx_if.h (struct psp_gfx_rb_frame, psp_gfx_cmd_resp, psp_gfx_resp).
inline constexpr uint32_t kPspFrameBytes = 64, kPspCommandBytes = 1024, kPspReplyOffset = 864;
using PspFrame = std::array<uint32_t, kPspFrameBytes / 4>;
using PspCommand = std::array<uint32_t, kPspCommandBytes / 4>;

/// Addresses are the memory controller's.
PspFrame encode_psp_frame(uint64_t command, uint64_t fence, uint32_t fence_value);
PspCommand encode_load_toc(uint64_t address, uint32_t bytes);
PspCommand encode_load_firmware(uint64_t address, uint32_t bytes, uint32_t type);
/// `physical`: the same place without the memory controller's base.
PspCommand encode_setup_tmr(uint64_t address, uint64_t physical, uint32_t bytes);
PspCommand encode_autoload();
PspCommand encode_partitions(uint32_t count);

struct PspReply {
  uint32_t status = 0, tmr_bytes = 0;
};
PspReply decode_psp_reply(std::span<const std::byte, kPspCommandBytes> command);

class Psp {
 public:
  Psp(Bus& bus, Gmc& gmc, VideoMemory& memory) : bus_(bus), gmc_(gmc), memory_(memory) {}

  Status allocate_boot();
  /// Whether its operating system runs: it stays up until a reset of the whole card.
  bool is_alive();
  /// After a reset, until its bootloader answers.
  Status wait_bootloader();
  /// Its operating system, component by component, in the kernel's order.
  /// Source: psp_hw_start() in amdgpu_psp.c, psp_v13_0.c, psp_v14_0.c.
  Status load_system(const Firmware& firmware);
  /// Whether the boot loader has taken a component of load_system().
  bool has_taken_any() const { return has_taken_any_; }
  /// Source: psp_v13_0_ring_create(), psp_v13_0_ring_stop().
  Status create_ring();
  /// Table of contents, SMU, protected memory, all other firmware, then the start of the RLC.
  Status setup_protected_memory(const Card& card, const Firmware& firmware);
  Status load_firmware(const Card& card, const Firmware& firmware);
  /// How many partitions the chiplets make: 1, all work on one queue (SPX). Only where a ring is.
  /// Source: psp_spatial_partition(), gfx_v9_4_3_switch_compute_partition().
  Status set_partitions(uint32_t count);

 private:
  /// Whether the SOS file's second set is the card's: older power management firmware wants it.
  /// Source: psp_v13_0_is_aux_sos_load_required().
  Result<bool> wants_aux(const firmware::amd::Ucode& sos);
  Status send_component(uint32_t command, std::string_view name, std::span<const std::byte> bytes);
  Status put_message(std::string_view name, std::span<const std::byte> bytes);
  Result<PspReply> submit(const PspCommand& command, std::string_view what);
  Status load(const LoadItem& item);

  Bus& bus_;
  Gmc& gmc_;
  VideoMemory& memory_;
  uint64_t message_ = 0, command_ = 0, fence_ = 0, ring_ = 0;  ///< physical
  uint32_t fence_value_ = 0;
  bool has_taken_any_ = false;
};

}  // namespace bm::amd::am
