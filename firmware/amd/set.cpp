#include "firmware/amd/set.h"

#include <algorithm>

namespace bm::firmware::amd {
namespace {

enum class Block : uint8_t { kGc, kMp0, kMp1, kSdma };

/// `prefix`_<version of `block`>`part`[_kicker].bin (amdgpu_ucode_ip_version_decode).
struct FileRow {
  Kind kind;
  Block block;
  std::string_view prefix;
  std::string_view part;
  bool has_kicker = false;
  bool is_optional = false;
};

constexpr FileRow kSosRow{Kind::kSos, Block::kMp0, "psp", "_sos", true};  // psp_init_sos_microcode
constexpr FileRow kTaRow{Kind::kTa, Block::kMp0, "psp",
                         "_ta",     true,        true};               // psp_init_ta_microcode
constexpr FileRow kSmuRow{Kind::kSmu, Block::kMp1, "smu", "", true};  // smu_v13_0_init_microcode
constexpr FileRow kSdmaRow{Kind::kSdma, Block::kSdma, "sdma", ""};    // amdgpu_sdma_init_microcode
constexpr FileRow kPfpRow{Kind::kCp, Block::kGc, "gc", "_pfp"};
constexpr FileRow kMeRow{Kind::kCp, Block::kGc, "gc", "_me"};
constexpr FileRow kMecRow{Kind::kCp, Block::kGc, "gc", "_mec"};
constexpr FileRow kRlcRow{Kind::kRlc, Block::kGc, "gc", "_rlc",
                          true};  // gfx_v1[12]_0_init_microcode
constexpr FileRow kImuRow{Kind::kImu, Block::kGc, "gc", "_imu",
                          true};  // imu_v1[12]_0_init_microcode

constexpr FileRow kCdna3[] = {kSosRow, kSmuRow, kSdmaRow, kMecRow, kRlcRow, kTaRow};
constexpr FileRow kRdna3[] = {kSosRow, kSmuRow, kSdmaRow, kMecRow, kImuRow, kRlcRow, kTaRow};
// Whether gfx12's MEC starts without PFP and ME is not known; gfx_v12_0_config_gfx_rs64 starts all
// three.
constexpr FileRow kRdna4[] = {kSosRow, kSmuRow, kSdmaRow, kPfpRow, kMeRow,
                              kMecRow, kImuRow, kRlcRow,  kTaRow};

struct ChipRow {
  IpVersion gc;
  std::string_view arch;
  std::span<const FileRow> files;
};
// GC versions: gfx_v11_0.c, gfx_v12_0.c, gfx_v9_4_3.c; names of LLVM's targets: kfd_device.c,
// kgd2kfd_probe (gfx_target_version).
constexpr ChipRow kChips[] = {{{9, 4, 3}, "gfx942", kCdna3},   {{11, 0, 0}, "gfx1100", kRdna3},
                              {{11, 0, 2}, "gfx1102", kRdna3}, {{11, 0, 3}, "gfx1101", kRdna3},
                              {{12, 0, 0}, "gfx1200", kRdna4}, {{12, 0, 1}, "gfx1201", kRdna4}};

struct Board {
  uint16_t device;
  uint8_t revision;
};
constexpr Board kKickers[] = {{0x744b, 0x00}, {0x7551, 0xc8}};

const IpVersion& version_of(const ChipId& chip, Block block) {
  switch (block) {
    case Block::kGc: return chip.gc;
    case Block::kMp0: return chip.mp0;
    case Block::kMp1: return chip.mp1;
    case Block::kSdma: return chip.sdma;
  }
  return chip.gc;
}

std::string file_name(const FileRow& row, const ChipId& chip) {
  const IpVersion& version = version_of(chip, row.block);
  const bool is_rlc = row.kind == Kind::kRlc;
  // gfx_v11_0_init_microcode: one board has its own, before any other rule.
  if (is_rlc && chip.gc == IpVersion{11, 0, 0} && chip.pci_revision == 0xce)
    return "amdgpu/gc_11_0_0_rlc_1.bin";
  const bool has_suffix = row.has_kicker && is_kicker(chip.pci_device, chip.pci_revision);
  return fmt::format("amdgpu/{}_{}_{}_{}{}{}.bin", row.prefix, version.major, version.minor,
                     version.revision, row.part, has_suffix ? "_kicker" : "");
}

}  // namespace

bool is_kicker(uint16_t pci_device, uint8_t pci_revision) {
  return std::ranges::any_of(kKickers, [&](const Board& board) {
    return board.device == pci_device && board.revision == pci_revision;
  });
}

Result<ChipId> chip_id(const Discovery& discovery, uint16_t pci_device, uint8_t pci_revision) {
  ChipId chip{.gc = {},
              .mp0 = {},
              .mp1 = {},
              .sdma = {},
              .pci_device = pci_device,
              .pci_revision = pci_revision};
  struct Wanted {
    uint16_t hw_id;
    std::string_view name;
    IpVersion ChipId::* version;
  };
  constexpr Wanted kWanted[] = {{kGcHwId, "GC", &ChipId::gc},
                                {kMp0HwId, "MP0", &ChipId::mp0},
                                {kMp1HwId, "MP1", &ChipId::mp1},
                                {kSdma0HwId, "SDMA0", &ChipId::sdma}};
  for (const Wanted& wanted : kWanted) {
    const IpBlock* const ip = discovery.find(wanted.hw_id);
    if (ip == nullptr)
      return fail(Code::kCorrupt, "the IP discovery table has no {} (hardware id {})", wanted.name,
                  wanted.hw_id);
    chip.*wanted.version = {ip->major, ip->minor, ip->revision};
  }
  return chip;
}

Result<FirmwareSet> firmware_set(const ChipId& chip) {
  const auto row = std::ranges::find(kChips, chip.gc, &ChipRow::gc);
  if (row == std::end(kChips))
    return fail(Code::kUnsupported,
                "no list of firmware for graphics block {}.{}.{}; known: 9.4.3, 11.0.0, 11.0.2, "
                "11.0.3, 12.0.0, 12.0.1",
                chip.gc.major, chip.gc.minor, chip.gc.revision);
  FirmwareSet set{.arch = row->arch, .files = {}};
  for (const FileRow& file : row->files)
    set.files.push_back({.name = file_name(file, chip),
                         .kind = file.kind,
                         .version = version_of(chip, file.block),
                         .is_optional = file.is_optional});
  return set;
}

Result<Ucode> parse(const SetFile& wanted, const Image& file) {
  Ucode ucode = BM_TRY(parse(wanted.kind, file));
  const CommonFirmwareHeader& header = ucode.header;
  if (header.ip_version_major != wanted.version.major ||
      header.ip_version_minor != wanted.version.minor)
    return fail(Code::kCorrupt,
                "{}: its header (at 0xc) is that of a file for block version {}.{}, this chip's is "
                "{}.{}.{}: put the package's own file of this name there",
                file.name(), header.ip_version_major, header.ip_version_minor, wanted.version.major,
                wanted.version.minor, wanted.version.revision);
  return ucode;
}

std::vector<std::string> check_set(const FirmwareSet& set, const Search& search) {
  std::vector<std::string_view> names;
  for (const SetFile& file : set.files)
    if (!file.is_optional) names.push_back(file.name);
  std::vector<std::string> lines = check(names, search);
  for (const SetFile& entry : set.files) {
    if (entry.is_optional) continue;
    const Result<File> file = load(entry.name, search);
    if (!file) continue;  // said above
    if (const auto ucode = parse(entry, Image(file->path, file->bytes)); !ucode)
      lines.push_back(ucode.error().message);
  }
  return lines;
}

}  // namespace bm::firmware::amd
