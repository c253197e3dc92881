#pragma once
// Which files a chip is booted with, without a kernel driver and for compute only: no display, no
// video, no MES (queues are set up by hand).

#include <span>
#include <string>
#include <vector>

#include "firmware/amd/discovery.h"
#include "firmware/amd/ucode.h"
#include "firmware/store.h"

namespace bm::firmware::amd {

struct IpVersion {
  uint8_t major = 0, minor = 0, revision = 0;
  auto operator<=>(const IpVersion&) const = default;
};

/// What file names are made of, and the PCI function's ids: some boards have variants of their own.
struct ChipId {
  IpVersion gc, mp0, mp1, sdma;
  uint16_t pci_device = 0;
  uint8_t pci_revision = 0;
};

/// The versions of instance 0 of each block. kCorrupt names a block that the table lacks.
Result<ChipId> chip_id(const Discovery& discovery, uint16_t pci_device, uint8_t pci_revision);

/// Boards whose files have "_kicker" in their names (kicker_device_list, amdgpu_ucode.c).
bool is_kicker(uint16_t pci_device, uint8_t pci_revision);

struct SetFile {
  std::string name;  ///< below the firmware folder: "amdgpu/gc_11_0_0_mec.bin"
  Kind kind = Kind::kCp;
  IpVersion version;  ///< of the block that it is for
  /// The chip computes without it: trusted applications (error reporting, links among cards).
  bool is_optional = false;
};

struct FirmwareSet {
  std::string_view arch;  ///< "gfx1100"
  std::vector<SetFile> files;
};

/// kUnsupported for chips that no row describes.
Result<FirmwareSet> firmware_set(const ChipId& chip);

/// parse() of a file that a chip wants. kCorrupt, too, where the header is that of a block of
/// another major or minor version, which some other file's bytes under this name have.
Result<Ucode> parse(const SetFile& wanted, const Image& file);

/// What is wrong with the files that are needed, a line each as firmware::check makes them; empty
/// when all of them load and parse.
std::vector<std::string> check_set(const FirmwareSet& set, const Search& search);

}  // namespace bm::firmware::amd
