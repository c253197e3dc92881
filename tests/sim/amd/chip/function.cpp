#include "tests/sim/amd/chip/function.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {
namespace {
constexpr uint64_t kPage = 4096;
}

class ChipFunction::Window final : public RemoteWindow {
 public:
  Window(Chip& chip, uint32_t bar) : chip_(chip), bar_(bar) {}
  uint64_t size() const override { return chip_.bar_bytes(bar_); }
  uint64_t read(uint64_t offset, uint32_t width) override {
    return chip_.read(bar_, offset, width);
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    chip_.write(bar_, offset, width, value);
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    chip_.read_block(bar_, offset, to);
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    chip_.write_block(bar_, offset, from);
  }
  void flush() override {}
  Status status() const override {
    if (chip_.is_unplugged()) return fail(Code::kDeviceLost, "the modelled card was pulled out");
    return {};
  }

 private:
  Chip& chip_;
  const uint32_t bar_;
};

class ChipFunction::Memory final : public DmaMemory {
 public:
  Memory(ChipFunction& pci, uint64_t bytes)
      : pci_(pci), host_(std::aligned_alloc(kPage, bytes)), bytes_(bytes) {
    if (host_ == nullptr) sim::give_up("no memory for DMA");
    std::memset(host_, 0, bytes);
    view_ = *HostView::mapped(host_, bytes);
  }
  ~Memory() override {
    (void)pci_.dma_unmap(host_);
    std::free(host_);
  }
  Status map(std::optional<uint64_t> iova) {
    ranges_ = BM_TRY(pci_.dma_map({.host = host_, .bytes = bytes_, .iova = iova}));
    return {};
  }

 private:
  ChipFunction& pci_;
  void* host_;
  uint64_t bytes_;
};

ChipFunction::ChipFunction(const ChipOptions& options)
    : ChipFunction(std::make_shared<Chip>(options)) {}

ChipFunction::ChipFunction(std::shared_ptr<Chip> chip) : chip_(std::move(chip)) {
  ConfigSpace& config = chip_->config();
  // Addresses as firmware gives them.
  config.set_bar_address(Chip::kMemoryBar, 0x60'0000'0000);
  config.set_bar_address(Chip::kDoorbellBar, 0x70'0000'0000);
  config.set_bar_address(Chip::kRegisterBar, 0xf000'0000);
  chip_->write_config(4, 2, 2);
  identity_ = {.address = {0, 3, 0, 0},
               .vendor = static_cast<uint16_t>(config.read(0, 2)),
               .device = static_cast<uint16_t>(config.read(2, 2)),
               .subsystem_vendor = static_cast<uint16_t>(config.read(0x2c, 2)),
               .subsystem_device = static_cast<uint16_t>(config.read(0x2e, 2)),
               .class_code = config.read(8, 4) >> 8,
               .revision = static_cast<uint8_t>(config.read(8, 1))};
  for (const uint32_t bar : {Chip::kMemoryBar, Chip::kDoorbellBar, Chip::kRegisterBar})
    bars_[bar] = {.size = chip_->bar_bytes(bar),
                  .address = config.bar_address(bar),
                  .is_64_bit = bar != Chip::kRegisterBar,
                  .is_prefetchable = bar != Chip::kRegisterBar};
  limits_.takes_iova = chip_->options().has_iommu;
  limits_.address_bits = 48;
  if (limits_.takes_iova)
    for (const auto& [address, bytes] : chip_->options().reserved)
      limits_.reserved.push_back({address, bytes});
  next_physical_ = chip_->options().physical_base;
  interrupt_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (interrupt_ < 0) sim::give_up_errno("an event descriptor");
  chip_->on_interrupt([fd = interrupt_] {
    const uint64_t one = 1;
    (void)!::write(fd, &one, sizeof one);
  });
}

ChipFunction::~ChipFunction() {
  // Whoever gives the function back stops its DMA: VFIO clears the command register's bit.
  chip_->on_interrupt({});
  chip_->write_config(4, 2, 2);
  for (const auto& [host, ranges] : mapped_)
    for (const BusRange& range : ranges) chip_->system_memory().unmap(range.address);
  close(interrupt_);
}

Result<RemoteWindow*> ChipFunction::window(uint32_t index) {
  if (index >= kPciBars || bars_[index].size == 0)
    return fail(Code::kInvalidArgument, "BAR {} of the modelled card is not there", index);
  auto& window = windows_[index];
  if (!window) window = std::make_unique<Window>(*chip_, index);
  return window.get();
}

Result<Mmio> ChipFunction::map_bar(uint32_t index) { return Mmio::remote(*BM_TRY(window(index))); }

Result<HostView> ChipFunction::map_bar_memory(uint32_t index, bool /*is_write_combined*/) {
  return HostView::remote(*BM_TRY(window(index)));
}

Status ChipFunction::resize_bar(uint32_t index, uint64_t bytes) {
  if (index != Chip::kMemoryBar)
    return fail(Code::kUnsupported, "BAR {} of the modelled card is fixed", index);
  if (windows_.contains(index))
    return fail(Code::kInvalidArgument, "BAR {} is mapped and cannot be resized", index);
  if (!chip_->resize_bar0(bytes))
    return fail(Code::kInvalidArgument, "BAR 0 of {:#x} bytes is not offered", bytes);
  bars_[index].size = bytes;
  return {};
}

Result<std::vector<BusRange>> ChipFunction::dma_map(const DmaRequest& request) {
  if (reinterpret_cast<uintptr_t>(request.host) % kPage != 0 || request.bytes % kPage != 0 ||
      request.bytes == 0 || request.host == nullptr)
    return fail(Code::kInvalidArgument, "DMA of {:#x} bytes at {} is not in pages", request.bytes,
                request.host);
  if (request.iova.has_value() != limits_.takes_iova)
    return fail(Code::kInvalidArgument, "{}",
                limits_.takes_iova ? "an IOVA is missing" : "there is no IOMMU to take an IOVA");
  std::byte* const host = static_cast<std::byte*>(request.host);
  std::vector<BusRange> ranges;
  if (request.iova) {
    if (*request.iova % kPage != 0)
      return fail(Code::kInvalidArgument, "IOVA {:#x} is not aligned", *request.iova);
    for (const BusRange& reserved : limits_.reserved)
      if (*request.iova < reserved.address + reserved.bytes &&
          reserved.address < *request.iova + request.bytes)
        return fail(Code::kInvalidArgument, "IOVA {:#x} is reserved", *request.iova);
    ranges = {{*request.iova, request.bytes}};
  } else {
    // Physical pages lie anywhere.
    for (uint64_t at = 0; at < request.bytes; at += kPage) {
      ranges.push_back({next_physical_, kPage});
      next_physical_ += (at / kPage % 3 + 1) * kPage;
    }
  }
  uint64_t at = 0;
  for (const BusRange& range : ranges) {
    if (!chip_->system_memory().map(range.address, {host + at, range.bytes, request.is_read_only}))
      return fail(Code::kInvalidArgument, "bus address {:#x} is mapped already", range.address);
    at += range.bytes;
  }
  mapped_[request.host] = ranges;
  return ranges;
}

Status ChipFunction::dma_unmap(void* host) {
  const auto at = mapped_.find(host);
  if (at == mapped_.end())
    return fail(Code::kInvalidArgument, "{} is not the start of a mapping", host);
  for (const BusRange& range : at->second) chip_->system_memory().unmap(range.address);
  mapped_.erase(at);
  return {};
}

Result<std::unique_ptr<DmaMemory>> ChipFunction::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                              std::optional<uint64_t> iova) {
  if (is_contiguous && !limits_.takes_iova && bytes > kPage)
    return fail(Code::kUnsupported, "{:#x} contiguous bytes without an IOMMU", bytes);
  auto memory = std::make_unique<Memory>(*this, (bytes + kPage - 1) / kPage * kPage);
  BM_TRY(memory->map(iova));
  return memory;
}

Result<uint32_t> ChipFunction::enable_interrupts(uint32_t wanted) {
  if (wanted == 0) return 0u;
  chip_->set_msi(true);
  return 1u;
}

Result<int> ChipFunction::interrupt_fd(uint32_t vector) {
  if (vector != 0) return fail(Code::kInvalidArgument, "vector {} is not enabled", vector);
  return interrupt_;
}

Result<bool> ChipFunction::wait_interrupt(uint32_t vector, int timeout_ms) {
  pollfd waiting{BM_TRY(interrupt_fd(vector)), POLLIN, 0};
  if (poll(&waiting, 1, timeout_ms) <= 0) return false;
  uint64_t count = 0;
  return ::read(interrupt_, &count, sizeof count) == sizeof count;
}

Status ChipFunction::reset(PciReset /*kind*/) {
  if (!chip_->options().has_function_reset)
    return fail(Code::kUnsupported, "the modelled card has no function level reset");
  BM_TRY(status());
  chip_->function_reset();
  bars_[Chip::kMemoryBar].size = chip_->bar_bytes(Chip::kMemoryBar);
  return {};
}

Status ChipFunction::status() const {
  if (chip_->is_unplugged()) return fail(Code::kDeviceLost, "the modelled card was pulled out");
  return {};
}

Result<uint32_t> ChipFunction::do_read_config(uint32_t offset, uint32_t width) {
  return chip_->read_config(offset, width);
}

Status ChipFunction::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  chip_->write_config(offset, width, value);
  bars_[Chip::kMemoryBar].size = chip_->bar_bytes(Chip::kMemoryBar);
  return {};
}

}  // namespace bm::sim::amd
