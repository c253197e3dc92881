#include "tests/unit/transport/fake_pci.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace bm::test {
namespace {

// The specifications' numbers once more, so that the fake does not agree with a mistake of
// pci_config.cpp: PCI Local Bus 3.0 tables 6-1 and appendix H, PCIe 5.0 chapter 7.
constexpr uint32_t kCommandRegister = 4;
constexpr uint32_t kPowerCapability = 0x50, kMsiCapability = 0x60, kExpressCapability = 0x80;
constexpr uint32_t kMsiControl = kMsiCapability + 2;
constexpr uint32_t kAerCapability = 0x100, kRebarCapability = 0x200;
constexpr uint64_t kIommuPage = 4096;

uint32_t get(const std::array<uint8_t, 4096>& from, uint32_t offset, uint32_t width) {
  uint32_t value = 0;
  std::memcpy(&value, from.data() + offset, width);
  return value;
}

}  // namespace

/// A BAR as the driver sees it.
class FakePci::Window final : public RemoteWindow {
 public:
  Window(FakePci& pci, uint32_t bar) : pci_(pci), bar_(bar) {}
  uint64_t size() const override { return pci_.storage_[bar_].size(); }
  uint64_t read(uint64_t offset, uint32_t width) override {
    if (!reaches("read", offset, width)) return ~uint64_t{0};
    if (width == 4 && pci_.on_read) return pci_.on_read(bar_, offset);
    uint64_t value = 0;
    std::memcpy(&value, at(offset), width);
    return value;
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    if (!reaches("write", offset, width)) return;
    if (width == 4 && pci_.on_write)
      pci_.on_write(bar_, offset, static_cast<uint32_t>(value));
    else
      std::memcpy(at(offset), &value, width);
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    if (reaches("read", offset, to.size()))
      std::memcpy(to.data(), at(offset), to.size());
    else
      std::fill(to.begin(), to.end(), std::byte{0xff});
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    if (reaches("write", offset, from.size())) std::memcpy(at(offset), from.data(), from.size());
  }
  void flush() override {}
  Status status() const override { return pci_.status(); }

 private:
  std::byte* at(uint64_t offset) { return pci_.storage_[bar_].data() + offset; }
  bool reaches(const char* what, uint64_t offset, uint64_t bytes) {
    if (pci_.is_unplugged_) return false;
    if (pci_.decodes() && offset + bytes <= size()) return true;
    pci_.fault(fmt::format("{} of BAR {} at {:#x}: not decoded", what, bar_, offset));
    return false;
  }
  FakePci& pci_;
  const uint32_t bar_;
};

class FakePci::Memory final : public DmaMemory {
 public:
  Memory(FakePci& pci, uint64_t bytes)
      : pci_(pci), host_(std::aligned_alloc(kIommuPage, bytes)), bytes_(bytes) {
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
  FakePci& pci_;
  void* host_;
  uint64_t bytes_;
};

FakePci::FakePci(const FakePciOptions& options) : options_(options) {
  identity_ = {.address = {0, 3, 0, 0},
               .vendor = options.vendor,
               .device = options.device,
               .class_code = options.class_code};
  const auto bar = [this](uint32_t index, uint64_t bytes, bool is_64_bit, bool is_prefetchable) {
    bars_[index] = {.size = bytes, .is_64_bit = is_64_bit, .is_prefetchable = is_prefetchable};
    storage_[index].resize(bytes);
  };
  bar(0, options.bar0, true, true);
  bar(2, options.bar2, true, false);
  bar(5, options.bar5, false, false);
  limits_.takes_iova = options.has_iommu;
  limits_.mappings = options.dma_mappings;
  limits_.address_bits = options.has_iommu ? 39 : 64;
  // The window that MSI writes go to on x86.
  if (options.has_iommu) limits_.reserved = {{0xfee00000, 0x100000}};
  build_config();
  power_on();
}

FakePci::~FakePci() {
  for (const int fd : interrupts_) ::close(fd);
}

void FakePci::put(uint32_t offset, uint32_t width, uint32_t value, uint32_t writable) {
  std::memcpy(initial_.data() + offset, &value, width);
  std::memcpy(writable_.data() + offset, &writable, width);
}

void FakePci::build_config() {
  put(0x00, 2, options_.vendor);
  put(0x02, 2, options_.device);
  put(kCommandRegister, 2, 0, 0x0547);
  put(0x06, 2, 0x0010);  // has a capability list
  put(0x08, 4, options_.class_code << 8 | 0xc8);
  for (uint32_t i = 0; i < kPciBars; ++i) {
    if (bars_[i].size == 0) continue;
    const uint64_t mask = bar_mask(i);
    put(0x10 + i * 4, 4, (bars_[i].is_prefetchable ? 8 : 0) | (bars_[i].is_64_bit ? 4 : 0),
        static_cast<uint32_t>(mask));
    if (bars_[i].is_64_bit) put(0x14 + i * 4, 4, 0, static_cast<uint32_t>(mask >> 32));
  }
  put(0x2c, 2, 0x1af4);
  put(0x2e, 2, 0x1100);
  put(0x34, 1, kPowerCapability);
  const bool has_msi = options_.msi_vectors != 0;
  put(kPowerCapability, 4, 0x0003'0001 | (has_msi ? kMsiCapability : kExpressCapability) << 8);
  put(kPowerCapability + 4, 2, 0, 0x0003);
  if (has_msi) put(kMsiCapability, 4, 0x0080'0005 | kExpressCapability << 8, 0x0071'0000);
  put(kExpressCapability, 4, 0x0002'0010);
  put(kExpressCapability + 4, 4, options_.has_function_reset ? 1u << 28 : 0);
  put(kExpressCapability + 8, 2, 0, 0x8000);
  put(kAerCapability, 4, 0x0001'0001 | kRebarCapability << 20);
  put(kRebarCapability, 4, 0x0001'0015);
  // 1, 2 and 4 MiB; the size it has now is reported as 1 MiB.
  put(kRebarCapability + 4, 4, 7u << 4);
  put(kRebarCapability + 8, 4, 1u << 5, 0x3f00);
}

uint64_t FakePci::bar_mask(uint32_t index) const { return ~(bars_[index].size - 1); }

void FakePci::power_on() {
  config = initial_;
  for (std::vector<std::byte>& bytes : storage_)
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
}

bool FakePci::decodes() const {
  return (get(config, kCommandRegister, 2) & 2) != 0 &&
         (get(config, kPowerCapability + 4, 2) & 3) == 0;
}

bool FakePci::is_master() const {
  return (get(config, kCommandRegister, 2) & 4) != 0 &&
         (get(config, kPowerCapability + 4, 2) & 3) == 0;
}

Status FakePci::status() const {
  if (is_unplugged_) return fail(Code::kDeviceLost, "the card was pulled out");
  return {};
}

Result<uint32_t> FakePci::do_read_config(uint32_t offset, uint32_t width) {
  if (is_unplugged_) return width == 4 ? ~0u : (1u << width * 8) - 1;
  return get(config, offset, width);
}

Status FakePci::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  if (is_unplugged_) return {};
  const bool was_sleeping = (get(config, kPowerCapability + 4, 2) & 3) == 3;
  for (uint32_t i = 0; i < width; ++i) {
    const uint8_t mask = writable_[offset + i];
    const auto byte = static_cast<uint8_t>(value >> i * 8);
    config[offset + i] = static_cast<uint8_t>((config[offset + i] & ~mask) | (byte & mask));
  }
  // Waking from D3hot is a reset unless a function says otherwise (No_Soft_Reset, which this one
  // does not).
  const bool is_sleeping = (get(config, kPowerCapability + 4, 2) & 3) == 3;
  if (was_sleeping && !is_sleeping) power_on();
  if (offset <= kRebarCapability + 9 && offset + width > kRebarCapability + 9) {
    if (decodes()) fault("BAR 0 changes its size while it decodes");
    const uint32_t size = config[kRebarCapability + 9] & 0x3f;
    if (size > 2) {
      fault(fmt::format("BAR 0 cannot have size {}", size));
    } else if (bars_[0].size != 1ull << (20 + size)) {
      bars_[0].size = 1ull << (20 + size);
      storage_[0].assign(bars_[0].size, std::byte{0});
      const auto mask = static_cast<uint32_t>(bar_mask(0));
      std::memcpy(writable_.data() + 0x10, &mask, 4);
    }
  }
  if (options_.has_function_reset && (get(config, kExpressCapability + 8, 2) & 0x8000) != 0)
    return reset(PciReset::kFunction);
  return {};
}

Result<Mmio> FakePci::map_bar(uint32_t index) {
  if (index >= kPciBars || bars_[index].size == 0)
    return fail(Code::kInvalidArgument, "the function has no BAR {}", index);
  std::unique_ptr<Window>& window = windows_[index];
  if (window == nullptr) window = std::make_unique<Window>(*this, index);
  return Mmio::remote(*window);
}

Result<HostView> FakePci::map_bar_memory(uint32_t index, bool) {
  BM_TRY(map_bar(index));
  return HostView::remote(*windows_[index]);
}

Status FakePci::resize_bar(uint32_t index, uint64_t bytes) {
  if (index != 0) return fail(Code::kUnsupported, "BAR {} has one size", index);
  if (windows_.contains(0)) return fail(Code::kInvalidArgument, "BAR 0 is mapped");
  uint32_t size = 0;
  while (size < 3 && bytes != 1ull << (20 + size)) ++size;
  if (size == 3) return fail(Code::kInvalidArgument, "BAR 0 cannot have {:#x} bytes", bytes);
  bars_[0].size = bytes;
  storage_[0].assign(bytes, std::byte{0});
  const uint64_t mask = bar_mask(0);
  put(0x10, 4, 0xc, static_cast<uint32_t>(mask));
  config[kRebarCapability + 9] = static_cast<uint8_t>(size);
  return {};
}

Result<std::vector<BusRange>> FakePci::dma_map(const DmaRequest& request) {
  const auto host = reinterpret_cast<uintptr_t>(request.host);
  if (host == 0 || request.bytes == 0 || host % kIommuPage != 0 || request.bytes % kIommuPage != 0)
    return fail(Code::kInvalidArgument, "{:#x} bytes at {:#x} are no whole pages", request.bytes,
                host);
  if (request.iova.has_value() != options_.has_iommu || mapped_.contains(request.host))
    return fail(Code::kInvalidArgument, "an IOVA must be given exactly behind an IOMMU, once");
  if (limits_.mappings != 0 && mapped_.size() >= limits_.mappings)
    return fail(Code::kOutOfMemory, "{} DMA mappings are the limit", limits_.mappings);
  auto* const bytes = static_cast<std::byte*>(request.host);
  std::vector<BusRange> ranges;
  if (request.iova) {
    const uint64_t end = *request.iova + request.bytes;
    bool is_free = *request.iova % kIommuPage == 0 && end > *request.iova &&
                   end <= 1ull << limits_.address_bits;
    for (const BusRange& range : limits_.reserved)
      is_free &= end <= range.address || *request.iova >= range.address + range.bytes;
    const auto next = mappings_.lower_bound(*request.iova);
    is_free &= next == mappings_.end() || next->first >= end;
    if (is_free && next != mappings_.begin()) {
      const auto before = std::prev(next);
      is_free &= before->first + before->second.bytes <= *request.iova;
    }
    if (!is_free)
      return fail(Code::kInvalidArgument, "{:#x} bytes cannot have the IOVA {:#x}", request.bytes,
                  *request.iova);
    mappings_[*request.iova] = {bytes, request.bytes, request.is_read_only};
    ranges = {{*request.iova, request.bytes}};
  } else {
    // Physical pages lie apart, as they do.
    for (uint64_t at = 0; at < request.bytes; at += kIommuPage) {
      mappings_[next_physical_] = {bytes + at, kIommuPage, false};
      ranges.push_back({next_physical_, kIommuPage});
      next_physical_ += 3 * kIommuPage;
    }
  }
  return mapped_[request.host] = ranges;
}

Status FakePci::dma_unmap(void* host) {
  const auto found = mapped_.find(host);
  if (found == mapped_.end()) return fail(Code::kInvalidArgument, "no mapping starts there");
  for (const BusRange& range : found->second) mappings_.erase(range.address);
  mapped_.erase(found);
  return {};
}

Result<std::unique_ptr<DmaMemory>> FakePci::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                         std::optional<uint64_t> iova) {
  const uint64_t whole = (bytes + kIommuPage - 1) / kIommuPage * kIommuPage;
  if (whole == 0) return fail(Code::kInvalidArgument, "no bytes");
  if (is_contiguous && !options_.has_iommu && whole > kIommuPage)
    return fail(Code::kOutOfMemory, "no {:#x} contiguous bytes", whole);
  auto memory = std::make_unique<Memory>(*this, whole);
  BM_TRY(memory->map(iova));
  return memory;
}

std::byte* FakePci::resolve(uint64_t address, uint64_t bytes, bool is_write) {
  const char* const what = is_write ? "write" : "read";
  if (is_unplugged_) return nullptr;
  if (!is_master()) {
    fault(fmt::format("DMA {} of {:#x}: bus mastering is off", what, address));
    return nullptr;
  }
  auto found = mappings_.upper_bound(address);
  if (found != mappings_.begin()) {
    --found;
    const Mapping& mapping = found->second;
    const uint64_t offset = address - found->first;
    if (offset < mapping.bytes && bytes <= mapping.bytes - offset &&
        !(is_write && mapping.is_read_only))
      return mapping.host + offset;
  }
  fault(fmt::format("DMA {} of {:#x}: blocked", what, address));
  return nullptr;
}

bool FakePci::device_read(uint64_t address, std::span<std::byte> to) {
  const std::byte* const from = resolve(address, to.size(), false);
  if (from != nullptr) std::memcpy(to.data(), from, to.size());
  return from != nullptr;
}

bool FakePci::device_write(uint64_t address, std::span<const std::byte> from) {
  std::byte* const to = resolve(address, from.size(), true);
  if (to != nullptr) std::memcpy(to, from.data(), from.size());
  return to != nullptr;
}

Result<uint32_t> FakePci::enable_interrupts(uint32_t wanted) {
  if (options_.msi_vectors == 0) return fail(Code::kUnsupported, "the function has no MSI");
  while (interrupts_.size() < std::min(wanted, options_.msi_vectors))
    interrupts_.push_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  config[kMsiControl] |= 1;
  return static_cast<uint32_t>(interrupts_.size());
}

Result<int> FakePci::interrupt_fd(uint32_t vector) {
  if (vector >= interrupts_.size())
    return fail(Code::kInvalidArgument, "interrupt {} of {}", vector, interrupts_.size());
  return interrupts_[vector];
}

Result<bool> FakePci::wait_interrupt(uint32_t vector, int timeout_ms) {
  const int fd = BM_TRY(interrupt_fd(vector));
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, timeout_ms) <= 0) return false;
  uint64_t count = 0;
  return ::read(fd, &count, sizeof(count)) == sizeof(count);
}

bool FakePci::device_interrupt(uint32_t vector) {
  if (is_unplugged_ || !is_master() || (config[kMsiControl] & 1) == 0 ||
      vector >= interrupts_.size())
    return false;
  const uint64_t one = 1;
  return ::write(interrupts_[vector], &one, sizeof(one)) == sizeof(one);
}

Status FakePci::reset(PciReset kind) {
  BM_TRY(status());
  if (kind == PciReset::kFunction && !options_.has_function_reset)
    return fail(Code::kUnsupported, "the function has no function level reset");
  power_on();
  return {};
}

}  // namespace bm::test
