#pragma once
// The commands of the bring-up bench; each prints and returns the program's exit code.

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bellmetal/bringup/card.h"

namespace bm::cli {

struct BootOptions {
  CardOptions card;
  std::string trace;  ///< file; empty: none
  bool has_stats = false, always_reset = false;
  bool runs_kernel = false;    ///< one small kernel after the boot; has_stats does, too
  uint32_t power_limit_w = 0;  ///< 0: BM_AMD_POWER_LIMIT, which AMD's cards alone have
};
/// Boots a card stage by stage and closes it again.
int run_boot(System& system, const BootOptions& options);

/// Forgets the weights that are kept in a card's memory for a hot restart.
int run_forget(System& system, const CardOptions& options);

struct AutopsyCommand {
  CardOptions card;
  std::vector<uint64_t> addresses;  ///< on the GPU, to be walked through its page tables
};
/// Why a card hangs, as it stands: nothing is booted or reset.
int run_autopsy(System& system, const AutopsyCommand& options);

/// Configuration space, BARs and the IP discovery table.
int run_discover(System& system, const CardOptions& options);

struct FirmwareOptions {
  CardOptions card;
  std::string chip;  ///< "gfx1201" or "ga104", instead of a card
};
/// Which files a chip wants, where they are, what they hold.
int run_firmware_list(System& system, const FirmwareOptions& options);
/// Whether all of them are there, known and whole.
int run_firmware_check(System& system, const FirmwareOptions& options);

struct RegisterOptions {
  CardOptions card;
  std::string chip;                ///< of decode, instead of a card
  std::vector<std::string> names;  ///< "GCVM_L2_CNTL", "MMHUB.MMVM_*", a dword address as 0x378c
  std::string name, value;
  bool is_sure = false;
};
int run_registers_read(System& system, const RegisterOptions& options);
/// NAME VALUE, or NAME.FIELD VALUE with the other fields as they are.
int run_registers_write(System& system, const RegisterOptions& options);
/// Fields of a value, without a card.
int run_registers_decode(System& system, const RegisterOptions& options);

}  // namespace bm::cli
