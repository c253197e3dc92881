#pragma once
// The platform security processor: its boot loader, then the secure OS with a ring of commands.
//
// Sources: Linux 6.12, amdgpu/psp_v13_0.c, psp_v14_0.c (mailboxes, order), amdgpu_psp.c
// (psp_hw_start(), psp_load_non_psp_fw()), amdgpu_psp.h (PSP_BL__LOAD_*), psp_gfx_if.h (frames).
// What the images look like: every one in linux-firmware's amdgpu folder from gfx11 on has "$PS1"
// at byte 16 and at byte 20 how many bytes are signed, 0x200 less than the whole (seen in Debian's
// packages of 2023, 2025 and 2026).
//
// What it refuses, each a violation; statuses are of the model's choosing, as no source lists them:
//   P1  a boot loader command before it is ready, out of order or unknown: not ready any more, with
//       an error in bits 7:0 (psp_v13_0_wait_for_bootloader()).
//   P2  images without "$PS1", or of another length than their header says; stacks of the RS64
//   cores
//       may be longer. Of the boot loader's, whose length nobody is told, the header must fit the
//       message buffer's MiB; the key database has no "$PS1" on gfx11.
//   P3  a ring before the secure OS runs, of a wrong size or alignment, or made twice.
//   P4  frames outside the ring, commands elsewhere than aligned to 4096, unknown commands.
//   P5  firmware before the memory region (TMR) is set up; the SMU's own may come first
//       (psp_load_fw(): "TMR setup should be performed after PMFW loaded").
//   P6  a region smaller than the table of contents asked for, not aligned to 1 MiB.
//   P7  AUTOLOAD_RLC without all that the graphics core boots from: taken, and the core does not
//       come up.
//   P9  chips without autoload: AUTOLOAD_RLC at all, firmware before an empty SETUP_TMR, partitions
//   that
//       do not divide the chiplets or come before the graphics core's files. What their files look
//       like is in no package seen here: only that all of them was written and flushed.
//   P8  addresses that the MM hub does not translate, and what the HDP still holds of them.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/amd/chip/bus.h"
#include "tests/sim/amd/chip/gmc.h"

namespace bm::sim::amd {

/// psp_gfx_if.h, GFX_FW_TYPE_*; those that the model tells apart.
enum class FirmwareType : uint32_t {
  kMec = 4,
  kMecJumpTable = 5,
  kRlcV = 7,
  kRlcG = 8,
  kSdma0 = 9,
  kSmu = 18,
  kRlcP = 25,
  kRlcIram = 26,
  kRlcDram = 48,
  kRegisterList = 67,
  kImuI = 68,
  kImuD = 69,
  kSdmaTh0 = 71,
  kSdmaTh1 = 72,
  kRs64Pfp = 87,
  kRs64Me = 88,
  kRs64Mec = 89,
  kRs64PfpStack = 90,
  kRs64MeStack = 92,
  kRs64MecStack = 94,
};

/// Thread: the register bus's.
class Psp {
 public:
  Psp(RegisterBus& bus, Fabric& fabric, Hub& hub);
  bool has_secure_os() const { return has_os_; }
  bool has(FirmwareType type) const { return loaded_.contains(static_cast<uint32_t>(type)); }
  bool is_autoload_done() const { return is_autoload_done_; }
  /// Of the last AUTOLOAD_RLC; empty: all was there.
  const std::string& missing() const { return missing_; }
  void reset();
  /// As another driver leaves it: the secure OS runs, with a ring.
  void leave_running();

  /// Of GFX_CMD_ID_SRIOV_SPATIAL_PART; 0: nobody has said.
  uint32_t partitions() const { return partitions_; }

  std::function<void()> on_smu_loaded, on_autoload;
  std::map<uint32_t, uint32_t> planted_status;  ///< by command; answers with it
  bool hangs = false;                           ///< after the next boot loader command
  uint32_t region_bytes = 0xe00000;             ///< what LOAD_TOC answers

 private:
  void boot_command(uint32_t command);
  void ring_control(uint32_t command);
  void run_frames(uint32_t write_pointer);
  uint32_t execute(std::vector<uint32_t>& command);
  uint32_t setup_region(const std::vector<uint32_t>& command);
  uint32_t load(const std::vector<uint32_t>& command);
  uint32_t autoload();
  /// Without autoload: the graphics core boots once its files are there.
  void boot_when_complete();
  uint32_t partition(uint32_t count);
  enum class Image : uint8_t { kPlain, kPadded, kKeys, kOpaque };
  bool check_image(uint64_t address, uint64_t bytes, const std::string& what,
                   Image kind = Image::kPlain);
  bool fetch(uint64_t address, std::span<std::byte> to, const char* what);
  void violation(std::string text) { bus_.violations().add("PSP: " + std::move(text)); }
  uint64_t ring_address() const { return uint64_t{*ring_hi_} << 32 | *ring_lo_; }

  RegisterBus& bus_;
  Fabric& fabric_;
  Hub& hub_;
  uint32_t *boot_ = nullptr, *boot_address_ = nullptr, *control_ = nullptr, *wptr_ = nullptr,
           *ring_lo_ = nullptr, *ring_hi_ = nullptr, *ring_size_ = nullptr,
           *sign_of_life_ = nullptr, *version_ = nullptr;
  int boot_polls_ = 0, control_polls_ = 0, life_polls_ = 0;
  uint32_t control_answer_ = 0;
  std::set<uint32_t> booted_;  ///< commands
  bool has_os_ = false, has_ring_ = false, has_region_ = false, is_autoload_done_ = false;
  bool knows_contents_ = false;
  std::set<uint32_t> loaded_;
  std::string missing_;
  uint32_t read_pointer_ = 0, partitions_ = 0;
};

}  // namespace bm::sim::amd
