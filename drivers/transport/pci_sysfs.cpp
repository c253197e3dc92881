#include "drivers/transport/pci_sysfs.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/pci_lock.h"
#include "drivers/transport/physical_memory.h"
#include "drivers/transport/sysfs.h"
#include "runtime/base/bits.h"

namespace bm {
namespace {

class SysfsPci final : public PciFunction {
 public:
  SysfsPci(System& system, PciInfo info)
      : system_(system), info_(std::move(info)), folder_(pci_folder(info_.identity.address)) {}
  ~SysfsPci() override {
    mappings_.clear();
    if (config_.is_open() && status()) (void)set_bus_master(*this, false);
    if (is_enabled_) (void)write_sysfs(system_, folder_ + "/enable", "0");
  }

  Status open(const std::string& lock_folder);

  const PciIdentity& identity() const override { return info_.identity; }
  const std::array<PciBar, kPciBars>& bars() const override { return info_.bars; }
  Result<Mmio> map_bar(uint32_t index) override {
    const SystemMapping& mapping = *BM_TRY(map(index, false));
    return Mmio::mapped(mapping.address(), mapping.bytes());
  }
  Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) override {
    const SystemMapping& mapping = *BM_TRY(map(index, is_write_combined));
    return HostView::mapped(mapping.address(), mapping.bytes());
  }
  Status resize_bar(uint32_t index, uint64_t bytes) override;

  const DmaLimits& dma_limits() const override { return limits_; }
  Result<std::vector<BusRange>> dma_map(const DmaRequest&) override {
    return fail(Code::kUnsupported,
                "{}: without an IOMMU only memory of dma_allocate() stays where it is", name());
  }
  Status dma_unmap(void* host) override {
    return fail(Code::kInvalidArgument, "{}: nothing is mapped at {}", name(), host);
  }
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override {
    BM_TRY(status());
    if (iova) return fail(Code::kInvalidArgument, "{}: an IOVA is not ours to choose", name());
    return allocate_physical(system_, bytes, is_contiguous);
  }

  Result<uint32_t> enable_interrupts(uint32_t) override { return no_interrupts(); }
  Result<int> interrupt_fd(uint32_t) override { return no_interrupts(); }
  Result<bool> wait_interrupt(uint32_t, int) override { return no_interrupts(); }

  Status reset(PciReset kind) override;
  Status status() const override;

 protected:
  uint32_t config_size() const override { return config_size_; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  std::string name() const { return to_string(info_.identity.address); }
  Result<const SystemMapping*> map(uint32_t index, bool is_write_combined);
  tl::unexpected<Error> no_interrupts() const {
    return fail(Code::kUnsupported, "{}: sysfs has no interrupts; poll the device", name());
  }
  tl::unexpected<Error> lost() const {
    is_lost_ = true;
    return fail(Code::kDeviceLost, "{} does not answer any more", name());
  }

  System& system_;
  PciInfo info_;
  const std::string folder_;
  std::optional<PciLock> lock_;
  SystemFd config_;
  uint32_t config_size_ = 0;
  bool is_enabled_ = false;
  mutable std::atomic<bool> is_lost_{false};
  const DmaLimits limits_{.page_bytes = 2_MiB};
  std::map<std::pair<uint32_t, bool>, SystemMapping> mappings_;
};

Status SysfsPci::open(const std::string& lock_folder) {
  if (!info_.driver.empty())
    return fail(Code::kPermission,
                "{} is bound to {}; bellmetal pci bind {} --driver none takes it", name(),
                info_.driver, name());
  // Only an identity domain leaves bus addresses as they are.
  if (info_.iommu_group && info_.iommu_type != "identity")
    return fail(Code::kUnsupported,
                "{}: an IOMMU translates its accesses (group {}, {}), so physical addresses mean "
                "nothing to it; use vfio:{}",
                name(), *info_.iommu_group,
                info_.iommu_type.empty() ? "kind not known" : info_.iommu_type, name());
  if (!lock_folder.empty())
    lock_ = BM_TRY(PciLock::acquire(system_, info_.identity.address, lock_folder));
  BM_TRY(write_sysfs(system_, folder_ + "/enable", "1"));
  is_enabled_ = true;
  const int config = system_.open(folder_ + "/config", O_RDWR);
  if (config < 0)
    return fail(code_from_errno(-config), "{}/config: {}", folder_, errno_text(-config));
  config_ = SystemFd(system_, config);
  const int64_t bytes = system_.file_size(config);
  if (bytes < 256) return fail(Code::kIo, "{}/config has {} bytes", folder_, bytes);
  config_size_ = bytes >= 4096 ? 4096 : 256;
  info_.identity = BM_TRY(read_identity(*this, info_.identity.address));
  return {};
}

Status SysfsPci::status() const {
  if (is_lost_) return lost();
  uint16_t vendor = 0xffff;
  const ssize_t got = system_.pread(config_.get(), &vendor, sizeof vendor, 0);
  if (got != static_cast<ssize_t>(sizeof vendor) || vendor == 0xffff) return lost();
  return {};
}

Result<uint32_t> SysfsPci::do_read_config(uint32_t offset, uint32_t width) {
  if (is_lost_) return lost();
  uint32_t value = 0;
  const ssize_t got = system_.pread(config_.get(), &value, width, offset);
  if (got == static_cast<ssize_t>(width)) return value;
  // Who lacks CAP_SYS_ADMIN sees 64 bytes only (pci_read_config()).
  if (got == 0)
    return fail(Code::kPermission, "{}: configuration space at {:#x} is for root", name(), offset);
  return fail(Code::kIo, "{}: reading configuration space at {:#x}: {}", name(), offset,
              got < 0 ? errno_text(static_cast<int>(-got)) : "short read");
}

Status SysfsPci::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  if (is_lost_) return lost();
  const ssize_t put = system_.pwrite(config_.get(), &value, width, offset);
  if (put == static_cast<ssize_t>(width)) return {};
  return fail(Code::kIo, "{}: writing configuration space at {:#x}: {}", name(), offset,
              put < 0 ? errno_text(static_cast<int>(-put)) : "short write");
}

Result<const SystemMapping*> SysfsPci::map(uint32_t index, bool is_write_combined) {
  BM_TRY(status());
  if (index >= kPciBars || info_.bars[index].size == 0 || !info_.bars[index].is_memory)
    return fail(Code::kInvalidArgument, "{} has no memory BAR {}", name(), index);
  const PciBar& bar = info_.bars[index];
  is_write_combined &= bar.is_prefetchable;
  const auto known = mappings_.find({index, is_write_combined});
  if (known != mappings_.end()) return &known->second;
  std::string path = fmt::format("{}/resource{}{}", folder_, index, is_write_combined ? "_wc" : "");
  int opened = system_.open(path, O_RDWR | O_SYNC);
  if (opened == -ENOENT && is_write_combined) return map(index, false);  // Not on every machine.
  if (opened < 0) return fail(code_from_errno(-opened), "{}: {}", path, errno_text(-opened));
  const SystemFd fd(system_, opened);
  void* address = nullptr;
  int error =
      system_.mmap(nullptr, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0, &address);
  if (error < 0)
    return fail(
        code_from_errno(-error), "mapping {:#x} bytes of {}: {}{}", bar.size, path,
        errno_text(-error),
        error == -EPERM ? "; is the kernel locked down (/sys/kernel/security/lockdown)?" : "");
  SystemMapping mapping(system_, address, bar.size);
  error = system_.madvise(address, bar.size, MADV_DONTFORK);
  if (error < 0)
    return fail(Code::kIo, "{}: keeping BAR {} from forked processes: {}", name(), index,
                errno_text(-error));
  return &mappings_.emplace(std::pair(index, is_write_combined), std::move(mapping)).first->second;
}

Status SysfsPci::resize_bar(uint32_t index, uint64_t bytes) {
  BM_TRY(status());
  if (index >= kPciBars || info_.bars[index].size == 0)
    return fail(Code::kInvalidArgument, "{} has no BAR {}", name(), index);
  if (info_.bars[index].size == bytes) return {};
  if (mappings_.contains({index, false}) || mappings_.contains({index, true}))
    return fail(Code::kInvalidArgument, "{}: BAR {} is mapped", name(), index);
  // A bit per size, that of 1 MiB first, in hexadecimal without 0x; a size is written as its bit.
  const std::string path = fmt::format("{}/resource{}_resize", folder_, index);
  const Result<std::string> text = read_sysfs(system_, path);
  if (!text)
    return fail(Code::kUnsupported, "{}: BAR {} has one size ({})", name(), index,
                text.error().message);
  uint64_t offered = 0;
  const char* const end = text->data() + text->size();
  if (std::from_chars(text->data(), end, offered, 16).ptr != end)
    return fail(Code::kCorrupt, "{} holds '{}'", path, *text);
  const uint32_t bit = bytes >= 1_MiB && is_power_of_two(bytes) ? floor_log2(bytes >> 20) : 64;
  if (bit >= 64 || (offered >> bit & 1) == 0)
    return fail(Code::kInvalidArgument, "{}: BAR {} cannot have {:#x} bytes; offered are {:#x} MiB",
                name(), index, bytes, offered);
  const Status written = write_sysfs(system_, path, fmt::format("{}", bit));
  if (!written)
    return fail(Code::kOutOfMemory,
                "{}: no room for {:#x} bytes of BAR {} below its bridge ({}); switch on \"above 4G "
                "decoding\" and resizable BARs in the firmware's setup",
                name(), bytes, index, written.error().message);
  info_.bars = BM_TRY(describe_pci(system_, info_.identity.address)).bars;
  return {};
}

Status SysfsPci::reset(PciReset kind) {
  BM_TRY(status());
  if (kind == PciReset::kBus)
    return fail(Code::kUnsupported, "{}: sysfs resets the function alone", name());
  const Status written = write_sysfs(system_, folder_ + "/reset", "1");
  if (!written && written.error().code == Code::kNotFound)
    return fail(Code::kUnsupported, "{} cannot be reset alone", name());
  return written;
}

}  // namespace

Result<std::unique_ptr<PciFunction>> open_sysfs_pci(System& system, const PciAddress& address,
                                                    const std::string& lock_folder) {
  auto function = std::make_unique<SysfsPci>(system, BM_TRY(describe_pci(system, address)));
  BM_TRY(function->open(lock_folder));
  return function;
}

}  // namespace bm
