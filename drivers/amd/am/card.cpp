#include "drivers/amd/am/card.h"

#include <algorithm>
#include <utility>

#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::amd::am {
namespace {

using firmware::amd::Kind;
using firmware::amd::PartId;
using firmware::amd::Ucode;

// Memory size in MiB, at a place that does not depend on any base: mmRCC_CONFIG_MEMSIZE of
// amdgpu_discovery.c.
constexpr uint64_t kMemorySize = 0xde3;

struct BlockId {
  Block block;
  uint16_t hw_id;
};
constexpr BlockId kBlockIds[] = {
    {Block::kGc, firmware::amd::kGcHwId},         {Block::kMmhub, firmware::amd::kMmhubHwId},
    {Block::kOsssys, firmware::amd::kOsssysHwId}, {Block::kBus, firmware::amd::kNbifHwId},
    {Block::kPsp, firmware::amd::kMp0HwId},       {Block::kSmu, firmware::amd::kMp1HwId},
    {Block::kHdp, firmware::amd::kHdpHwId},
};
// An instance for each chiplet or die; of the others only the first is used.
constexpr Block kMany[] = {Block::kGc, Block::kMmhub, Block::kSdma};

// SDMA0 to SDMA3 in soc15_hw_ip.h; amdgpu_discovery_reg_base_init() counts them as instances.
constexpr uint16_t kSdmaHwIds[] = {42, 43, 68, 69};

/// In the order of the instances' numbers. Bits above 30 of a base say on which die it is, and the
/// first die's view of everything is used: amdgpu_discovery_reg_base_init().
std::vector<std::vector<uint64_t>> bases_of(const firmware::amd::Discovery& discovery,
                                            uint16_t hw_id, bool is_many) {
  constexpr uint64_t kBase = 0x3fff'ffff;
  std::vector<const firmware::amd::IpBlock*> found;
  for (const firmware::amd::IpBlock& ip : discovery.ips)
    if (ip.hw_id == hw_id && !discovery.is_harvested(hw_id, ip.instance_number))
      found.push_back(&ip);
  std::ranges::stable_sort(found, {}, &firmware::amd::IpBlock::instance_number);
  if (!is_many && found.size() > 1) found.resize(1);
  std::vector<std::vector<uint64_t>> instances;
  for (const firmware::amd::IpBlock* ip : found) {
    instances.push_back(ip->base_address);
    for (uint64_t& base : instances.back()) base &= kBase;
  }
  return instances;
}

Status add_block(Bus& bus, const firmware::amd::Discovery& discovery, const BlockId& id,
                 bool is_many) {
  const firmware::amd::IpBlock* ip = discovery.find(id.hw_id);
  auto instances = bases_of(discovery, id.hw_id, is_many);
  if (ip == nullptr || instances.empty())
    return fail(Code::kUnsupported, "IP discovery names no block {} (hardware id {})",
                block_name(id.block), id.hw_id);
  const BlockTable table = BM_TRY(block_table(id.block, ip->major, ip->minor, ip->revision));
  bus.add_block(id.block, table, std::move(instances));
  return {};
}

Status add_blocks(Bus& bus, const firmware::amd::Discovery& discovery,
                  const Generation& generation) {
  // Where copy engines are instances of their own block, chiplets are of theirs.
  const bool is_many = generation.copies.block == Block::kSdma;
  for (const BlockId& id : kBlockIds)
    BM_TRY(add_block(bus, discovery, id,
                     is_many && std::ranges::find(kMany, id.block) != std::end(kMany)));
  if (is_many) BM_TRY(add_block(bus, discovery, {Block::kSdma, firmware::amd::kSdma0HwId}, true));
  return {};
}

/// Members of a hive are reset together and have each other's memory in front of their own: refused
/// before anything is written or reset. Source: gfxhub_v1_2_get_xgmi_info().
Status refuse_links(Bus& bus) {
  if (!bus.has(Reg::MC_VM_XGMI_LFB_CNTL, Block::kMmhub)) return {};
  const uint32_t others = bus.read_field(Block::kMmhub, Field::MC_VM_XGMI_LFB_CNTL_pf_max_region);
  BM_TRY(bus.status());
  if (others == 0) return {};
  return fail(Code::kUnsupported,
              "the card is linked to {} others (XGMI), which are reset together and are not booted "
              "without a kernel driver; use DEV=AMD:KFD",
              others);
}

bool is_named(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

uint32_t count_sdma(const firmware::amd::Discovery& discovery) {
  uint32_t count = 0;
  for (const firmware::amd::IpBlock& ip : discovery.ips)
    if (std::ranges::find(kSdmaHwIds, ip.hw_id) != std::end(kSdmaHwIds) &&
        !discovery.is_harvested(ip.hw_id, ip.instance_number))
      ++count;
  return std::max(count, 1u);
}

}  // namespace

uint32_t Card::engines() const { return discovery.gc ? std::max(discovery.gc->gc_num_se, 1u) : 1u; }

uint32_t Card::compute_units() const {
  if (!discovery.gc) return 1;
  const auto units = discovery.gc->cus_per_array() * discovery.gc->arrays_per_engine() * engines();
  return static_cast<uint32_t>(std::clamp<uint64_t>(units, 1, 4096));
}

Result<CardTable> read_discovery(Bus& bus) {
  CardTable card;
  const uint32_t mebibytes = bus.read_dword(kMemorySize);
  BM_TRY(bus.status());
  if (mebibytes == 0 || mebibytes == UINT32_MAX)
    return fail(Code::kDeviceLost,
                "the card says it has {:#x} MiB of memory: it is in reset, powered down or was not "
                "started by the machine's firmware",
                mebibytes);
  card.video_bytes = uint64_t{mebibytes} << 20;
  if (card.video_bytes <= firmware::amd::kDiscoveryTmrOffset)
    return fail(Code::kCorrupt, "{} bytes of video memory", card.video_bytes);
  std::vector<std::byte> bytes(firmware::amd::kDiscoveryTmrSize);
  bus.read_memory(card.video_bytes - firmware::amd::kDiscoveryTmrOffset, bytes);
  BM_TRY(bus.status());
  card.discovery =
      BM_TRY(firmware::amd::parse_discovery(firmware::Image("the IP discovery table", bytes)));
  // Signatures, versions and every bound still hold. A sum that is there and wrong is an error.
  if (!card.discovery.without_sum.empty())
    log("amd", LogLevel::kWarning,
        "the IP discovery table has no checksum for {}: taken as it is; AMD's own tables have "
        "them, "
        "so this is a model of a card, or its firmware is damaged",
        fmt::join(card.discovery.without_sum, ", "));
  return card;
}

Result<Card> discover(Bus& bus, std::string_view experimental) {
  CardTable table = BM_TRY(read_discovery(bus));
  Card card;
  card.video_bytes = table.video_bytes;
  card.discovery = std::move(table.discovery);
  const PciIdentity& identity = bus.pci().identity();
  card.id = BM_TRY(firmware::amd::chip_id(card.discovery, identity.device, identity.revision));
  card.firmware = BM_TRY(firmware::amd::firmware_set(card.id));
  card.chip = find_chip(card.firmware.arch);
  card.generation = find_generation(card.id.gc.major, card.id.gc.minor);
  if (card.chip == nullptr || card.generation == nullptr)
    return fail(
        Code::kUnsupported,
        "{} (PCI device {:#06x}, GC {}.{}.{}) is not booted without a kernel driver: chips are "
        "gfx1100, gfx1101, gfx1102, gfx1200, gfx1201 and, by way of trial, gfx942; use "
        "DEV=AMD:KFD",
        card.firmware.arch, identity.device, card.id.gc.major, card.id.gc.minor,
        card.id.gc.revision);
  if (card.generation->is_experimental && !is_named(experimental, card.chip->name))
    return fail(Code::kUnsupported,
                "{} (PCI device {:#06x}) is booted without a kernel driver only by way of trial: "
                "no card and no model but our own has judged it; set BM_AMD_EXPERIMENTAL={} to do "
                "so, or use DEV=AMD:KFD",
                card.firmware.arch, identity.device, card.firmware.arch);
  BM_TRY(add_blocks(bus, card.discovery, *card.generation));
  BM_TRY(refuse_links(bus));
  card.xccs = bus.instances(Block::kGc);
  card.xcc_mask = 0;
  for (const firmware::amd::IpBlock& ip : card.discovery.ips)
    if (ip.hw_id == firmware::amd::kGcHwId && ip.instance_number < 32 &&
        !card.discovery.is_harvested(ip.hw_id, ip.instance_number))
      card.xcc_mask |= 1u << ip.instance_number;
  card.dies = bus.instances(Block::kMmhub);
  card.sdma_engines = card.generation->copies.block == Block::kSdma ? bus.instances(Block::kSdma)
                                                                    : count_sdma(card.discovery);
  return card;
}

Result<Firmware> Firmware::load(const firmware::amd::FirmwareSet& set,
                                const firmware::Search& search) {
  Firmware result;
  std::vector<const firmware::amd::SetFile*> taken;
  for (const firmware::amd::SetFile& wanted : set.files) {
    if (wanted.is_optional) continue;
    result.files_.push_back(BM_TRY(firmware::load(wanted.name, search)));
    taken.push_back(&wanted);
  }
  size_t unknown = 0;
  for (const firmware::File& file : result.files_) unknown += file.row == nullptr;
  if (unknown != 0)
    log("amd", LogLevel::kWarning,
        "{} of {} firmware files are versions that this release does not know ({} is one)", unknown,
        result.files_.size(),
        std::ranges::find(result.files_, nullptr, &firmware::File::row)->path);
  for (size_t i = 0; i < taken.size(); ++i) {
    auto ucode =
        firmware::amd::parse(*taken[i], firmware::Image(taken[i]->name, result.files_[i].bytes));
    if (!ucode) {
      // Of several folders, which one.
      std::string& text = ucode.error().message;
      if (text.starts_with(taken[i]->name))
        text.replace(0, taken[i]->name.size(), result.files_[i].path);
      return tl::unexpected(std::move(ucode.error()));
    }
    result.ucodes_.push_back(std::move(*ucode));
  }
  return result;
}

const Ucode* Firmware::find(Kind kind, std::string_view suffix) const {
  for (const Ucode& ucode : ucodes_)
    if (ucode.kind == kind && ucode.name.ends_with(suffix)) return &ucode;
  return nullptr;
}

namespace {

// enum psp_gfx_fw_type of psp_gfx_if.h.
enum FwType : uint32_t {
  kTypeMecF32 = 4,
  kTypeMecF32JumpTable = 5,
  kTypeRlcV = 7,
  kTypeRlcG = 8,
  kTypeSdma0 = 9,
  kTypeSdma1 = 10,
  kTypeSmu = 18,
  kTypeRestoreGpm = 20,
  kTypeRestoreSrm = 21,
  kTypeRestoreCntl = 22,
  kTypeRlcP = 25,
  kTypeRlcIram = 26,
  kTypeGlobalTapDelays = 27,
  kTypeSe0TapDelays = 28,
  kTypeSe1TapDelays = 29,
  kTypeRlcDramBoot = 48,
  kTypeSdma2 = 52,
  kTypeSdma3 = 53,
  kTypeSe2TapDelays = 65,
  kTypeSe3TapDelays = 66,
  kTypeRegList = 67,
  kTypeImuI = 68,
  kTypeImuD = 69,
  kTypeSdmaTh0 = 71,
  kTypeSdmaTh1 = 72,
  kTypePfp = 87,
  kTypeMe = 88,
  kTypeMec = 89,
  kTypePfpStack = 90,
  kTypeMeStack = 92,
  kTypeMecStack = 94,
  kTypeP2sTable = 129,
};

Result<const Ucode*> need(const Firmware& firmware, Kind kind, std::string_view suffix = {}) {
  const Ucode* ucode = firmware.find(kind, suffix);
  if (ucode == nullptr)
    return fail(Code::kUnsupported, "the card's set of files has none of kind {}{}",
                firmware::amd::kind_name(kind), suffix);
  return ucode;
}

struct PartType {
  PartId part;
  uint32_t type;
};

void add_present(const Ucode& ucode, std::span<const PartType> rows, std::vector<LoadItem>* items) {
  for (const PartType& row : rows)
    if (const auto* part = ucode.find(row.part); part != nullptr && !part->bytes.empty())
      items->push_back({row.type, firmware::amd::part_name(row.part), part->bytes});
}

}  // namespace

Result<LoadItem> smu_item(const Card& card, const Firmware& firmware) {
  if (card.generation->smu.is_always_there) return LoadItem{};
  const Ucode* smu = BM_TRY(need(firmware, Kind::kSmu));
  return LoadItem{kTypeSmu, "SMU", BM_TRY(smu->need(PartId::kUcode))};
}

namespace {

constexpr PartType kRlcParts[] = {
    {PartId::kGlobalTapDelays, kTypeGlobalTapDelays},
    {PartId::kSe0TapDelays, kTypeSe0TapDelays},
    {PartId::kSe1TapDelays, kTypeSe1TapDelays},
    {PartId::kSe2TapDelays, kTypeSe2TapDelays},
    {PartId::kSe3TapDelays, kTypeSe3TapDelays},
    {PartId::kSaveRestoreListCntl, kTypeRestoreCntl},
    {PartId::kSaveRestoreListGpm, kTypeRestoreGpm},
    {PartId::kSaveRestoreListSrm, kTypeRestoreSrm},
    {PartId::kRlcIram, kTypeRlcIram},
    {PartId::kRlcDram, kTypeRlcDramBoot},
    {PartId::kRlcp, kTypeRlcP},
    {PartId::kRlcv, kTypeRlcV},
};

Status add_rlc(const Firmware& firmware, std::vector<LoadItem>* items) {
  const Ucode* rlc = BM_TRY(need(firmware, Kind::kRlc));
  add_present(*rlc, kRlcParts, items);
  items->push_back({kTypeRlcG, "RLC G", BM_TRY(rlc->need(PartId::kUcode))});
  return {};
}

/// Without autoload: each processor is started by what the PSP puts there. One image serves the
/// four copy engines of a die, and dies alike (amdgpu_sdma_init_microcode()).
Result<std::vector<LoadItem>> load_items_f32(const Firmware& firmware, bool is_aux) {
  constexpr uint32_t kBoardTables = 0x50325358;  // P2S_TABLE_ID_X, smu_v13_0_6_init_microcode()
  std::vector<LoadItem> items;
  if (const Ucode* smu = firmware.find(Kind::kSmu); smu != nullptr)
    if (const auto* table = smu->find(PartId::kPptable, false, kBoardTables); table != nullptr)
      items.push_back({kTypeP2sTable, "P2S table", table->bytes});
  const Ucode* sdma = BM_TRY(need(firmware, Kind::kSdma));
  for (const uint32_t type : {kTypeSdma0, kTypeSdma1, kTypeSdma2, kTypeSdma3})
    items.push_back({type, "SDMA", BM_TRY(sdma->need(PartId::kUcode))});
  const Ucode* mec = BM_TRY(need(firmware, Kind::kCp, "_mec.bin"));
  items.push_back({kTypeMecF32, "MEC", BM_TRY(firmware::amd::code_before_jump_table(*mec))});
  items.push_back({kTypeMecF32JumpTable, "MEC jump table", BM_TRY(mec->need(PartId::kJumpTable))});
  BM_TRY(add_rlc(firmware, &items));
  const Ucode* sos = BM_TRY(need(firmware, Kind::kSos));
  if (const auto* list = sos->find(PartId::kRl, is_aux); list != nullptr && !list->bytes.empty())
    items.push_back({kTypeRegList, "register list", list->bytes});
  return items;
}

}  // namespace

Result<std::vector<LoadItem>> load_items(const Card& card, const Firmware& firmware, bool is_aux) {
  if (card.generation->processor == ProcessorKind::kF32) return load_items_f32(firmware, is_aux);
  std::vector<LoadItem> items;
  const Ucode* sdma = BM_TRY(need(firmware, Kind::kSdma));
  static constexpr PartType kSdmaParts[] = {{PartId::kCtxUcode, kTypeSdmaTh0},
                                            {PartId::kCtlUcode, kTypeSdmaTh1}};
  if (sdma->header.header_version_major >= 3)
    items.push_back({kTypeSdmaTh0, "SDMA", BM_TRY(sdma->need(PartId::kUcode))});
  else
    add_present(*sdma, kSdmaParts, &items);

  struct Processor {
    std::string_view suffix, name, stack_name;
    uint32_t code, stack, stacks;
  };
  // Pipes whose stacks the kernel loads; what a chip's set of files lacks it runs without.
  const Processor processors[] = {
      {"_pfp.bin", "RS64 PFP", "RS64 PFP stack", kTypePfp, kTypePfpStack,
       card.generation->front_pipes},
      {"_me.bin", "RS64 ME", "RS64 ME stack", kTypeMe, kTypeMeStack, card.generation->front_pipes},
      {"_mec.bin", "RS64 MEC", "RS64 MEC stack", kTypeMec, kTypeMecStack,
       card.generation->compute_pipes},
  };
  BM_TRY(need(firmware, Kind::kCp, "_mec.bin"));
  for (const Processor& row : processors)
    if (const Ucode* code = firmware.find(Kind::kCp, row.suffix); code != nullptr)
      items.push_back({row.code, row.name, BM_TRY(code->need(PartId::kUcode))});
  for (const Processor& row : processors)
    if (const Ucode* code = firmware.find(Kind::kCp, row.suffix); code != nullptr)
      for (uint32_t pipe = 0; pipe < row.stacks; ++pipe)
        items.push_back({row.stack + pipe, row.stack_name, BM_TRY(code->need(PartId::kData))});

  const Ucode* imu = BM_TRY(need(firmware, Kind::kImu));
  items.push_back({kTypeImuI, "IMU IRAM", BM_TRY(imu->need(PartId::kImuIram))});
  items.push_back({kTypeImuD, "IMU DRAM", BM_TRY(imu->need(PartId::kImuDram))});

  BM_TRY(add_rlc(firmware, &items));
  return items;
}

}  // namespace bm::amd::am
