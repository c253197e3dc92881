#pragma once
// The boot loader of the GSP's RISC-V processor (bootloader), which checks and starts the GSP
// image. Source: open-gpu-kernel-modules 570.144, rmRiscvUcode.h, RM_RISCV_UCODE_DESC.

#include <cstdint>
#include <span>

#include "firmware/image.h"
#include "firmware/nvidia/falcon.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

struct RiscvUcode {
  std::span<const std::byte> image;  ///< ranges below lie in it, or have no bytes
  uint32_t version = 0;              ///< of the descriptor: 4 for Turing and GA100, 5 for later
  uint32_t app_version = 0;          ///< what FALCON_OS says once it runs
  Range bootloader;
  Range bootloader_params;
  Range riscv_elf;
  Range manifest;
  Range monitor_data;
  Range monitor_code;
  // What descriptors of 56 bytes end before.
  bool is_monitor_enabled = false;
  Range swbrom_code;
  Range swbrom_data;
  // What descriptors of 76 bytes end before.
  uint32_t fb_reserved_size = 0;
  bool is_signed_as_code = false;
};

/// The descriptor reaches from header_offset to data_offset: what a shorter one lacks is 0.
/// Errors: kCorrupt with the offset.
Result<RiscvUcode> parse_riscv_ucode(const Image& file);

}  // namespace bm::firmware::nvidia
