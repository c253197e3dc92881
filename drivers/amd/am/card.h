#pragma once
// What a card says of itself before anything runs on it, and the firmware files it wants.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/generation.h"
#include "drivers/amd/chips.h"
#include "firmware/amd/discovery.h"
#include "firmware/amd/set.h"
#include "firmware/amd/ucode.h"
#include "firmware/store.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

struct Card {
  firmware::amd::Discovery discovery;
  firmware::amd::ChipId id;
  firmware::amd::FirmwareSet firmware;  ///< the files it wants
  const ChipRow* chip = nullptr;
  const Generation* generation = nullptr;
  uint64_t video_bytes = 0;
  uint32_t sdma_engines = 1;
  uint32_t xcc_mask = 1;  ///< of instances that are there
  uint32_t xccs = 1;      ///< graphics blocks: chiplets (XCC), without harvested ones
  uint32_t dies = 1;      ///< active interposer dies (AID), each with a multimedia hub

  bool is_gfx9() const { return id.gc.major == 9; }
  bool is_gfx12() const { return id.gc.major == 12; }
  uint32_t engines() const;        ///< shader engines
  uint32_t compute_units() const;  ///< of all engines, before harvesting
};

/// Memory size and discovery table, whatever chip it is.
struct CardTable {
  uint64_t video_bytes = 0;
  firmware::amd::Discovery discovery;
};
/// Errors: kDeviceLost; kCorrupt.
Result<CardTable> read_discovery(Bus& bus);

/// Reads memory size and discovery table, finds the chip and gives the bus its registers.
/// `experimental`: BM_AMD_EXPERIMENTAL, chips separated by commas that are booted although nothing
/// but our own model has judged it. Errors: kDeviceLost; kCorrupt (table); kUnsupported (chip,
/// block version).
Result<Card> discover(Bus& bus, std::string_view experimental);

/// The files of a card, loaded and parsed. Views into them live as long as it does.
class Firmware {
 public:
  /// Errors: as firmware::load() and firmware::amd::parse(), for the first file that fails.
  static Result<Firmware> load(const firmware::amd::FirmwareSet& set,
                               const firmware::Search& search);

  /// nullptr: the card wants no such file. `suffix`: end of the name, "_mec.bin"; empty: any.
  const firmware::amd::Ucode* find(firmware::amd::Kind kind, std::string_view suffix = {}) const;

 private:
  std::vector<firmware::File> files_;
  std::vector<firmware::amd::Ucode> ucodes_;
};

/// What the PSP loads: a part and how the PSP calls it (enum psp_gfx_fw_type, psp_gfx_if.h).
struct LoadItem {
  uint32_t type = 0;
  std::string_view name;
  std::span<const std::byte> bytes;
};

/// Power management firmware: loaded before protected memory is set up. No bytes: the card has its
/// own.
Result<LoadItem> smu_item(const Card& card, const Firmware& firmware);
/// Everything else, in the kernel's order, the RLC's own code last.
/// Source: enum AMDGPU_UCODE_ID (amdgpu_ucode.h), psp_load_non_psp_fw() and psp_get_fw_type()
/// (amdgpu_psp.c), amdgpu_gfx_rlc_init_microcode() (amdgpu_rlc.c), gfx_v11_0_init_microcode(),
/// gfx_v12_0_init_microcode(), psp_load_p2s_table(), psp_rl_load().
/// `is_aux`: of the SOS file's second set.
Result<std::vector<LoadItem>> load_items(const Card& card, const Firmware& firmware, bool is_aux);

}  // namespace bm::amd::am
