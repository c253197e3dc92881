#include "drivers/transport/pci_vfio.h"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "drivers/transport/dma_mappings.h"
#include "drivers/transport/pci_config.h"
#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/pci_lock.h"
#include "drivers/transport/physical_memory.h"
#include "drivers/transport/sysfs.h"
#include "drivers/transport/vfio_function.h"
#include "drivers/transport/vfio_info.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm {
namespace {

const char* const kContainer = "/dev/vfio/vfio";
constexpr uint64_t kHugePage = 2_MiB;
/// Of an answer whose size the kernel names itself.
constexpr uint32_t kMaxInfo = 64_KiB;

/// A struct with a tail, as VFIO's calls take it: `Head` first, `argsz` its first member.
template <class Head>
class Sized {
 public:
  explicit Sized(size_t bytes) : bytes_(bytes) { head().argsz = static_cast<uint32_t>(bytes); }
  Head& head() { return *reinterpret_cast<Head*>(bytes_.data()); }
  std::span<std::byte> tail() { return std::span(bytes_).subspan(sizeof(Head)); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// An info call, asked again with the size it says it needs.
template <class Head>
Result<std::vector<std::byte>> ask(System& system, int fd, unsigned long request, Head head,
                                   const char* what) {
  for (uint32_t bytes = sizeof(Head); bytes <= kMaxInfo;) {
    Sized<Head> info(bytes);
    info.head() = head;
    info.head().argsz = bytes;
    if (const int error = system.ioctl(fd, request, &info.head()); error < 0)
      return fail(code_from_errno(-error), "{}: {}", what, errno_text(-error));
    if (info.head().argsz <= bytes) return std::vector(info.bytes().begin(), info.bytes().end());
    bytes = info.head().argsz;
  }
  return fail(Code::kCorrupt, "{}: the kernel wants more than {} bytes for its answer", what,
              kMaxInfo);
}

class VfioPci final : public VfioFunction {
 public:
  VfioPci(System& system, const PciInfo& info) : VfioFunction(system), info_(info) {}
  ~VfioPci() override;

  Status open(const VfioPciOptions& options);

  const PciIdentity& identity() const override { return info_.identity; }
  Status resize_bar(uint32_t index, uint64_t bytes) override;
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override;
  Status dma_unmap(void* host) override;
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;
  Status reset(PciReset kind) override;
  Status status() const override;

 protected:
  uint32_t config_size() const override { return static_cast<uint32_t>(config_.size); }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Memory;

  std::string name() const override { return to_string(info_.identity.address); }
  Status open_group();
  Status check_viable();
  Status read_iommu();
  Status open_device();
  Status set_eventfds(uint32_t index, std::span<const int> fds) override;
  Result<uint32_t> vectors_of(uint32_t index) override;
  Result<VfioRegion> read_region_info(uint32_t index) override;
  int region_fd(uint32_t) const override { return device_.get(); }
  Status hot_reset();
  tl::unexpected<Error> out_of_locked_memory(uint64_t bytes) const;
  Status lose(const char* why) const;

  Status read_region(uint32_t region, uint64_t offset, std::span<std::byte> to, bool) override;
  Status write_region(uint32_t region, uint64_t offset, std::span<const std::byte> from,
                      bool) override;
  void flush_regions() override {}  // Calls return when the access has been made.
  Status region_status() const override { return status(); }

  PciInfo info_;
  bool is_no_iommu_ = false;
  std::optional<PciLock> lock_;
  // Closed in the opposite order.
  SystemFd container_, group_, device_;
  uint32_t device_flags_ = 0, irqs_ = 0;
  VfioRegion config_;
  DmaMappings mappings_;
  mutable std::atomic<const char*> lost_{nullptr};  ///< why; texts that stay
};

VfioPci::~VfioPci() {
  if (device_.is_open()) (void)disable_interrupts();
  unmap_bars();
}

Status VfioPci::lose(const char* why) const {
  const char* expected = nullptr;
  lost_.compare_exchange_strong(expected, why);
  return fail(Code::kDeviceLost, "{}: {}", name(), lost_.load());
}

Status VfioPci::status() const {
  if (lost_.load() != nullptr) return lose(lost_.load());
  if (is_asked_for())
    return lose("the kernel asks for the device back: it was unplugged, or is being unbound");
  if (has_error()) return lose("PCI Express reported an uncorrectable error");
  return {};
}

Status VfioPci::open(const VfioPciOptions& options) {
  if (!info_.iommu_group)
    return fail(Code::kUnsupported,
                "{} is behind no IOMMU: switch it on in the firmware's setup (VT-d, AMD-Vi) and "
                "for the kernel (intel_iommu=on)",
                name());
  is_no_iommu_ =
      read_sysfs(system_, fmt::format("/sys/kernel/iommu_groups/{}/name", *info_.iommu_group))
          .value_or("") == "vfio-noiommu";
  if (is_no_iommu_ && !options.is_no_iommu_allowed)
    return fail(Code::kUnsupported,
                "{} is behind no IOMMU and would reach all memory; BM_UNSAFE_NOIOMMU=1 allows it",
                name());
  if (!options.lock_folder.empty())
    lock_ = BM_TRY(PciLock::acquire(system_, info_.identity.address, options.lock_folder));
  BM_TRY(open_group());
  BM_TRY(check_viable());
  int container = container_.get();
  if (const int error = system_.ioctl(group_.get(), VFIO_GROUP_SET_CONTAINER, &container);
      error < 0)
    return fail(code_from_errno(-error), "IOMMU group {} into a container: {}", *info_.iommu_group,
                errno_text(-error));
  const long type = is_no_iommu_ ? VFIO_NOIOMMU_IOMMU : VFIO_TYPE1v2_IOMMU;
  if (const int error =
          system_.ioctl(container_.get(), VFIO_SET_IOMMU, reinterpret_cast<void*>(type));
      error < 0)
    return fail(code_from_errno(-error), "setting up the IOMMU for group {}: {}{}",
                *info_.iommu_group, errno_text(-error),
                -error == EPERM
                    ? "; no interrupt remapping: vfio_iommu_type1.allow_unsafe_interrupts"
                      "=1 accepts that"
                    : "");
  BM_TRY(read_iommu());
  BM_TRY(open_device());
  if (is_no_iommu_)
    log("pci", LogLevel::kWarning, "{} is behind no IOMMU: it reaches all memory of this machine",
        name());
  return {};
}

Status VfioPci::open_group() {
  const int container = system_.open(kContainer, O_RDWR);
  if (container == -ENOENT)
    return fail(Code::kNotFound, "{} is not there: modprobe vfio-pci", kContainer);
  if (container < 0)
    return fail(code_from_errno(-container), "{}: {}", kContainer, errno_text(-container));
  container_ = SystemFd(system_, container);
  const int version = system_.ioctl(container, VFIO_GET_API_VERSION, nullptr);
  const long type = is_no_iommu_ ? VFIO_NOIOMMU_IOMMU : VFIO_TYPE1v2_IOMMU;
  const int has_type =
      system_.ioctl(container, VFIO_CHECK_EXTENSION, reinterpret_cast<void*>(type));
  if (version != VFIO_API_VERSION || has_type <= 0)
    return fail(Code::kUnsupported, "{}: VFIO of version {}, {} type 1: modprobe vfio_iommu_type1",
                kContainer, version, has_type > 0 ? "with" : "without");
  const std::string node =
      fmt::format("/dev/vfio/{}{}", is_no_iommu_ ? "noiommu-" : "", *info_.iommu_group);
  const int group = system_.open(node, O_RDWR);
  if (group >= 0) {
    group_ = SystemFd(system_, group);
    return {};
  }
  const std::string driver = info_.driver.empty() ? "no driver" : info_.driver;
  if (group == -ENOENT)
    return fail(Code::kPermission, "{} is bound to {}; bellmetal pci bind {} hands it to vfio-pci",
                name(), driver, name());
  if (group == -EBUSY) {
    std::string holders;
    for (const PciHolder& holder : find_pci_holders(system_, info_))
      if (holder.path == node)
        holders += fmt::format(" by pid {} ({})", holder.pid, holder.command);
    return fail(Code::kIo, "{} is busy: {} is open{}", name(), node,
                holders.empty() ? " in another process" : holders);
  }
  return fail(code_from_errno(-group), "{}: {}; give it to the user: chown $USER {}", node,
              errno_text(-group), node);
}

Status VfioPci::check_viable() {
  vfio_group_status status{.argsz = sizeof status, .flags = 0};
  if (const int error = system_.ioctl(group_.get(), VFIO_GROUP_GET_STATUS, &status); error < 0)
    return fail(code_from_errno(-error), "IOMMU group {}: {}", *info_.iommu_group,
                errno_text(-error));
  if (status.flags & VFIO_GROUP_FLAGS_VIABLE) return {};
  std::string others;
  for (const PciAddress& member : info_.group) {
    const std::string driver = BM_TRY(sysfs_link_name(system_, pci_folder(member) + "/driver"));
    if (driver.empty() || driver.find("vfio") != std::string::npos || driver == "pci-stub" ||
        driver == "pcieport")
      continue;
    others +=
        fmt::format("{}{} is bound to {}", others.empty() ? "" : ", ", to_string(member), driver);
  }
  return fail(
      Code::kPermission,
      "IOMMU group {} of {} is shared with the kernel: {}; bellmetal pci bind {} takes them "
      "too",
      *info_.iommu_group, name(), others.empty() ? "a member has a driver" : others, name());
}

Status VfioPci::read_iommu() {
  if (is_no_iommu_) return {};
  const std::vector<std::byte> info =
      BM_TRY(ask(system_, container_.get(), VFIO_IOMMU_GET_INFO, vfio_iommu_type1_info{}, "IOMMU"));
  VfioIommu iommu = BM_TRY(parse_vfio_iommu(info));
  limits_ = std::move(iommu.limits);
  if (iommu.has_ranges) return {};
  // "first last kind" per line (ABI/testing/sysfs-kernel-iommu_groups).
  const std::string text = BM_TRY(read_sysfs(
      system_, fmt::format("/sys/kernel/iommu_groups/{}/reserved_regions", *info_.iommu_group)));
  unsigned long long first = 0, last = 0;
  for (size_t at = 0; at < text.size(); at = std::min(text.find('\n', at), text.size() - 1) + 1)
    if (std::sscanf(text.c_str() + at, "%llx %llx", &first, &last) == 2 && last >= first)
      limits_.reserved.push_back({first, last - first + 1});
  // The narrowest address widths of IOMMUs in use are 39 bits (VT-d with three levels).
  limits_.address_bits = 39;
  return {};
}

Result<VfioRegion> VfioPci::read_region_info(uint32_t index) {
  vfio_region_info head{};
  head.index = index;
  const auto what = fmt::format("{}: region {}", name(), index);
  return parse_vfio_region(
      BM_TRY(ask(system_, device_.get(), VFIO_DEVICE_GET_REGION_INFO, head, what.c_str())));
}

Status VfioPci::open_device() {
  std::string text = name();
  const int fd = system_.ioctl(group_.get(), VFIO_GROUP_GET_DEVICE_FD, text.data());
  if (fd < 0)
    return fail(code_from_errno(-fd), "{}: the device of group {}: {}", text, *info_.iommu_group,
                errno_text(-fd));
  device_ = SystemFd(system_, fd);
  vfio_device_info info{};
  info.argsz = sizeof info;
  if (const int error = system_.ioctl(fd, VFIO_DEVICE_GET_INFO, &info); error < 0)
    return fail(code_from_errno(-error), "{}: {}", text, errno_text(-error));
  device_flags_ = info.flags;
  irqs_ = info.num_irqs;
  if ((info.flags & VFIO_DEVICE_FLAGS_PCI) == 0 || info.num_regions <= VFIO_PCI_CONFIG_REGION_INDEX)
    return fail(Code::kUnsupported, "{} is no PCI device to VFIO", text);
  config_ = BM_TRY(read_region_info(VFIO_PCI_CONFIG_REGION_INDEX));
  if (config_.size < 256 || config_.size > 4096)
    return fail(Code::kCorrupt, "{}: configuration space of {:#x} bytes", text, config_.size);
  info_.identity = BM_TRY(read_identity(*this, info_.identity.address));
  BM_TRY(describe());
  for (uint32_t i = 0; i < kPciBars; ++i)
    if (bars_[i].size != 0) bars_[i].address = info_.bars[i].address;
  return {};
}

Result<uint32_t> VfioPci::vectors_of(uint32_t index) {
  if (index >= irqs_) return uint32_t{0};
  vfio_irq_info info{};
  info.argsz = sizeof info;
  info.index = index;
  const int error = system_.ioctl(device_.get(), VFIO_DEVICE_GET_IRQ_INFO, &info);
  // What a device cannot have, an error event on a conventional one, is EINVAL.
  if (error == -EINVAL) return uint32_t{0};
  if (error < 0)
    return fail(code_from_errno(-error), "{}: interrupts: {}", name(), errno_text(-error));
  return (info.flags & VFIO_IRQ_INFO_EVENTFD) != 0 ? info.count : 0;
}

Status VfioPci::set_eventfds(uint32_t index, std::span<const int> fds) {
  Sized<vfio_irq_set> set(sizeof(vfio_irq_set) + fds.size_bytes());
  set.head().flags = VFIO_IRQ_SET_ACTION_TRIGGER |
                     (fds.empty() ? VFIO_IRQ_SET_DATA_NONE : VFIO_IRQ_SET_DATA_EVENTFD);
  set.head().index = index;
  set.head().count = static_cast<uint32_t>(fds.size());
  if (!fds.empty()) std::memcpy(set.tail().data(), fds.data(), fds.size_bytes());
  const int result = system_.ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, &set.head());
  if (result == 0) return {};
  // A positive answer is how many vectors there are to have (vfio_msi_enable()).
  if (result > 0)
    return fail(Code::kOutOfMemory, "{}: {} interrupt vectors of {} are free", name(), result,
                fds.size());
  return fail(code_from_errno(-result), "{}: {} interrupts: {}", name(), fds.size(),
              errno_text(-result));
}

Result<uint32_t> VfioPci::do_read_config(uint32_t offset, uint32_t width) {
  BM_TRY(status());
  uint32_t value = 0;
  const ssize_t got = system_.pread(device_.get(), &value, width, config_.offset + offset);
  if (got == static_cast<ssize_t>(width)) return value;
  return fail(Code::kIo, "{}: reading configuration space at {:#x}: {}", name(), offset,
              got < 0 ? errno_text(static_cast<int>(-got)) : "short read");
}

Status VfioPci::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  BM_TRY(status());
  const ssize_t put = system_.pwrite(device_.get(), &value, width, config_.offset + offset);
  if (put == static_cast<ssize_t>(width)) return {};
  return fail(Code::kIo, "{}: writing configuration space at {:#x}: {}", name(), offset,
              put < 0 ? errno_text(static_cast<int>(-put)) : "short write");
}

Status VfioPci::read_region(uint32_t region, uint64_t offset, std::span<std::byte> to, bool) {
  BM_TRY(status());
  while (!to.empty()) {
    const ssize_t got =
        system_.pread(device_.get(), to.data(), to.size(), regions_[region].offset + offset);
    if (got <= 0) return lose("the kernel refuses reads of a BAR");
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status VfioPci::write_region(uint32_t region, uint64_t offset, std::span<const std::byte> from,
                             bool) {
  BM_TRY(status());
  while (!from.empty()) {
    const ssize_t put =
        system_.pwrite(device_.get(), from.data(), from.size(), regions_[region].offset + offset);
    if (put <= 0) return lose("the kernel refuses writes to a BAR");
    offset += static_cast<uint64_t>(put);
    from = from.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status VfioPci::resize_bar(uint32_t index, uint64_t bytes) {
  if (memory_bar(index) && bars_[index].size == bytes) return {};
  return fail(Code::kUnsupported,
              "{}: the kernel resizes BARs of functions without a driver: bellmetal pci restore, "
              "then pci bind --resize",
              name());
}

tl::unexpected<Error> VfioPci::out_of_locked_memory(uint64_t bytes) const {
  const uint64_t limit = system_.locked_memory_limit(), locked = mappings_.mapped_bytes();
  if (limit != ~uint64_t{0} && locked + bytes > limit)
    return fail(Code::kOutOfMemory,
                "{}: pinning {} bytes on top of {} exceeds the {} bytes this process may lock; "
                "raise it: ulimit -l, or LimitMEMLOCK= of the service",
                name(), bytes, locked, limit);
  return fail(Code::kOutOfMemory, "{}: the kernel cannot pin {} bytes on top of {}", name(), bytes,
              locked);
}

Result<std::vector<BusRange>> VfioPci::dma_map(const DmaRequest& request) {
  BM_TRY(status());
  if (is_no_iommu_)
    return fail(Code::kUnsupported,
                "{}: without an IOMMU only memory of dma_allocate() stays where it is", name());
  BM_TRY(mappings_.check(limits_, request));
  vfio_iommu_type1_dma_map map{};
  map.argsz = sizeof map;
  map.flags = VFIO_DMA_MAP_FLAG_READ | (request.is_read_only ? 0u : VFIO_DMA_MAP_FLAG_WRITE);
  map.vaddr = reinterpret_cast<uintptr_t>(request.host);
  map.iova = *request.iova;
  map.size = request.bytes;
  const int error = system_.ioctl(container_.get(), VFIO_IOMMU_MAP_DMA, &map);
  if (error == -ENOMEM) return out_of_locked_memory(request.bytes);
  if (error == -ENOSPC)
    return fail(Code::kOutOfMemory,
                "{}: no DMA mapping is left of {}; map larger pieces, or raise "
                "vfio_iommu_type1.dma_entry_limit",
                name(), limits_.mappings);
  if (error < 0)
    return fail(code_from_errno(-error), "{}: mapping {:#x} bytes at the IOVA {:#x}: {}", name(),
                request.bytes, *request.iova, errno_text(-error));
  mappings_.add(request);
  return std::vector<BusRange>{{*request.iova, request.bytes}};
}

Status VfioPci::dma_unmap(void* host) {
  const DmaMapping mapping = BM_TRY(mappings_.find(host));
  vfio_iommu_type1_dma_unmap unmap{};
  unmap.argsz = sizeof unmap;
  unmap.iova = mapping.iova;
  unmap.size = mapping.bytes;
  // Also where the device is lost: the memory is pinned until then.
  if (const int error = system_.ioctl(container_.get(), VFIO_IOMMU_UNMAP_DMA, &unmap); error < 0)
    return fail(Code::kIo, "{}: unmapping {:#x} bytes at the IOVA {:#x}: {}", name(), mapping.bytes,
                mapping.iova, errno_text(-error));
  mappings_.remove(host);
  if (unmap.size != mapping.bytes)
    return fail(Code::kIo, "{}: the kernel unmapped {:#x} of {:#x} bytes at the IOVA {:#x}", name(),
                uint64_t{unmap.size}, mapping.bytes, mapping.iova);
  return {};
}

/// Memory behind the IOMMU: unmapped before it goes.
class VfioPci::Memory final : public DmaMemory {
 public:
  Memory(VfioPci& pci, SystemMapping mapping) : pci_(pci), mapping_(std::move(mapping)) {}
  ~Memory() override {
    if (!ranges_.empty()) (void)pci_.dma_unmap(mapping_.address());
  }
  Status map(std::byte* start, uint64_t bytes, uint64_t iova) {
    view_ = BM_TRY(HostView::mapped(start, bytes));
    ranges_ = BM_TRY(pci_.dma_map({.host = start, .bytes = bytes, .iova = iova}));
    return {};
  }

 private:
  VfioPci& pci_;
  SystemMapping mapping_;
};

Result<std::unique_ptr<DmaMemory>> VfioPci::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                         std::optional<uint64_t> iova) {
  BM_TRY(status());
  if (is_no_iommu_) {
    if (iova) return fail(Code::kInvalidArgument, "{}: an IOVA is not ours to choose", name());
    return allocate_physical(system_, bytes, is_contiguous);
  }
  const std::optional<uint64_t> size = checked_align_up(bytes, limits_.page_bytes);
  if (bytes == 0 || !size || !iova)
    return fail(Code::kInvalidArgument, "{}: {:#x} bytes of DMA memory{}", name(), bytes,
                iova ? "" : " without an IOVA");
  void* address = nullptr;
  if (const int error = system_.mmap(nullptr, *size, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &address);
      error < 0)
    return fail(code_from_errno(-error), "{:#x} bytes of DMA memory: {}", *size,
                errno_text(-error));
  auto memory = std::make_unique<Memory>(*this, SystemMapping(system_, address, *size));
  // Pages that the device knows must not be copied by a fork; large ones are a wish.
  if (const int error = system_.madvise(address, *size, MADV_DONTFORK); error < 0)
    return fail(Code::kIo, "keeping DMA memory from forked processes: {}", errno_text(-error));
  if (*size >= kHugePage) (void)system_.madvise(address, *size, MADV_HUGEPAGE);
  BM_TRY(memory->map(static_cast<std::byte*>(address), *size, *iova));
  return memory;
}

Status VfioPci::hot_reset() {
  // The list of what shares the reset is asked for twice: how long it is, and for itself.
  Sized<vfio_pci_hot_reset_info> asked(sizeof(vfio_pci_hot_reset_info));
  int error = system_.ioctl(device_.get(), VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, &asked.head());
  if (error == -ENODEV)
    return fail(Code::kUnsupported, "{}: no slot or bus of its own can be reset", name());
  if (error < 0 && error != -ENOSPC)
    return fail(code_from_errno(-error), "{}: bus reset: {}", name(), errno_text(-error));
  const uint32_t count = asked.head().count;
  if (count > kMaxInfo / sizeof(vfio_pci_dependent_device))
    return fail(Code::kCorrupt, "{}: {} functions share a reset", name(), count);
  Sized<vfio_pci_hot_reset_info> info(sizeof(vfio_pci_hot_reset_info) +
                                      count * sizeof(vfio_pci_dependent_device));
  error = system_.ioctl(device_.get(), VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, &info.head());
  if (error < 0)
    return fail(code_from_errno(-error), "{}: bus reset: {}", name(), errno_text(-error));
  for (uint32_t i = 0; i < std::min(count, info.head().count); ++i) {
    vfio_pci_dependent_device other;
    std::memcpy(&other, info.tail().data() + i * sizeof other, sizeof other);
    if (other.group_id == *info_.iommu_group) continue;
    return fail(
        Code::kUnsupported, "{}: a bus reset would hit {} of IOMMU group {}, which is not ours",
        name(),
        to_string(PciAddress{other.segment, other.bus, static_cast<uint8_t>(other.devfn >> 3),
                             static_cast<uint8_t>(other.devfn & 7)}),
        other.group_id);
  }
  Sized<vfio_pci_hot_reset> reset(sizeof(vfio_pci_hot_reset) + sizeof(int32_t));
  reset.head().count = 1;
  const int32_t group = group_.get();
  std::memcpy(reset.tail().data(), &group, sizeof group);
  error = system_.ioctl(device_.get(), VFIO_DEVICE_PCI_HOT_RESET, &reset.head());
  // The kernel waits for the link itself and says ENOTTY when it does not come back.
  if (error == -ENOTTY || error == -ETIMEDOUT)
    return fail(Code::kTimeout, "{}: the link is not back after the bus reset", name());
  if (error < 0)
    return fail(code_from_errno(-error), "{}: bus reset: {}", name(), errno_text(-error));
  return {};
}

Status VfioPci::reset(PciReset kind) {
  BM_TRY(status());
  BM_TRY(disable_interrupts());
  if (kind == PciReset::kBus) return hot_reset();
  if ((device_flags_ & VFIO_DEVICE_FLAGS_RESET) == 0)
    return fail(Code::kUnsupported, "{} cannot be reset alone", name());
  if (const int error = system_.ioctl(device_.get(), VFIO_DEVICE_RESET, nullptr); error < 0)
    return fail(error == -ETIMEDOUT || error == -ENOTTY ? Code::kTimeout : code_from_errno(-error),
                "{}: reset: {}", name(), errno_text(-error));
  return {};
}

}  // namespace

Result<std::unique_ptr<PciFunction>> open_vfio_pci(System& system, const VfioPciOptions& options) {
  const PciInfo info = BM_TRY(describe_pci(system, options.address));
  auto function = std::make_unique<VfioPci>(system, info);
  BM_TRY(function->open(options));
  return function;
}

}  // namespace bm
