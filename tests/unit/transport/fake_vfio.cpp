#include "tests/unit/transport/fake_vfio.h"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace bm::test {
namespace {

// Lists as the kernel lays them out, without the flexible arrays of its header.
struct SparseList {
  vfio_info_cap_header header;
  uint32_t nr_areas, reserved;
};
struct IovaList {
  vfio_info_cap_header header;
  uint32_t nr_iovas, reserved;
};
// A region's offset in the device's file, drivers/vfio/pci (VFIO_PCI_OFFSET_SHIFT).
constexpr uint32_t kShift = 40;
const std::string kReal = "/sys/devices/pci0000:00/0000:00:01.0/";

}  // namespace

FakeVfio::FakeVfio(Options wanted) : options(std::move(wanted)) {
  add({.address = options.address, .driver = "vfio-pci", .group = options.group});
  put("/dev/vfio/vfio", "");
  put("/dev/vfio/" + (options.is_no_iommu ? "noiommu-" + options.group : options.group), "");
  put("/sys/kernel/iommu_groups/" + options.group + "/reserved_regions",
      "0x00000000fee00000 0x00000000feefffff msi\n0x0000000000001000 0x0000000000001fff direct\n");
  if (options.is_no_iommu)
    put("/sys/kernel/iommu_groups/" + options.group + "/name", "vfio-noiommu\n");
}

FakeVfio::~FakeVfio() {
  for (const auto& [index, address] : bars_)
    ::munmap(address, std::max<uint64_t>(bar_size(index), 4096));
  for (const auto& [index, fds] : eventfds_)
    for (const int fd : fds) ::close(fd);
}

int FakeVfio::open(const std::string& path, int flags) {
  if (!path.starts_with("/dev/vfio/")) return FakeMachine::open(path, flags);
  const std::lock_guard lock(mutex_);
  if (!files_.contains(path)) return -ENOENT;
  const bool is_container = path == "/dev/vfio/vfio";
  if (!is_container && driver_of(options.address) != "vfio-pci") return -ENOENT;
  // A group is opened once (vfio_group_fops_open()).
  if (!is_container)
    for (const auto& [fd, kind] : kinds_)
      if (kind == Kind::kGroup) return -EBUSY;
  const int fd = open_as(path);
  kinds_[fd] = is_container ? Kind::kContainer : Kind::kGroup;
  return fd;
}

int FakeVfio::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = kinds_.find(fd);
    if (found != kinds_.end()) {
      if (found->second == Kind::kContainer) mappings_.clear(), is_iommu_set_ = false;
      if (found->second == Kind::kGroup) is_group_attached_ = false;
      kinds_.erase(found);
    }
  }
  return FakeMachine::close(fd);
}

int FakeVfio::ioctl(int fd, unsigned long request, void* argument) {
  const std::lock_guard lock(mutex_);
  const auto found = kinds_.find(fd);
  if (found == kinds_.end()) return System::ioctl(fd, request, argument);
  switch (found->second) {
    case Kind::kContainer: return container(request, argument);
    case Kind::kGroup: return group(fd, request, argument);
    case Kind::kDevice: return device(request, argument);
  }
  return -ENOTTY;
}

int FakeVfio::container(unsigned long request, void* argument) {
  const auto value = reinterpret_cast<intptr_t>(argument);
  const int type = options.is_no_iommu ? VFIO_NOIOMMU_IOMMU : VFIO_TYPE1v2_IOMMU;
  switch (request) {
    case VFIO_GET_API_VERSION: return VFIO_API_VERSION;
    case VFIO_CHECK_EXTENSION: return value == type ? 1 : 0;
    case VFIO_SET_IOMMU:
      if (!is_group_attached_ || is_iommu_set_ || value != type) return -EINVAL;
      is_iommu_set_ = true;
      return 0;
    case VFIO_IOMMU_GET_INFO: return is_iommu_set_ ? iommu_info(argument) : -EINVAL;
    case VFIO_IOMMU_MAP_DMA: return is_iommu_set_ ? map(argument) : -EINVAL;
    case VFIO_IOMMU_UNMAP_DMA: return is_iommu_set_ ? unmap(argument) : -EINVAL;
    default: return -ENOTTY;
  }
}

int FakeVfio::iommu_info(void* argument) {
  auto* const info = static_cast<vfio_iommu_type1_info*>(argument);
  if (info->argsz < 16) return -EINVAL;
  struct {
    vfio_iommu_type1_info info;
    IovaList ranges;
    vfio_iova_range range[3];
    vfio_iommu_type1_info_dma_avail avail;
  } whole{};
  whole.info = {.argsz = sizeof whole,
                .flags = VFIO_IOMMU_INFO_PGSIZES | VFIO_IOMMU_INFO_CAPS,
                .iova_pgsizes = ~(options.page_bytes - 1),
                .cap_offset = offsetof(decltype(whole), avail)};
  whole.avail.header = {.id = VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, .version = 1, .next = 0};
  whole.avail.avail = options.mappings;
  if (options.has_ranges) {
    whole.avail.header.next = offsetof(decltype(whole), ranges);
    whole.ranges.header = {.id = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, .version = 1, .next = 0};
    whole.ranges.nr_iovas = 3;
    whole.range[0] = {.start = 0, .end = 0xfff};
    whole.range[1] = {.start = 0x2000, .end = 0xfedfffff};
    whole.range[2] = {.start = 0xfef00000, .end = (1ull << 48) - 1};
  }
  const uint32_t room = info->argsz;
  if (room < sizeof whole) whole.info.cap_offset = 0;
  std::memcpy(argument, &whole, std::min<size_t>(room, sizeof whole));
  return 0;
}

int FakeVfio::map(void* argument) {
  const auto& wanted = *static_cast<vfio_iommu_type1_dma_map*>(argument);
  const uint64_t page = options.page_bytes;
  if (wanted.size == 0 || wanted.size % page != 0 || wanted.iova % page != 0 ||
      wanted.vaddr % page != 0)
    return -EINVAL;
  for (const auto& [iova, mapping] : mappings_)
    if (wanted.iova < iova + mapping.bytes && iova < wanted.iova + wanted.size) return -EEXIST;
  const bool is_usable = wanted.iova + wanted.size <= 1ull << 48 &&
                         (wanted.iova >= 0xfef00000 || wanted.iova + wanted.size <= 0xfee00000);
  if (!is_usable) return -EINVAL;
  if (mappings_.size() >= options.mappings) return -ENOSPC;
  uint64_t locked = wanted.size;
  for (const auto& [iova, mapping] : mappings_) locked += mapping.bytes;
  if (locked > options.locked_limit) return -ENOMEM;
  mappings_[wanted.iova] = {wanted.vaddr, wanted.size,
                            (wanted.flags & VFIO_DMA_MAP_FLAG_WRITE) != 0};
  return 0;
}

int FakeVfio::unmap(void* argument) {
  auto& wanted = *static_cast<vfio_iommu_type1_dma_unmap*>(argument);
  const auto found = mappings_.find(wanted.iova);
  if (found == mappings_.end() || found->second.bytes != wanted.size) return -EINVAL;
  mappings_.erase(found);
  return 0;
}

int FakeVfio::group(int fd, unsigned long request, void* argument) {
  (void)fd;
  switch (request) {
    case VFIO_GROUP_GET_STATUS: {
      std::vector<std::string> members;
      list("/sys/kernel/iommu_groups/" + options.group + "/devices", &members);
      bool is_viable = true;
      for (const std::string& member : members) {
        const std::string driver = driver_of(member);
        is_viable &= driver.empty() || driver == "vfio-pci" || driver == "pci-stub";
      }
      static_cast<vfio_group_status*>(argument)->flags = is_viable ? VFIO_GROUP_FLAGS_VIABLE : 0;
      return 0;
    }
    case VFIO_GROUP_SET_CONTAINER: {
      const auto other = kinds_.find(*static_cast<int*>(argument));
      if (other == kinds_.end() || other->second != Kind::kContainer || is_group_attached_)
        return -EINVAL;
      is_group_attached_ = true;
      return 0;
    }
    case VFIO_GROUP_GET_DEVICE_FD: {
      if (!is_iommu_set_) return -EINVAL;
      if (static_cast<const char*>(argument) != options.address) return -ENODEV;
      const int opened = open_as("/dev/vfio-device");
      kinds_[opened] = Kind::kDevice;
      return opened;
    }
    default: return -ENOTTY;
  }
}

uint64_t FakeVfio::bar_size(uint32_t index) {
  return index == 0 ? 256 << 10 : index == 2 ? 8 << 10 : index == 5 ? 4 << 10 : 0;
}

int FakeVfio::region_info(void* argument) {
  auto* const info = static_cast<vfio_region_info*>(argument);
  if (info->argsz < sizeof *info) return -EINVAL;
  const uint32_t room = info->argsz, index = info->index;
  if (index >= VFIO_PCI_NUM_REGIONS) return -EINVAL;
  struct {
    vfio_region_info info;
    SparseList sparse;
    vfio_region_sparse_mmap_area areas[2];
  } whole{};
  whole.info = {.argsz = sizeof whole.info,
                .flags = 0,
                .index = index,
                .cap_offset = 0,
                .size = index == VFIO_PCI_CONFIG_REGION_INDEX ? 4096 : bar_size(index),
                .offset = uint64_t{index} << kShift};
  if (whole.info.size != 0)
    whole.info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
  const bool is_whole = !options.is_sparse || index == 5;
  if (bar_size(index) != 0 && (is_whole || index == 0))
    whole.info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
  if (options.is_sparse && index == 0) {
    whole.info.flags |= VFIO_REGION_INFO_FLAG_CAPS;
    whole.info.argsz = sizeof whole;
    if (room >= sizeof whole) whole.info.cap_offset = offsetof(decltype(whole), sparse);
    whole.sparse.header = {.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP, .version = 1, .next = 0};
    whole.sparse.nr_areas = 2;
    whole.areas[0] = {.offset = 0x2000, .size = 0x1000};
    whole.areas[1] = {.offset = 0x10000, .size = 0x30000};
  }
  std::memcpy(argument, &whole, std::min<size_t>(room, whole.info.argsz));
  return 0;
}

int FakeVfio::set_irqs(void* argument) {
  const auto& set = *static_cast<vfio_irq_set*>(argument);
  if ((set.flags & VFIO_IRQ_SET_ACTION_TRIGGER) == 0) return -EINVAL;
  std::vector<int>& fds = eventfds_[set.index];
  const uint32_t most = set.index == 1 ? options.msi : set.index == 2 ? options.msi_x : 1;
  if (set.count > most) return -EINVAL;
  if (set.count > options.free_vectors) return static_cast<int>(options.free_vectors);
  for (const int fd : fds) ::close(fd);
  fds.clear();
  if (set.flags & VFIO_IRQ_SET_DATA_NONE) return 0;
  for (uint32_t i = 0; i < set.count; ++i) {
    int fd = -1;
    std::memcpy(&fd, set.data + i * 4, 4);
    fds.push_back(::dup(fd));
  }
  return 0;
}

int FakeVfio::device(unsigned long request, void* argument) {
  switch (request) {
    case VFIO_DEVICE_GET_INFO: {
      auto& info = *static_cast<vfio_device_info*>(argument);
      info.flags = VFIO_DEVICE_FLAGS_PCI | (options.has_reset ? VFIO_DEVICE_FLAGS_RESET : 0);
      info.num_regions = VFIO_PCI_NUM_REGIONS;
      info.num_irqs = VFIO_PCI_NUM_IRQS;
      return 0;
    }
    case VFIO_DEVICE_GET_REGION_INFO: return region_info(argument);
    case VFIO_DEVICE_GET_IRQ_INFO: {
      auto& info = *static_cast<vfio_irq_info*>(argument);
      info.flags = VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE;
      info.count = info.index == 1 ? options.msi : info.index == 2 ? options.msi_x : 1;
      return 0;
    }
    case VFIO_DEVICE_SET_IRQS: return set_irqs(argument);
    case VFIO_DEVICE_RESET:
      if (!options.has_reset) return -EINVAL;
      ++resets;
      return 0;
    case VFIO_DEVICE_GET_PCI_HOT_RESET_INFO: {
      auto& info = *static_cast<vfio_pci_hot_reset_info*>(argument);
      const uint32_t count = options.other_group != 0 ? 2 : 1;
      info.count = count;
      if (info.argsz < sizeof info + count * sizeof(vfio_pci_dependent_device)) return -ENOSPC;
      const auto own = static_cast<uint32_t>(std::stoul(options.group));
      const vfio_pci_dependent_device all[2] = {{own, 0, 3, 0}, {options.other_group, 0, 3, 8}};
      std::memcpy(info.devices, all, count * sizeof all[0]);
      return 0;
    }
    case VFIO_DEVICE_PCI_HOT_RESET: {
      const auto& reset = *static_cast<vfio_pci_hot_reset*>(argument);
      const auto found = kinds_.find(reset.group_fds[0]);
      if (reset.count != 1 || found == kinds_.end() || found->second != Kind::kGroup)
        return -EINVAL;
      ++bus_resets;
      return 0;
    }
    default: return -ENOTTY;
  }
}

std::byte* FakeVfio::bar(uint32_t index) {
  std::byte*& address = bars_[index];
  if (address == nullptr)
    address = static_cast<std::byte*>(::mmap(nullptr, std::max<uint64_t>(bar_size(index), 4096),
                                             PROT_READ | PROT_WRITE, MAP_SHARED,
                                             bar_file(options.address, index), 0));
  return address;
}

int FakeVfio::mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                   void** out) {
  const std::lock_guard lock(mutex_);
  const auto found = kinds_.find(fd);
  if (found == kinds_.end() || found->second != Kind::kDevice)
    return FakeMachine::mmap(address, bytes, protection, flags, fd, offset, out);
  const auto index = static_cast<uint32_t>(static_cast<uint64_t>(offset) >> kShift);
  const uint64_t at = static_cast<uint64_t>(offset) & ((1ull << kShift) - 1);
  if (at + bytes > bar_size(index)) return -EINVAL;
  return System::mmap(address, bytes, protection, flags, bar_file(options.address, index),
                      static_cast<off_t>(at), out);
}

ssize_t FakeVfio::pread(int fd, void* to, size_t bytes, uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (!kinds_.contains(fd)) return FakeMachine::pread(fd, to, bytes, offset);
  const auto index = static_cast<uint32_t>(offset >> kShift);
  const uint64_t at = offset & ((1ull << kShift) - 1);
  if (index == VFIO_PCI_CONFIG_REGION_INDEX) {
    std::memcpy(to, files_[kReal + options.address + "/config"].data() + at, bytes);
    return static_cast<ssize_t>(bytes);
  }
  if (at + bytes > bar_size(index)) return -EINVAL;
  // As vfio_pci_core_do_io_rw() may: a part of what was asked for.
  const size_t part = std::min<size_t>(bytes, 64);
  std::memcpy(to, bar(index) + at, part);
  return static_cast<ssize_t>(part);
}

ssize_t FakeVfio::pwrite(int fd, const void* from, size_t bytes, uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (!kinds_.contains(fd)) return FakeMachine::pwrite(fd, from, bytes, offset);
  const auto index = static_cast<uint32_t>(offset >> kShift);
  const uint64_t at = offset & ((1ull << kShift) - 1);
  if (index == VFIO_PCI_CONFIG_REGION_INDEX) {
    std::memcpy(files_[kReal + options.address + "/config"].data() + at, from, bytes);
    return static_cast<ssize_t>(bytes);
  }
  if (at + bytes > bar_size(index)) return -EINVAL;
  const size_t part = std::min<size_t>(bytes, 64);
  std::memcpy(bar(index) + at, from, part);
  return static_cast<ssize_t>(part);
}

bool FakeVfio::device_write(uint64_t iova, uint64_t value) {
  for (const auto& [start, mapping] : mappings_)
    if (iova >= start && iova + 8 <= start + mapping.bytes && mapping.is_writable) {
      std::memcpy(reinterpret_cast<void*>(mapping.host + (iova - start)), &value, 8);
      return true;
    }
  return false;
}

bool FakeVfio::device_read(uint64_t iova, uint64_t* value) {
  for (const auto& [start, mapping] : mappings_)
    if (iova >= start && iova + 8 <= start + mapping.bytes) {
      std::memcpy(value, reinterpret_cast<void*>(mapping.host + (iova - start)), 8);
      return true;
    }
  return false;
}

bool FakeVfio::signal(uint32_t index, uint32_t vector) {
  const std::lock_guard lock(mutex_);
  const std::vector<int>& fds = eventfds_[index];
  const uint64_t one = 1;
  return vector < fds.size() && ::write(fds[vector], &one, sizeof one) == sizeof one;
}

bool FakeVfio::device_interrupt(uint32_t vector) {
  return signal(options.msi_x != 0 ? 2 : 1, vector);
}

}  // namespace bm::test
