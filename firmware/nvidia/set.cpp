#include "firmware/nvidia/set.h"

#include <algorithm>
#include <cctype>

#include "firmware/nvidia/falcon.h"
#include "firmware/nvidia/gsp_image.h"
#include "firmware/nvidia/riscv.h"

namespace bm::firmware::nvidia {
namespace {

using enum Kind;

// Source: extract-firmware-nouveau.py; nouveau, nvkm/subdev/gsp/{tu102,tu116,ga100,ga102,ad102,
// gh100,gb100,gb202}.c.
constexpr Kind kWithLoader[] = {kBooterLoad, kBooterUnload, kFalconBootLoader, kBootLoader, kGsp};
constexpr Kind kWithFwsec[] = {kBooterLoad, kBooterUnload, kBootLoader, kGsp};
constexpr Kind kWithScrubber[] = {kBooterLoad, kBooterUnload, kScrubber, kBootLoader, kGsp};
constexpr Kind kWithFsp[] = {kFmc, kBootLoader, kGsp};

struct FamilyRow {
  std::string_view family;  // nv_firmware_chip_family_to_string
  std::string_view folder;  // links lead there from the other chips' folders
  bool has_fwsec;
  std::span<const Kind> files;
};
constexpr FamilyRow kTu10x{"tu10x", "tu102", true, kWithLoader};
constexpr FamilyRow kTu11x{"tu11x", "tu116", true, kWithLoader};
constexpr FamilyRow kGa100{"ga100", "ga100", true, kWithLoader};
constexpr FamilyRow kGa10x{"ga10x", "ga102", true, kWithFwsec};
constexpr FamilyRow kAd10x{"ad10x", "ad102", true, kWithScrubber};
constexpr FamilyRow kGh100{"gh100", "gh100", false, kWithFsp};
constexpr FamilyRow kGb10x{"gb10x", "gb100", false, kWithFsp};
constexpr FamilyRow kGb20x{"gb20x", "gb202", false, kWithFsp};

struct ChipRow {
  std::string_view name;
  uint32_t architecture, implementation;
  const FamilyRow* family;
};
// nv_arch.h: GPU_ARCHITECTURE_*, GPU_IMPLEMENTATION_*; without chips on boards with processors
// (GB10B, GB20B), whose files are not in Debian.
constexpr ChipRow kChips[] = {
    {"tu102", 0x16, 2, &kTu10x}, {"tu104", 0x16, 4, &kTu10x}, {"tu106", 0x16, 6, &kTu10x},
    {"tu116", 0x16, 8, &kTu11x}, {"tu117", 0x16, 7, &kTu11x}, {"ga100", 0x17, 0, &kGa100},
    {"ga102", 0x17, 2, &kGa10x}, {"ga103", 0x17, 3, &kGa10x}, {"ga104", 0x17, 4, &kGa10x},
    {"ga106", 0x17, 6, &kGa10x}, {"ga107", 0x17, 7, &kGa10x}, {"gh100", 0x18, 0, &kGh100},
    {"ad102", 0x19, 2, &kAd10x}, {"ad103", 0x19, 3, &kAd10x}, {"ad104", 0x19, 4, &kAd10x},
    {"ad106", 0x19, 6, &kAd10x}, {"ad107", 0x19, 7, &kAd10x}, {"gb100", 0x1a, 0, &kGb10x},
    {"gb102", 0x1a, 2, &kGb10x}, {"gb202", 0x1b, 2, &kGb20x}, {"gb203", 0x1b, 3, &kGb20x},
    {"gb205", 0x1b, 5, &kGb20x}, {"gb206", 0x1b, 6, &kGb20x}, {"gb207", 0x1b, 7, &kGb20x}};

}  // namespace

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case kBooterLoad: return "booter_load";
    case kBooterUnload: return "booter_unload";
    case kScrubber: return "scrubber";
    case kFalconBootLoader: return "gen_bootloader";
    case kBootLoader: return "bootloader";
    case kFmc: return "fmc";
    case kGsp: return "gsp";
  }
  return "";
}

std::vector<std::string_view> known_chips() {
  std::vector<std::string_view> names;
  for (const ChipRow& row : kChips) names.push_back(row.name);
  return names;
}

Result<std::string_view> chip_name(uint32_t architecture, uint32_t implementation) {
  for (const ChipRow& row : kChips)
    if (row.architecture == architecture && row.implementation == implementation) return row.name;
  return fail(Code::kUnsupported,
              "no list of firmware for architecture {:#x}, implementation {:#x}", architecture,
              implementation);
}

Result<FirmwareSet> firmware_set(std::string_view chip) {
  std::string name(chip);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* const row = std::ranges::find(kChips, name, &ChipRow::name);
  if (row == std::end(kChips))
    return fail(Code::kUnsupported, "no list of firmware for chip '{}'; known: {}", chip,
                fmt::join(known_chips(), ", "));
  FirmwareSet set{.family = row->family->family, .has_fwsec = row->family->has_fwsec, .files = {}};
  for (const Kind kind : row->family->files)
    set.files.push_back({.name = fmt::format("nvidia/{}/gsp/{}-{}.bin", row->family->folder,
                                             kind_name(kind), kFirmwareVersion),
                         .kind = kind});
  return set;
}

Status check_file(Kind kind, std::string_view family, const Image& file) {
  switch (kind) {
    case kBooterLoad:
    case kBooterUnload:
    case kScrubber: BM_TRY(parse_hs_ucode(file)); return {};
    case kFalconBootLoader: BM_TRY(parse_falcon_boot_loader(file)); return {};
    case kBootLoader: BM_TRY(parse_riscv_ucode(file)); return {};
    case kFmc: BM_TRY(parse_fmc_image(file)); return {};
    case kGsp: {
      const GspImage image = BM_TRY(parse_gsp_image(file));
      BM_TRY(image.signature_of(family));
      if (image.version != kFirmwareVersion)
        return fail(Code::kUnsupported, "{}: it is version {}, {} is wanted", file.name(),
                    image.version, kFirmwareVersion);
      return {};
    }
  }
  return {};
}

std::vector<std::string> check_set(const FirmwareSet& set, const Search& search) {
  std::vector<std::string_view> names;
  for (const SetFile& file : set.files) names.push_back(file.name);
  std::vector<std::string> lines = check(names, search);
  for (const SetFile& entry : set.files) {
    const Result<File> file = load(entry.name, search);
    if (!file) continue;  // said above
    if (const Status status = check_file(entry.kind, set.family, Image(file->path, file->bytes));
        !status)
      lines.push_back(status.error().message);
  }
  return lines;
}

}  // namespace bm::firmware::nvidia
