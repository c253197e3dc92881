#pragma once
// NVIDIA's firmware files as the model knows them, and the VBIOS that it makes up.
//
// The model is given the files of a run: NVIDIA's, or such as tests write. What a driver loads is
// compared with them. Forms of the files: K nouveau/extract-firmware-nouveau.py; of ROM and
// descriptors: K src/nvidia/src/kernel/gpu/gsp/kernel_gsp_fwsec.c, kernel_gsp_vbios_tu102.c.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/nv/chip/rows.h"

namespace bm::sim::nv::card {

using Blob = std::vector<std::byte>;

/// Contents by the name that files have without the version: "booter_load", "booter_unload",
/// "bootloader", "gsp", "fmc", "scrubber", "gen_bootloader".
struct FirmwareFiles {
  std::map<std::string, Blob> files;

  /// Those of the card in FOLDER/nvidia/CHIP/gsp/NAME-VERSION.bin; what is not there is left out.
  static FirmwareFiles load(const std::string& folder, const CardRow& row,
                            std::string_view version = "570.144");
};

/// A program for a falcon's secure mode.
struct HsProgram {
  enum class Kind : uint8_t { kFwsec, kBooterLoad, kBooterUnload, kScrubber } kind;
  std::string name;
  Blob front;  ///< code in front of the secure mode's, which PIO loads as well
  Blob code, data;
  uint32_t code_virtual = 0;                       ///< address of the secure code
  uint32_t signature_at = 0, signature_bytes = 0;  ///< in the data; 0 bytes: none
  std::vector<Blob> signatures;
  uint32_t signature_versions = 0;  ///< FWSEC: a bit for each fuse version
  uint32_t engine_mask = 0, ucode_id = 0;
  uint32_t mapper_at = 0;  ///< FWSEC's DMEM mapper

  /// That of a card with this fuse; nullptr: none.
  const Blob* signature_for(uint32_t fuse) const;
};

/// bootloader, gsp, fmc, gen_bootloader.
struct RiscvImage {
  Blob image;
  uint32_t code = 0, data = 0, manifest = 0, app_version = 0;
};
struct GspImage {
  Blob image, signature;
};
struct FmcImage {
  Blob image, hash, key, signature;
};
struct LoaderImage {
  Blob code;
  uint32_t start_tag = 0;
  uint32_t descriptor_at = 0;  ///< in the data memory
};

/// Empty, with the reason in *why, where the bytes are no such file.
std::optional<HsProgram> read_hs(HsProgram::Kind kind, const Blob& file, std::string* why);
std::optional<RiscvImage> read_riscv(const Blob& file, std::string* why);
std::optional<GspImage> read_gsp(const Blob& file, std::string_view signature, std::string* why);
std::optional<FmcImage> read_fmc(const Blob& file, std::string* why);
std::optional<LoaderImage> read_loader(const Blob& file, std::string* why);

/// A ROM of 1 MiB with a FWSEC of the row's descriptor version. Its programs are noise.
struct Vbios {
  Blob rom;
  std::optional<HsProgram> fwsec;  ///< absent where the row has none
};
Vbios make_vbios(const CardRow& row);

/// Fuse version of every microcode: of two signatures FWSEC's second, booter's first.
constexpr uint32_t kFuse = 1;

}  // namespace bm::sim::nv::card
