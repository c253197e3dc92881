#pragma once
// What runs in secure mode until GSP-RM starts: FWSEC, booter, the FSP's chain of trust with the
// GSP's FMC; and the write-protected region (WPR2) that they make.
// Source: K gpu/gsp/arch/turing/kernel_gsp_frts_tu102.c, kernel_gsp_booter_tu102.c,
// kernel_gsp_tu102.c (kgspCalculateFbLayout_TU102), hopper/kernel_gsp_gh100.c,
// arch/nvalloc/common/inc/gsp/gsp_fw_wpr_meta.h, gspifpub.h, gpu/fsp/arch/hopper/kern_fsp_gh100.c,
// gpu/fsp/kern_fsp_cot_payload.h, arch/nvalloc/common/inc/fsp.
//
// It refuses
//   W1  a FWSEC command with other versions, sizes, media; a region outside of video memory or
//   where
//       WPR2 is already
//   W2  booter without WPR2's FRTS, without the scrub, without the GSP reset into RISC-V
//   W3  WPR meta that is not there, with wrong magic, revision, sizes that are not the files'
//   W4  regions that overlap, are misaligned, out of order or not those that FWSEC was told
//   W5  a radix list that does not cover the image, pages that are not mapped or not the image's
//   W6  a boot loader, signature or FMC that is not the file's; the wrong signature for the chip
//   W7  booter_unload while GSP-RM runs; a resume of the GSP that is not in RISC-V, or with other
//       arguments
//   W8  FSP messages before its boot has ended, without or with broken headers, of another size or
//       version than the chip's, with wrong hash, key or signature; a second one
//   W9  FMC boot parameters of another target, size or with addresses that are not mapped

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tests/sim/nv/chip/bus.h"
#include "tests/sim/nv/chip/falcon.h"
#include "tests/sim/nv/chip/firmware.h"
#include "tests/sim/nv/chip/memory.h"

namespace bm::sim::nv::card {

/// Firmware of the run as the card knows it.
struct CardFirmware {
  std::optional<HsProgram> fwsec, booter_load, booter_unload, scrubber;
  std::optional<LoaderImage> loader;
  std::optional<RiscvImage> bootloader;
  std::optional<GspImage> gsp;
  std::optional<FmcImage> fmc;
};

/// Thread: callers serialise.
class SecureBoot {
 public:
  SecureBoot(const CardRow& row, const CardFirmware& firmware, RegisterFile& registers,
             Memory& memory, Falcon& gsp, Falcon* sec2);

  /// GSP-RM starts with its libos arguments at this bus address. False: it does not.
  std::function<bool(uint64_t libos_arguments)> start_gsp;
  std::function<bool()> is_gsp_running;
  /// SEC2 has been started again while awaits_resume: GSP-RM goes on.
  std::function<void()> on_resume;
  bool awaits_resume = false;
  void power_on();
  bool is_wpr_up() const { return wpr_high_ != 0; }
  /// What the FMC does behind the end of GSP-RM: the protected memory is free again, and the FSP
  /// takes another chain of trust, since drivers of Hopper are loaded twice without a reset.
  void release() {
    wpr_low_ = wpr_high_ = frts_ = 0;
    is_chain_done_ = false;
  }
  /// Bytes of video memory that only the GSP may touch; empty where WPR2 is down.
  bool is_protected(uint64_t offset, uint64_t bytes) const {
    return wpr_high_ != 0 && offset < wpr_high_ && offset + bytes > wpr_low_;
  }

 private:
  bool run(const HsProgram& program, std::span<const std::byte> data);
  bool run_fwsec(std::span<const std::byte> data);
  bool run_booter_load();
  bool run_booter_unload();
  bool check_meta(const Blob& meta);
  bool check_layout(const Blob& meta);
  bool check_sizes(const Blob& meta);
  bool check_images(const Blob& meta);
  bool check_radix(uint64_t root, uint64_t bytes);
  void declare_fsp();
  void receive();
  uint32_t handle_message(std::span<const std::byte> message);
  uint32_t boot_chain(std::span<const std::byte> payload);
  uint32_t boot_fmc(uint64_t arguments, uint64_t frts_from_end, uint32_t frts_bytes);
  bool refuse(std::string what);

  const CardRow& row_;
  const CardFirmware& firmware_;
  RegisterFile& registers_;
  Memory& memory_;
  Falcon& gsp_;
  Falcon* const sec2_;
  uint64_t wpr_low_ = 0, wpr_high_ = 0;  ///< bytes; the end is exclusive
  uint64_t frts_ = 0, libos_arguments_ = 0;
  bool is_handed_off_ = false;  ///< NV_PGC6_BSI_SECURE_SCRATCH_14
  uint32_t scratch_[2] = {};    ///< NV_PBUS_VBIOS_SCRATCH 0xe, 0x15
  uint32_t scrub_handoff_ = 3u << 29;

  // FSP.
  Blob emem_ = Blob(1024);
  uint32_t emem_control_ = 0, queue_head_ = 0, queue_tail_ = 0, message_head_ = 0,
           message_tail_ = 0;
  uint32_t boot_reads_left_ = 0;
  bool saw_boot_ = false, is_chain_done_ = false;
  uint32_t lockdown_left_ = 0;  ///< reads of HWCFG2 that still see it
  uint32_t masked_left_ = 0;    ///< reads of the GSP that are refused
  uint64_t fmc_arguments_ = 0;

 public:
  /// The ROM's boot: how often it is still seen unfinished after power-on.
  static constexpr uint32_t kBootReads = 2;
  bool saw_rom_boot() const { return saw_boot_; }
  uint32_t read_i2cs();
  uint32_t read_scratch05();
  bool needs_scrub = false;
};

}  // namespace bm::sim::nv::card
