#include "drivers/nv/gsp/boot_arguments.h"

#include <algorithm>
#include <cstring>

#include "drivers/nv/abi/gsp.h"
#include "drivers/transport/pci_config.h"

namespace bm::nv::gsp {
namespace {

using namespace abi::gsp;

constexpr uint64_t kLogBytes = 0x10000;
constexpr std::string_view kLogs[] = {"LOGINIT", "LOGINTR", "LOGRM"};
// libos_init_args.h: LIBOS_MEMORY_REGION_CONTIGUOUS, LIBOS_MEMORY_REGION_LOC_SYSMEM.
constexpr uint32_t kContiguous = 1, kSystemMemory = 1;
// gspifpub.h: GSP_DMA_TARGET_COHERENT_SYSTEM, GSP_DMA_TARGET_NONCOHERENT_SYSTEM.
constexpr uint32_t kCoherent = 1, kNonCoherent = 2;
// REGISTRY_TABLE_ENTRY_TYPE_DWORD.
constexpr uint32_t kDword = 1;
constexpr uint32_t kMirrorBytes = 0x1000;
// As nova-core: the last page below 2^47 is not a user's.
constexpr uint64_t kMaxUserVa = (uint64_t{1} << 47) - 4096;

constexpr RegistryValue kRegistry[] = {
    {"RMSecBusResetEnable", 1}, {"RMForcePcieConfigSave", 1}, {"RMDevidCheckIgnore", 1}};

Gsp<LibosRegion> region(std::string_view name, const BootBlock& block) {
  Gsp<LibosRegion> made;
  made.set(LibosRegion::id8, region_id(name))
      .set(LibosRegion::pa, block.address())
      .set(LibosRegion::size, block.bytes())
      .set(LibosRegion::kind, kContiguous)
      .set(LibosRegion::loc, kSystemMemory);
  return made;
}

/// Where a BAR is, as the card's own configuration space has it: a transport may hide it.
uint64_t bar_address(PciFunction& pci, uint32_t index) {
  const PciBar& bar = pci.bars()[index];
  if (bar.address != 0 || bar.size == 0) return bar.address;
  constexpr uint32_t kFirstBar = 0x10, kFlags = 0xf;
  const uint64_t low = pci.read_config(kFirstBar + index * 4, 4).value_or(0) & ~kFlags;
  if (!bar.is_64_bit) return low;
  return low | uint64_t{pci.read_config(kFirstBar + index * 4 + 4, 4).value_or(0)} << 32;
}

}  // namespace

uint64_t region_id(std::string_view name) {
  uint64_t id = 0;
  for (const char letter : name.substr(0, sizeof id))
    id = id << 8 | static_cast<unsigned char>(letter);
  return id;
}

Result<BootArguments> make_arguments(BootMemory& memory, const MessageQueue& queue) {
  BootArguments made;
  made.regions = BM_TRY(memory.allocate(kGspPage, true, "libos arguments"));
  uint64_t at = 0;
  const auto add = [&](std::string_view name, const BootBlock& block) {
    const Gsp<LibosRegion> one = region(name, block);
    made.regions.view().copy_in(at, one.bytes());
    at += LibosRegion::kBytes;
  };
  for (size_t i = 0; i < std::size(kLogs); ++i) {
    made.logs[i] = BM_TRY(memory.allocate(kLogBytes, true, kLogs[i]));
    // A log begins with its put pointer; behind it, the pages it lies in.
    uint64_t slot = sizeof(uint64_t);
    for (const uint64_t page : made.logs[i].pages()) {
      made.logs[i].view().store<uint64_t>(slot, page);
      slot += sizeof(uint64_t);
    }
    add(kLogs[i], made.logs[i]);
  }
  Gsp<RmArguments> arguments;
  arguments.set(RmArguments::messageQueueInitArguments_sharedMemPhysAddr, queue.address())
      .set(RmArguments::messageQueueInitArguments_pageTableEntryCount, queue.page_table_entries())
      .set(RmArguments::messageQueueInitArguments_cmdQueueOffset, queue.command_offset())
      .set(RmArguments::messageQueueInitArguments_statQueueOffset, queue.status_offset())
      .set(RmArguments::bDmemStack, 1);
  made.resource_manager = BM_TRY(memory.place(arguments.bytes(), "RM arguments"));
  add("RMARGS", made.resource_manager);
  made.regions.view().publish();
  return made;
}

std::vector<std::byte> encode_fmc_arguments(uint64_t meta, uint64_t meta_bytes, uint64_t regions) {
  Gsp<FmcBootParams> made;
  made.set(FmcBootParams::bootGspRmParams_target, kCoherent)
      .set(FmcBootParams::bootGspRmParams_gspRmDescSize, meta_bytes)
      .set(FmcBootParams::bootGspRmParams_gspRmDescOffset, meta)
      .set(FmcBootParams::bootGspRmParams_bIsGspRmBoot, 1)
      .set(FmcBootParams::gspRmParams_target, kNonCoherent)
      .set(FmcBootParams::gspRmParams_bootArgsOffset, regions);
  return {made.bytes().begin(), made.bytes().end()};
}

std::vector<std::byte> encode_system_info(const Generation& generation, PciFunction& pci) {
  const PciIdentity& id = pci.identity();
  const PciAddress& place = id.address;
  Gsp<SystemInfo> info;
  info.set(SystemInfo::gpuPhysAddr, bar_address(pci, 0))
      .set(SystemInfo::gpuPhysFbAddr, bar_address(pci, 1))
      .set(SystemInfo::gpuPhysInstAddr, bar_address(pci, 3))
      .set(SystemInfo::nvDomainBusDeviceFunc,
           uint64_t{place.domain} << 16 | uint64_t{place.bus} << 8 |
               static_cast<uint64_t>(place.device << 3 | place.function))
      .set(SystemInfo::maxUserVa, kMaxUserVa)
      .set(SystemInfo::pciConfigMirrorBase, generation.config_mirror)
      .set(SystemInfo::pciConfigMirrorSize, kMirrorBytes)
      .set(SystemInfo::PCIDeviceID, uint32_t{id.device} << 16 | id.vendor)
      .set(SystemInfo::PCISubDeviceID, uint32_t{id.subsystem_device} << 16 | id.subsystem_vendor)
      .set(SystemInfo::PCIRevisionID, id.revision)
      .set(SystemInfo::hostPageSize, kGspPage);
  return {info.bytes().begin(), info.bytes().end()};
}

std::span<const RegistryValue> registry_values() { return kRegistry; }

std::vector<std::byte> encode_registry(std::span<const RegistryValue> values) {
  const size_t names_at = RegistryTable::kBytes + values.size() * RegistryEntry::kBytes;
  std::vector<std::byte> bytes(names_at);
  size_t at = RegistryTable::kBytes;
  for (const RegistryValue& value : values) {
    Gsp<RegistryEntry> entry;
    entry.set(RegistryEntry::nameOffset, bytes.size())
        .set(RegistryEntry::type, kDword)
        .set(RegistryEntry::data, value.value)
        .set(RegistryEntry::length, sizeof(uint32_t));
    std::ranges::copy(entry.bytes(), bytes.begin() + static_cast<ptrdiff_t>(at));
    at += RegistryEntry::kBytes;
    const auto name = std::as_bytes(std::span(value.name));
    bytes.insert(bytes.end(), name.begin(), name.end());
    bytes.push_back(std::byte{0});
  }
  Gsp<RegistryTable> table;
  table.set(RegistryTable::size, bytes.size()).set(RegistryTable::numEntries, values.size());
  std::ranges::copy(table.bytes(), bytes.begin());
  return bytes;
}

}  // namespace bm::nv::gsp
