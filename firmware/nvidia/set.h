#pragma once
// Which files a chip is booted with, without a kernel driver. Their version is pinned: what the
// GSP is asked and answers differs from one to the next.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firmware/image.h"
#include "firmware/store.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

enum class Kind : uint8_t {
  kBooterLoad,        ///< puts the GSP image into protected memory
  kBooterUnload,      ///< and takes it out
  kScrubber,          ///< clears video memory that the board's ROM left as it was
  kFalconBootLoader,  ///< gen_bootloader
  kBootLoader,        ///< of the GSP's RISC-V processor
  kFmc,               ///< first program of the GSP that the FSP starts
  kGsp,               ///< the resource manager
};
/// "booter_load", …: what files of the kind begin with.
std::string_view kind_name(Kind kind);

struct SetFile {
  std::string name;  ///< below the firmware folder: "nvidia/ga102/gsp/gsp-570.144.bin"
  Kind kind = Kind::kGsp;
};

struct FirmwareSet {
  std::string_view family;  ///< "ga10x"; GspImage::signature_of() takes it
  bool has_fwsec = false;   ///< FWSEC of the card's ROM is run, too
  std::vector<SetFile> files;
};

inline constexpr std::string_view kFirmwareVersion = "570.144";

/// By a chip's name: "ga104", "GB203". kUnsupported naming those that are known.
Result<FirmwareSet> firmware_set(std::string_view chip);
/// By NV_PMC_BOOT_42: architecture 0x16 to 0x1b, implementation.
Result<std::string_view> chip_name(uint32_t architecture, uint32_t implementation);
/// "tu102", "tu104", …
std::vector<std::string_view> known_chips();

/// Reads `file` as `kind`, and that a GSP image has a signature for `family` and is of version
/// kFirmwareVersion.
Status check_file(Kind kind, std::string_view family, const Image& file);

/// What is wrong with the files, a line each as firmware::check makes them; empty when all of them
/// load and parse.
std::vector<std::string> check_set(const FirmwareSet& set, const Search& search);

}  // namespace bm::firmware::nvidia
