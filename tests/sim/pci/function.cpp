#include "tests/sim/pci/function.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/sim/notify/give_up.h"

namespace bm::sim {
namespace {
constexpr uint64_t kPage = 4096;
}

class CardFunction::Window final : public RemoteWindow {
 public:
  Window(PciCard& card, uint32_t bar) : card_(card), bar_(bar) {}
  uint64_t size() const override { return card_.bar_bytes(bar_); }
  uint64_t read(uint64_t offset, uint32_t width) override {
    return card_.read(bar_, offset, width);
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    card_.write(bar_, offset, width, value);
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    card_.read_block(bar_, offset, to);
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    card_.write_block(bar_, offset, from);
  }
  void flush() override {}
  Status status() const override {
    if (card_.is_unplugged()) return fail(Code::kDeviceLost, "the modelled card was pulled out");
    return {};
  }

 private:
  PciCard& card_;
  const uint32_t bar_;
};

class CardFunction::Memory final : public DmaMemory {
 public:
  Memory(CardFunction& pci, uint64_t bytes)
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
  CardFunction& pci_;
  void* host_;
  uint64_t bytes_;
};

CardFunction::CardFunction(std::shared_ptr<PciCard> card) : card_(std::move(card)) {
  ConfigSpace& config = card_->config();
  card_->place_bars();
  identity_ = {.address = {0, 3, 0, 0},
               .vendor = static_cast<uint16_t>(config.read(0, 2)),
               .device = static_cast<uint16_t>(config.read(2, 2)),
               .subsystem_vendor = static_cast<uint16_t>(config.read(0x2c, 2)),
               .subsystem_device = static_cast<uint16_t>(config.read(0x2e, 2)),
               .class_code = config.read(8, 4) >> 8,
               .revision = static_cast<uint8_t>(config.read(8, 1))};
  const CardTraits& traits = card_->traits();
  for (const CardBar& bar : traits.bars)
    bars_[bar.index] = {.size = card_->bar_bytes(bar.index),
                        .address = config.bar_address(bar.index),
                        .is_64_bit = bar.is_64_bit,
                        .is_prefetchable = bar.is_prefetchable};
  limits_.takes_iova = traits.has_iommu;
  limits_.address_bits = 48;
  if (limits_.takes_iova)
    for (const auto& [address, bytes] : traits.reserved)
      limits_.reserved.push_back({address, bytes});
  next_physical_ = traits.physical_base;
  interrupt_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (interrupt_ < 0) sim::give_up_errno("an event descriptor");
  card_->on_interrupt([fd = interrupt_] {
    const uint64_t one = 1;
    (void)!::write(fd, &one, sizeof one);
  });
}

CardFunction::~CardFunction() {
  // Whoever gives the function back stops its DMA: VFIO clears the command register's bit.
  card_->on_interrupt({});
  card_->write_config(4, 2, 2);
  for (const auto& [host, ranges] : mapped_)
    for (const BusRange& range : ranges) card_->system_memory().unmap(range.address);
  close(interrupt_);
}

Result<RemoteWindow*> CardFunction::window(uint32_t index) {
  if (index >= kPciBars || bars_[index].size == 0)
    return fail(Code::kInvalidArgument, "BAR {} of the modelled card is not there", index);
  auto& window = windows_[index];
  if (!window) window = std::make_unique<Window>(*card_, index);
  return window.get();
}

Result<Mmio> CardFunction::map_bar(uint32_t index) { return Mmio::remote(*BM_TRY(window(index))); }

Result<HostView> CardFunction::map_bar_memory(uint32_t index, bool /*is_write_combined*/) {
  return HostView::remote(*BM_TRY(window(index)));
}

Status CardFunction::resize_bar(uint32_t index, uint64_t bytes) {
  if (index != card_->traits().memory_bar)
    return fail(Code::kUnsupported, "BAR {} of the modelled card is fixed", index);
  if (windows_.contains(index))
    return fail(Code::kInvalidArgument, "BAR {} is mapped and cannot be resized", index);
  if (!card_->resize_memory_bar(bytes))
    return fail(Code::kInvalidArgument, "BAR {} of {:#x} bytes is not offered", index, bytes);
  bars_[index].size = bytes;
  return {};
}

Result<std::vector<BusRange>> CardFunction::dma_map(const DmaRequest& request) {
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
    if (!card_->system_memory().map(range.address, {host + at, range.bytes, request.is_read_only}))
      return fail(Code::kInvalidArgument, "bus address {:#x} is mapped already", range.address);
    at += range.bytes;
  }
  mapped_[request.host] = ranges;
  return ranges;
}

Status CardFunction::dma_unmap(void* host) {
  const auto at = mapped_.find(host);
  if (at == mapped_.end())
    return fail(Code::kInvalidArgument, "{} is not the start of a mapping", host);
  for (const BusRange& range : at->second) {
    card_->before_unmap(range.address, range.bytes);
    card_->system_memory().unmap(range.address);
  }
  mapped_.erase(at);
  return {};
}

Result<std::unique_ptr<DmaMemory>> CardFunction::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                              std::optional<uint64_t> iova) {
  if (is_contiguous && !limits_.takes_iova && bytes > kPage)
    return fail(Code::kUnsupported, "{:#x} contiguous bytes without an IOMMU", bytes);
  auto memory = std::make_unique<Memory>(*this, (bytes + kPage - 1) / kPage * kPage);
  BM_TRY(memory->map(iova));
  return memory;
}

Result<uint32_t> CardFunction::enable_interrupts(uint32_t wanted) {
  if (wanted == 0) return 0u;
  card_->set_msi(true);
  return 1u;
}

Result<int> CardFunction::interrupt_fd(uint32_t vector) {
  if (vector != 0) return fail(Code::kInvalidArgument, "vector {} is not enabled", vector);
  return interrupt_;
}

Result<bool> CardFunction::wait_interrupt(uint32_t vector, int timeout_ms) {
  pollfd waiting{BM_TRY(interrupt_fd(vector)), POLLIN, 0};
  if (poll(&waiting, 1, timeout_ms) <= 0) return false;
  uint64_t count = 0;
  return ::read(interrupt_, &count, sizeof count) == sizeof count;
}

Status CardFunction::reset(PciReset /*kind*/) {
  if (!card_->traits().has_function_reset)
    return fail(Code::kUnsupported, "the modelled card has no function level reset");
  BM_TRY(status());
  card_->function_reset();
  bars_[card_->traits().memory_bar].size = card_->bar_bytes(card_->traits().memory_bar);
  return {};
}

Status CardFunction::status() const {
  if (card_->is_unplugged()) return fail(Code::kDeviceLost, "the modelled card was pulled out");
  return {};
}

Result<uint32_t> CardFunction::do_read_config(uint32_t offset, uint32_t width) {
  return card_->read_config(offset, width);
}

Status CardFunction::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  card_->write_config(offset, width, value);
  bars_[card_->traits().memory_bar].size = card_->bar_bytes(card_->traits().memory_bar);
  return {};
}

}  // namespace bm::sim
