#include "drivers/transport/usb/usb_pci.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "drivers/transport/pci_config.h"
#include "runtime/base/bits.h"

namespace bm {
namespace {

// Header (PCI Local Bus 3.0, 6.1), and that of bridges (PCI-to-PCI Bridge 1.2, 3.2).
constexpr uint32_t kVendor = 0x00, kHeaderType = 0x0e, kBar0 = 0x10;
constexpr uint32_t kBuses = 0x18, kMemoryBase = 0x20, kPrefetchBase = 0x24;
constexpr uint32_t kPrefetchBaseUpper = 0x28, kPrefetchLimitUpper = 0x2c;
constexpr uint32_t kBridge = 1, kMultiFunction = 0x80;
// PCI Express capabilities: device/port type in bits 7:4 (PCIe 7.5.3.2).
constexpr uint32_t kExpressFlags = 2, kUpstreamPort = 5, kPciExpressToPci = 7;
/// Windows of bridges are in units of 1 MiB.
constexpr uint64_t kWindow = 1_MiB;
/// Ports of a bridge may answer without a name. The programs that its firmware was written with
/// take buses 0 to 3 for ports (bridge, link, and the two of a card's switch) without asking.
/// Source: tinygrad, runtime/support/system.py, pci_setup_usb_bars().
constexpr uint32_t kNamelessBridges = 4;
constexpr uint32_t kLastBus = 255, kDevices = 32, kFunctions = 8;

/// Configuration space of a function behind the bridge.
class BehindBridge final : public PciConfig {
 public:
  BehindBridge(UsbBridge& bridge, const PciAddress& address) : bridge_(bridge), address_(address) {}

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override {
    Result<uint32_t> value = bridge_.read_config(address_, offset, width);
    // Nobody there reads as ones, as on every bus.
    if (!value && value.error().code == Code::kNotFound)
      return width == 4 ? ~0u : (1u << (8 * width)) - 1;
    return value;
  }
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override {
    const Status status = bridge_.write_config(address_, offset, width, value);
    if (!status && status.error().code == Code::kNotFound) return {};
    return status;
  }

 private:
  UsbBridge& bridge_;
  const PciAddress address_;
};

/// Hands out one of the two windows from below.
struct Space {
  BusRange range;
  uint64_t next = 0;
  explicit Space(const BusRange& the_range) : range(the_range), next(the_range.address) {}
  std::optional<uint64_t> take(uint64_t bytes, uint64_t alignment) {
    const auto at = checked_align_up(next, alignment);
    const uint64_t end = range.address + range.bytes;
    if (!at || *at > end || bytes > end - *at) return std::nullopt;
    next = *at + bytes;
    return at;
  }
};

}  // namespace

/// One walk over the buses.
class UsbBus::Enumeration {
 public:
  explicit Enumeration(UsbBus& bus)
      : bus_(bus), memory_(bus.options_.memory), prefetchable_(bus.options_.prefetchable) {}

  Result<std::vector<Function>> run() {
    BM_TRY(scan(0, true));
    if (found_.empty())
      return fail(Code::kNotFound, "{}: no PCI function answers behind the bridge",
                  to_string(bus_.bridge_->identity()));
    return std::move(found_);
  }

 private:
  /// The functions of bus `number`. `is_point_to_point`: a link, which has device 0 only.
  Status scan(uint32_t number, bool is_point_to_point) {
    for (uint32_t device = 0; device < (is_point_to_point ? 1 : kDevices); ++device) {
      for (uint32_t function = 0; function < kFunctions; ++function) {
        const PciAddress address{0, static_cast<uint8_t>(number), static_cast<uint8_t>(device),
                                 static_cast<uint8_t>(function)};
        if (Clock::now() > end_)
          return fail(Code::kTimeout, "{}: enumeration did not end within {} s, at {}",
                      to_string(bus_.bridge_->identity()),
                      kEnumerationTime / std::chrono::seconds(1), to_string(address));
        BehindBridge config(*bus_.bridge_, address);
        const uint32_t id = BM_TRY(config.read_config(kVendor, 4));
        if (id == ~0u || (id == 0 && function != 0)) {
          if (function == 0) break;
          continue;
        }
        const uint32_t type = BM_TRY(config.read_config(kHeaderType, 1));
        if ((type & ~kMultiFunction) == kBridge || (id == 0 && number < kNamelessBridges)) {
          BM_TRY(open_bridge(config, number));
        } else if ((type & ~kMultiFunction) == 0) {
          BM_TRY(place(config, address));
        } else {
          return fail(Code::kCorrupt, "{}: header type {:#x}", to_string(address), type);
        }
        if (function == 0 && (type & kMultiFunction) == 0) break;
      }
    }
    return {};
  }

  /// Scans what lies behind it and makes its windows as large as what was placed there.
  Status open_bridge(PciConfig& config, uint32_t primary) {
    if (last_bus_ == kLastBus) return fail(Code::kCorrupt, "more than 255 PCI buses");
    const uint32_t secondary = ++last_bus_;
    BM_TRY(set_memory_decoding(config, false));
    // All buses from here on pass through it while it is scanned.
    BM_TRY(config.write_config(kBuses, 4, primary | secondary << 8 | kLastBus << 16));
    const auto aligned = [](Space& space) {
      space.next = align_up(space.next, kWindow);
      return space.next;
    };
    const uint64_t memory = aligned(memory_), prefetchable = aligned(prefetchable_);
    uint32_t port = 0;
    if (const auto express = BM_TRY(find_capability(config, PciCapability::kExpress)))
      port = BM_TRY(config.read_config(*express + kExpressFlags, 2)) >> 4 & 0xf;
    BM_TRY(scan(secondary, port != kUpstreamPort && port != kPciExpressToPci));
    BM_TRY(config.write_config(kBuses, 4, primary | secondary << 8 | last_bus_ << 16));
    BM_TRY(write_windows(config, {memory, aligned(memory_) - memory},
                         {prefetchable, aligned(prefetchable_) - prefetchable}));
    BM_TRY(set_memory_decoding(config, true));
    return set_bus_master(config, true);
  }

  /// Base and limit of both windows; a base above its limit closes one (PCI-to-PCI Bridge 1.2,
  /// 3.2.5.8).
  static Status write_windows(PciConfig& config, const BusRange& memory,
                              const BusRange& prefetchable) {
    const auto pair = [](const BusRange& range) -> uint32_t {
      if (range.bytes == 0) return 0x0000'fff0;
      const uint64_t last = range.address + range.bytes - 1;
      return static_cast<uint32_t>((range.address >> 16 & 0xfff0) | (last >> 16 & 0xfff0) << 16);
    };
    BM_TRY(config.write_config(kMemoryBase, 4, pair(memory)));
    // Closed while its halves differ.
    BM_TRY(config.write_config(kPrefetchLimitUpper, 4, 0));
    BM_TRY(config.write_config(kPrefetchBaseUpper, 4, ~0u));
    BM_TRY(config.write_config(kPrefetchBase, 4, pair(prefetchable)));
    if (prefetchable.bytes == 0) return {};
    const uint64_t last = prefetchable.address + prefetchable.bytes - 1;
    BM_TRY(config.write_config(kPrefetchLimitUpper, 4, static_cast<uint32_t>(last >> 32)));
    return config.write_config(kPrefetchBaseUpper, 4,
                               static_cast<uint32_t>(prefetchable.address >> 32));
  }

  /// Sizes the function's BARs, largest first below each window, and lets it decode.
  Status place(PciConfig& config, const PciAddress& address) {
    Function function{.identity = BM_TRY(read_identity(config, address)), .bars = {}};
    BM_TRY(set_bus_master(config, false));
    BM_TRY(set_memory_decoding(config, false));
    for (uint32_t bar = 0; bar < kPciBars; ++bar) {
      std::vector<uint64_t> sizes = BM_TRY(resizable_bar_sizes(config, bar));
      std::erase_if(sizes, [this](uint64_t s) { return s > bus_.options_.largest_bar; });
      if (!sizes.empty()) BM_TRY(set_resizable_bar(config, bar, sizes.back()));
    }
    function.bars = BM_TRY(size_bars(config));
    const bool has_bars =
        std::ranges::any_of(function.bars, [](const PciBar& b) { return b.size != 0; });
    if (function.identity.vendor == 0 && !has_bars) return {};  // zeros all over: nobody
    std::array<uint32_t, kPciBars> order{0, 1, 2, 3, 4, 5};
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](uint32_t i) { return function.bars[i].size; });
    for (const uint32_t i : order) {
      PciBar& bar = function.bars[i];
      if (bar.size == 0 || !bar.is_memory) continue;
      Space& space = bar.is_64_bit && bar.is_prefetchable ? prefetchable_ : memory_;
      const auto at = space.take(bar.size, std::max<uint64_t>(bar.size, 4096));
      if (!at)
        return fail(Code::kOutOfMemory,
                    "{}: no room for BAR{} of {:#x} bytes in the {} window of {:#x} bytes",
                    to_string(address), i, bar.size, &space == &memory_ ? "32-bit" : "prefetchable",
                    space.range.bytes);
      bar.address = *at;
      BM_TRY(config.write_config(kBar0 + i * 4, 4, static_cast<uint32_t>(*at)));
      if (bar.is_64_bit)
        BM_TRY(config.write_config(kBar0 + i * 4 + 4, 4, static_cast<uint32_t>(*at >> 32)));
    }
    BM_TRY(set_memory_decoding(config, true));
    found_.push_back(std::move(function));
    return {};
  }

  using Clock = std::chrono::steady_clock;
  // TIMEOUT: a card is a handful of functions, each ready a second after power at the latest.
  static constexpr auto kEnumerationTime = std::chrono::seconds(30);
  const Clock::time_point end_ = Clock::now() + kEnumerationTime;
  UsbBus& bus_;
  Space memory_, prefetchable_;
  uint32_t last_bus_ = 0;
  std::vector<Function> found_;
};

namespace {

/// Memory of the process is out of a USB bridge's reach, and interrupts end in it.
class UsbPciFunction final : public PciFunction {
 public:
  UsbPciFunction(std::shared_ptr<UsbBus> bus, const UsbBus::Function& function)
      : bus_(std::move(bus)),
        identity_(function.identity),
        bars_(function.bars),
        config_(bus_->bridge(), function.identity.address) {
    limits_.reaches_host = false;
    limits_.address_bits = 0;
  }
  ~UsbPciFunction() override { (void)set_bus_master(config_, false); }

  const PciIdentity& identity() const override { return identity_; }
  const std::array<PciBar, kPciBars>& bars() const override { return bars_; }
  Result<Mmio> map_bar(uint32_t index) override { return Mmio::remote(*BM_TRY(window(index))); }
  Result<HostView> map_bar_memory(uint32_t index, bool /*is_write_combined*/) override {
    return HostView::remote(*BM_TRY(window(index)));
  }
  Status resize_bar(uint32_t index, uint64_t bytes) override {
    if (index < kPciBars && bars_[index].size == bytes) return {};
    return fail(Code::kUnsupported,
                "BAR{} of {} behind a USB bridge got its size when the bus was enumerated", index,
                to_string(identity_.address));
  }

  const DmaLimits& dma_limits() const override { return limits_; }
  StagingMemory* staging() override { return bus_->bridge().staging(); }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& /*request*/) override {
    return no_memory();
  }
  Status dma_unmap(void* /*host*/) override { return no_memory(); }
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t /*bytes*/, bool /*is_contiguous*/,
                                                  std::optional<uint64_t> /*iova*/) override {
    return no_memory();
  }

  Result<uint32_t> enable_interrupts(uint32_t /*wanted*/) override { return no_interrupts(); }
  Result<int> interrupt_fd(uint32_t /*vector*/) override { return no_interrupts(); }
  Result<bool> wait_interrupt(uint32_t /*vector*/, int /*timeout_ms*/) override {
    return no_interrupts();
  }

  Status reset(PciReset kind) override {
    if (kind == PciReset::kFunction)
      return fail(Code::kUnsupported, "function level reset behind a USB bridge: reset the bus");
    BM_TRY(bus_->bridge().power_cycle());
    return bus_->restore();
  }
  Status status() const override { return bus_->bridge().status(); }

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override {
    return config_.read_config(offset, width);
  }
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override {
    return config_.write_config(offset, width, value);
  }

 private:
  Result<RemoteWindow*> window(uint32_t index) {
    if (index >= kPciBars || bars_[index].size == 0 || !bars_[index].is_memory)
      return fail(Code::kInvalidArgument, "{} has no memory BAR{}", to_string(identity_.address),
                  index);
    auto& window = windows_[index];
    if (!window) window = bus_->bridge().memory_window(bars_[index].address, bars_[index].size);
    return window.get();
  }
  static tl::unexpected<Error> no_memory() {
    return fail(Code::kUnsupported,
                "memory of this process is out of reach behind a USB bridge; keep what the device "
                "reads in its own memory");
  }
  static tl::unexpected<Error> no_interrupts() {
    return fail(Code::kUnsupported, "no interrupts behind a USB bridge: poll the device");
  }

  const std::shared_ptr<UsbBus> bus_;
  const PciIdentity identity_;
  const std::array<PciBar, kPciBars> bars_;
  BehindBridge config_;
  DmaLimits limits_;
  std::array<std::unique_ptr<RemoteWindow>, kPciBars> windows_;
};

}  // namespace

Result<std::shared_ptr<UsbBus>> UsbBus::enumerate(std::shared_ptr<UsbBridge> bridge,
                                                  const UsbBusOptions& options) {
  std::shared_ptr<UsbBus> bus(new UsbBus(std::move(bridge), options));
  bus->functions_ = BM_TRY(Enumeration(*bus).run());
  return bus;
}

Status UsbBus::restore() {
  const std::vector<Function> now = BM_TRY(Enumeration(*this).run());
  const auto is_same = [](const Function& a, const Function& b) {
    for (uint32_t i = 0; i < kPciBars; ++i)
      if (a.bars[i].address != b.bars[i].address || a.bars[i].size != b.bars[i].size) return false;
    return a.identity.address == b.identity.address && a.identity.vendor == b.identity.vendor &&
           a.identity.device == b.identity.device;
  };
  if (!std::ranges::equal(now, functions_, is_same))
    return fail(Code::kDeviceLost, "{}: other functions answer behind the bridge than before",
                to_string(bridge_->identity()));
  return {};
}

Result<std::unique_ptr<PciFunction>> UsbBus::open(std::shared_ptr<UsbBus> bus,
                                                  const PciAddress& address) {
  std::string there;
  for (const Function& function : bus->functions_) {
    if (function.identity.address == address)
      return std::make_unique<UsbPciFunction>(bus, function);
    there += fmt::format("{}{} {:04x}:{:04x}", there.empty() ? "" : ", ",
                         to_string(function.identity.address), function.identity.vendor,
                         function.identity.device);
  }
  return fail(Code::kNotFound, "no PCI function {} behind {}; there are {}", to_string(address),
              to_string(bus->bridge_->identity()), there);
}

}  // namespace bm
