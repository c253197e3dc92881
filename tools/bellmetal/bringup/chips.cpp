#include "tools/bellmetal/bringup/chips.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "firmware/nvidia/set.h"
#include "tools/bellmetal/bringup/pattern.h"

namespace bm::cli {
namespace {

using amd::am::Block;
using firmware::amd::IpVersion;

/// Versions that boards of a chip have in their discovery tables: those that
/// amdgpu_discovery_set_ip_blocks() and the block files of Linux 6.12 serve together.
struct ChipVersions {
  std::string_view name;
  IpVersion gc, mmhub, osssys, bus, psp, smu, hdp, sdma;
  uint16_t device;
};
constexpr ChipVersions kChips[] = {
    {"gfx1100",
     {11, 0, 0},
     {3, 0, 0},
     {6, 0, 0},
     {4, 3, 0},
     {13, 0, 0},
     {13, 0, 0},
     {6, 0, 0},
     {6, 0, 0},
     0x744c},
    {"gfx1101",
     {11, 0, 3},
     {3, 0, 3},
     {6, 0, 0},
     {4, 3, 0},
     {13, 0, 10},
     {13, 0, 10},
     {6, 0, 0},
     {6, 0, 3},
     0x747e},
    {"gfx1102",
     {11, 0, 2},
     {3, 0, 2},
     {6, 0, 2},
     {4, 3, 1},
     {13, 0, 7},
     {13, 0, 7},
     {6, 0, 1},
     {6, 0, 2},
     0x7480},
    {"gfx1200",
     {12, 0, 0},
     {4, 1, 0},
     {7, 0, 0},
     {6, 3, 1},
     {14, 0, 2},
     {14, 0, 2},
     {7, 0, 0},
     {7, 0, 0},
     0x7590},
    {"gfx1201",
     {12, 0, 1},
     {4, 1, 0},
     {7, 0, 0},
     {6, 3, 1},
     {14, 0, 3},
     {14, 0, 3},
     {7, 0, 0},
     {7, 0, 1},
     0x7550},
    {"gfx942",
     {9, 4, 3},
     {1, 8, 0},
     {4, 4, 2},
     {7, 9, 0},
     {13, 0, 6},
     {13, 0, 6},
     {4, 4, 2},
     {4, 4, 2},
     0x74a1},
};

Result<const ChipVersions*> find_chip(std::string_view chip) {
  const auto* const row = std::ranges::find_if(
      kChips, [chip](const ChipVersions& one) { return matches(one.name, chip); });
  if (row != std::end(kChips)) return row;
  std::vector<std::string_view> names;
  for (const ChipVersions& known : kChips) names.push_back(known.name);
  for (const std::string_view known : firmware::nvidia::known_chips()) names.push_back(known);
  return fail(Code::kInvalidArgument, "no chip '{}' is booted here; there are {}", chip,
              fmt::join(names, ", "));
}

struct HardwareName {
  uint16_t id;
  std::string_view name;
};
// soc15_hw_ip.h, those that cards of ours have.
constexpr HardwareName kHardware[] = {
    {1, "MP1"},         {2, "MP2"},         {3, "THM"},          {4, "SMUIO"},
    {5, "FUSE"},        {6, "CLKA"},        {10, "PWR"},         {11, "GC"},
    {12, "VCN"},        {13, "AUDIO_AZ"},   {14, "ACP"},         {15, "DCI"},
    {16, "DCO"},        {17, "XDMA"},       {18, "DCEAZ"},       {19, "SDPMUX"},
    {20, "NTB"},        {24, "IOHC"},       {28, "L2IMU"},       {32, "VCE"},
    {34, "MMHUB"},      {35, "ATHUB"},      {36, "DBGU_NBIO"},   {37, "DFX"},
    {38, "DBGU0"},      {39, "DBGU1"},      {40, "OSSSYS"},      {41, "HDP"},
    {42, "SDMA0"},      {43, "SDMA1"},      {44, "ISP"},         {45, "DBGU_IO"},
    {46, "DF"},         {47, "CLKB"},       {48, "FCH"},         {49, "DFX_DAP"},
    {50, "L1IMU_PCIE"}, {51, "L1IMU_NBIF"}, {52, "L1IMU_IOAGR"}, {66, "WAFLC"},
    {68, "SDMA2"},      {69, "SDMA3"},      {70, "PCIE"},        {80, "PCS"},
    {89, "DDCL"},       {90, "SST"},        {100, "IOAGR"},      {108, "NBIF"},
    {124, "IOAPIC"},    {128, "SYSTEMHUB"}, {144, "NTBCCP"},     {150, "UMC"},
    {168, "SATA"},      {170, "USB"},       {176, "CCXSEC"},     {200, "XGMI"},
    {216, "XGBE"},      {255, "MP0"},       {271, "DMU"},        {272, "DIO"},
    {274, "DAZ"},
};

}  // namespace

std::string hardware_name(uint16_t hw_id) {
  const auto* const row = std::ranges::find(kHardware, hw_id, &HardwareName::id);
  return row == std::end(kHardware) ? fmt::format("{}", hw_id) : std::string(row->name);
}

std::string_view chip_of_device(uint16_t device) {
  constexpr uint16_t kSecondNavi48 = 0x7551;  // as 0x7550: GC 12.0.1
  const auto* const row = std::ranges::find(
      kChips, device == kSecondNavi48 ? uint16_t{0x7550} : device, &ChipVersions::device);
  return row == std::end(kChips) ? std::string_view() : row->name;
}

Result<firmware::amd::ChipId> known_chip_id(std::string_view chip) {
  const ChipVersions& row = *BM_TRY(find_chip(chip));
  return firmware::amd::ChipId{
      .gc = row.gc, .mp0 = row.psp, .mp1 = row.smu, .sdma = row.sdma, .pci_device = row.device};
}

Result<std::vector<KnownBlock>> known_blocks(std::string_view chip) {
  const ChipVersions& row = *BM_TRY(find_chip(chip));
  const std::pair<Block, IpVersion> blocks[] = {
      {Block::kGc, row.gc},   {Block::kMmhub, row.mmhub}, {Block::kOsssys, row.osssys},
      {Block::kBus, row.bus}, {Block::kPsp, row.psp},     {Block::kSmu, row.smu},
      {Block::kHdp, row.hdp}};
  std::vector<KnownBlock> result;
  for (const auto& [block, version] : blocks)
    result.push_back({block, BM_TRY(amd::am::block_table(block, version.major, version.minor,
                                                         version.revision))});
  return result;
}

}  // namespace bm::cli
