#include "drivers/transport/pci_vfio_user.h"

#include <linux/vfio.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/region_window.h"
#include "drivers/transport/vfio_info.h"
#include "drivers/transport/vfio_user_channel.h"
#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"

namespace bm {
namespace {

using Command = VfioUserCommand;

constexpr uint32_t kBar0 = 0x10;
/// Of an answer with capabilities.
constexpr uint32_t kMaxInfo = 4096;
/// Register reads that are under way at once: requests and replies fit into the smallest socket
/// buffers.
constexpr size_t kMaxPipelined = 64;
/// Posted writes that are sent together.
constexpr size_t kMaxPosted = 256;

// Payloads that differ from linux/vfio.h's structures.
struct DeviceInfo {
  uint32_t argsz, flags, regions, irqs;
};
struct DmaMap {
  uint32_t argsz, flags;
  uint64_t offset, address, size;
};
struct DmaUnmap {
  uint32_t argsz, flags;
  uint64_t address, size;
};
struct Access {
  uint64_t offset;
  uint32_t region, count;
};
constexpr uint32_t kDmaRead = 1, kDmaWrite = 2;

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

class VfioUserPci final : public PciFunction, private RegionIo {
 public:
  VfioUserPci(System& system, StreamSocket socket, const VfioUserOptions& options)
      : system_(system), channel_(system, std::move(socket), memory_, options.reply_limit) {}

  Status open();

  const PciIdentity& identity() const override { return identity_; }
  const std::array<PciBar, kPciBars>& bars() const override { return bars_; }
  Result<Mmio> map_bar(uint32_t index) override { return view_bar<Mmio>(index, true); }
  Result<HostView> map_bar_memory(uint32_t index, bool) override {
    return view_bar<HostView>(index, false);
  }
  Status resize_bar(uint32_t index, uint64_t bytes) override;
  const DmaLimits& dma_limits() const override { return limits_; }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override;
  Status dma_unmap(void* host) override;
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;
  Result<uint32_t> enable_interrupts(uint32_t wanted) override;
  Result<int> interrupt_fd(uint32_t vector) override;
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) override;
  Status reset(PciReset kind) override;
  Status status() const override;

 protected:
  uint32_t config_size() const override { return static_cast<uint32_t>(config_size_); }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Memory;
  struct Region {
    VfioRegion info;
    SystemFd fd;
    std::vector<std::unique_ptr<RegionPart>> parts;
  };

  const std::string& name() const { return channel_.name(); }
  template <class View>
  Result<View> view_bar(uint32_t index, bool is_registers);
  Result<Region> read_region_info(uint32_t index);
  Status map_parts(uint32_t index);
  Result<uint32_t> vectors_of(uint32_t index);
  Status set_eventfds(uint32_t index, std::span<const int> fds);
  Status watch(uint32_t index, SystemFd& fd);
  bool is_signalled(const SystemFd& fd) const;
  Status map(const DmaRequest& request, std::optional<int> fd);
  Status take_data(const Access& asked, std::span<const std::byte> reply, std::span<std::byte> to);
  Status read_words(uint32_t region, uint64_t offset, std::span<std::byte> to);

  Status read_region(uint32_t region, uint64_t offset, std::span<std::byte> to,
                     bool is_registers) override;
  Status write_region(uint32_t region, uint64_t offset, std::span<const std::byte> from,
                      bool is_registers) override;
  void flush_regions() override;
  Status region_status() const override { return status(); }

  System& system_;
  SharedDmaMappings memory_;
  DmaLimits limits_{.takes_iova = true};
  PciIdentity identity_;
  std::array<PciBar, kPciBars> bars_{};
  std::array<Region, kPciBars> regions_{};
  std::map<std::pair<uint32_t, bool>, std::unique_ptr<RegionWindow>> windows_;
  uint64_t config_size_ = 0;
  uint32_t device_flags_ = 0, irqs_ = 0;
  SystemFd error_event_, request_event_;
  /// Of every vector that was ever on: wait_interrupt() may be polling one on another thread.
  std::vector<SystemFd> events_;
  std::atomic<uint32_t> enabled_{0};
  uint32_t interrupt_index_ = 0;
  mutable VfioUserChannel channel_;  ///< its thread uses memory_, so it ends first
};

Status VfioUserPci::open() {
  BM_TRY(channel_.negotiate());
  const VfioUserCapabilities& capabilities = channel_.capabilities();
  const uint64_t pages = capabilities.page_sizes;
  limits_.page_bytes = std::max<uint64_t>(limits_.page_bytes, pages & -pages);
  limits_.mappings = static_cast<uint32_t>(std::min<uint64_t>(capabilities.max_dma_maps, ~0u));
  events_.reserve(capabilities.max_fds > 256 ? 256 : capabilities.max_fds);
  const DeviceInfo asked{.argsz = sizeof(DeviceInfo), .flags = 0, .regions = 0, .irqs = 0};
  const std::vector<std::byte> reply = BM_TRY(channel_.call(Command::kDeviceInfo, bytes_of(asked)));
  const auto info = BM_TRY(ByteReader(reply).read<DeviceInfo>());
  if ((info.flags & VFIO_DEVICE_FLAGS_PCI) == 0 || info.regions <= VFIO_PCI_CONFIG_REGION_INDEX)
    return fail(Code::kUnsupported, "{} serves no PCI device", name());
  device_flags_ = info.flags;
  irqs_ = info.irqs;
  const Region config = BM_TRY(read_region_info(VFIO_PCI_CONFIG_REGION_INDEX));
  config_size_ = std::min<uint64_t>(config.info.size, 4096);
  if (config_size_ < 256)
    return fail(Code::kCorrupt, "{}: configuration space of {:#x} bytes", name(), config_size_);
  identity_ = BM_TRY(read_identity(*this, {}));
  for (uint32_t i = 0; i < kPciBars; ++i) {
    regions_[i] = BM_TRY(read_region_info(i));
    const uint64_t size = regions_[i].info.size;
    if (size == 0) continue;
    const uint32_t low = BM_TRY(read_config(kBar0 + i * 4, 4));
    bars_[i] = {.size = size,
                .address = 0,
                .is_memory = (low & 1) == 0,
                .is_64_bit = (low & 7) == 4,
                .is_prefetchable = (low & 9) == 8};
  }
  BM_TRY(watch(VFIO_PCI_ERR_IRQ_INDEX, error_event_));
  return watch(VFIO_PCI_REQ_IRQ_INDEX, request_event_);
}

Result<VfioUserPci::Region> VfioUserPci::read_region_info(uint32_t index) {
  vfio_region_info asked{};
  asked.argsz = kMaxInfo;
  asked.index = index;
  Region region;
  std::vector<SystemFd> fds;
  const std::vector<std::byte> reply =
      BM_TRY(channel_.call(Command::kRegionInfo, bytes_of(asked), {}, &fds));
  region.info = BM_TRY(parse_vfio_region(reply));
  if (!fds.empty()) region.fd = std::move(fds[0]);
  region.info.is_mappable &= region.fd.is_open();
  return region;
}

bool VfioUserPci::is_signalled(const SystemFd& fd) const {
  if (!fd.is_open()) return false;
  pollfd wanted{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return system_.poll(&wanted, 1, 0) > 0;
}

Status VfioUserPci::status() const {
  BM_TRY(channel_.status());
  if (is_signalled(request_event_))
    return channel_.lose(
        fail(Code::kDeviceLost, "{}: the server asks for the device back", name()));
  if (is_signalled(error_event_))
    return channel_.lose(fail(Code::kDeviceLost, "{}: the device has failed", name()));
  return {};
}

Status VfioUserPci::take_data(const Access& asked, std::span<const std::byte> reply,
                              std::span<std::byte> to) {
  Access got{};
  if (reply.size() >= sizeof got) std::memcpy(&got, reply.data(), sizeof got);
  if (reply.size() != sizeof got + to.size() || got.count != to.size() ||
      got.offset != asked.offset || got.region != asked.region)
    return channel_.lose(fail(Code::kCorrupt,
                              "{}: {} bytes at {:#x} of region {} were asked for, {} "
                              "came back",
                              name(), to.size(), asked.offset, asked.region, reply.size()));
  std::memcpy(to.data(), reply.data() + sizeof got, to.size());
  return {};
}

Status VfioUserPci::read_words(uint32_t region, uint64_t offset, std::span<std::byte> to) {
  for (size_t at = 0; at < to.size();) {
    const size_t count = std::min<size_t>((to.size() - at) / 4, kMaxPipelined);
    Access asked{};
    const auto make = [&](size_t i) {
      asked = {.offset = offset + at + i * 4, .region = region, .count = 4};
      return bytes_of(asked);
    };
    const auto take = [&](size_t i, std::span<const std::byte> reply) {
      return take_data({.offset = offset + at + i * 4, .region = region, .count = 4}, reply,
                       to.subspan(at + i * 4, 4));
    };
    BM_TRY(channel_.lose(channel_.call_all(Command::kRegionRead, count, make, take)));
    at += count * 4;
  }
  return {};
}

Status VfioUserPci::read_region(uint32_t region, uint64_t offset, std::span<std::byte> to,
                                bool is_registers) {
  BM_TRY(status());
  if (is_registers && to.size() > 8 && offset % 4 == 0 && to.size() % 4 == 0)
    return read_words(region, offset, to);
  for (size_t at = 0; at < to.size();) {
    const size_t count = std::min<size_t>(to.size() - at, channel_.capabilities().max_transfer);
    const Access asked{
        .offset = offset + at, .region = region, .count = static_cast<uint32_t>(count)};
    const Result<std::vector<std::byte>> reply =
        channel_.call(Command::kRegionRead, bytes_of(asked));
    // Reads cannot say that they failed, so a refusal is the end too.
    if (!reply) return channel_.lose(tl::unexpected<Error>(reply.error()));
    BM_TRY(take_data(asked, *reply, to.subspan(at, count)));
    at += count;
  }
  return {};
}

Status VfioUserPci::write_region(uint32_t region, uint64_t offset, std::span<const std::byte> from,
                                 bool is_registers) {
  BM_TRY(status());
  const bool is_words = is_registers && from.size() > 8 && offset % 4 == 0 && from.size() % 4 == 0;
  const size_t step = is_words ? 4 : channel_.capabilities().max_transfer;
  std::vector<std::byte> messages, payload;
  size_t pending = 0;
  for (size_t at = 0; at < from.size();) {
    const auto part = from.subspan(at, std::min(from.size() - at, step));
    const Access access{
        .offset = offset + at, .region = region, .count = static_cast<uint32_t>(part.size())};
    const auto raw = bytes_of(access);
    payload.assign(raw.begin(), raw.end());
    payload.insert(payload.end(), part.begin(), part.end());
    channel_.append_posted(messages, Command::kRegionWrite, payload);
    at += part.size();
    if (++pending == kMaxPosted || !is_words || at == from.size()) {
      BM_TRY(channel_.post(messages));
      messages.clear();
      pending = 0;
    }
  }
  return {};
}

/// Messages are handled in order, so that an answer says that what came before is done.
void VfioUserPci::flush_regions() {
  const DeviceInfo asked{.argsz = sizeof(DeviceInfo), .flags = 0, .regions = 0, .irqs = 0};
  const auto reply = channel_.call(Command::kDeviceInfo, bytes_of(asked));
  if (!reply) (void)channel_.lose(tl::unexpected<Error>(reply.error()));
}

Result<uint32_t> VfioUserPci::do_read_config(uint32_t offset, uint32_t width) {
  BM_TRY(status());
  uint32_t value = 0;
  const Access asked{.offset = offset, .region = VFIO_PCI_CONFIG_REGION_INDEX, .count = width};
  const std::vector<std::byte> reply = BM_TRY(channel_.call(Command::kRegionRead, bytes_of(asked)));
  BM_TRY(take_data(asked, reply, std::as_writable_bytes(std::span(&value, 1)).first(width)));
  return value;
}

Status VfioUserPci::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  BM_TRY(status());
  const struct {
    Access access;
    uint32_t value;
  } payload{{.offset = offset, .region = VFIO_PCI_CONFIG_REGION_INDEX, .count = width}, value};
  BM_TRY(channel_.call(Command::kRegionWrite, bytes_of(payload).first(sizeof(Access) + width)));
  return {};
}

Status VfioUserPci::map_parts(uint32_t index) {
  Region& region = regions_[index];
  if (!region.info.is_mappable || !region.parts.empty()) return {};
  const std::vector<BusRange> areas =
      region.info.areas.empty() ? std::vector<BusRange>{{0, region.info.size}} : region.info.areas;
  const int64_t file = system_.file_size(region.fd.get());
  const auto page = static_cast<uint64_t>(4096);
  std::vector<std::unique_ptr<RegionPart>> parts;
  for (const BusRange& area : areas) {
    const uint64_t offset = region.info.offset + area.address;
    // Touching what a file does not have would end this process by a bus error.
    if (file < 0 || offset + area.bytes > static_cast<uint64_t>(file) || offset % page != 0)
      return fail(Code::kCorrupt, "{}: {:#x} bytes at {:#x} of BAR {} are not in the file of {:#x}",
                  name(), area.bytes, area.address, index, file);
    void* address = nullptr;
    int error = system_.mmap(nullptr, area.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                             region.fd.get(), static_cast<off_t>(offset), &address);
    if (error < 0)
      return fail(code_from_errno(-error), "{}: mapping {:#x} bytes of BAR {}: {}", name(),
                  area.bytes, index, errno_text(-error));
    parts.push_back(std::make_unique<RegionPart>(
        RegionPart{area.address, SystemMapping(system_, address, area.bytes)}));
    error = system_.madvise(address, area.bytes, MADV_DONTFORK);
    if (error < 0)
      return fail(Code::kIo, "{}: keeping BAR {} from forked processes: {}", name(), index,
                  errno_text(-error));
  }
  region.parts = std::move(parts);
  return {};
}

template <class View>
Result<View> VfioUserPci::view_bar(uint32_t index, bool is_registers) {
  BM_TRY(status());
  if (index >= kPciBars || bars_[index].size == 0 || !bars_[index].is_memory)
    return fail(Code::kInvalidArgument, "{} has no memory BAR {}", name(), index);
  BM_TRY(map_parts(index));
  const Region& region = regions_[index];
  if (region.parts.size() == 1 && region.parts[0]->mapping.bytes() == region.info.size)
    return View::mapped(region.parts[0]->mapping.address(), region.info.size);
  std::unique_ptr<RegionWindow>& window = windows_[{index, is_registers}];
  if (window == nullptr) {
    window = std::make_unique<RegionWindow>(static_cast<RegionIo&>(*this), index, region.info.size,
                                            is_registers);
    for (const std::unique_ptr<RegionPart>& part : region.parts) window->add(*part);
  }
  return View::remote(*window);
}

Status VfioUserPci::resize_bar(uint32_t index, uint64_t bytes) {
  BM_TRY(status());
  if (index < kPciBars && bytes != 0 && bars_[index].size == bytes) return {};
  return fail(Code::kUnsupported, "{}: the protocol resizes no BARs", name());
}

/// Tells the server; `fd`: where it finds the memory.
Status VfioUserPci::map(const DmaRequest& request, std::optional<int> fd) {
  BM_TRY(status());
  {
    const std::lock_guard lock(memory_.mutex);
    BM_TRY(memory_.mappings.check(limits_, request));
    // Before the server knows of it: it may ask at once.
    memory_.mappings.add(request);
  }
  const DmaMap message{.argsz = sizeof(DmaMap),
                       .flags = kDmaRead | (request.is_read_only ? 0 : kDmaWrite),
                       .offset = 0,
                       .address = *request.iova,
                       .size = request.bytes};
  const auto fds = fd ? std::span<const int>(&*fd, 1) : std::span<const int>();
  const auto reply = channel_.call(Command::kDmaMap, bytes_of(message), fds);
  if (reply) return {};
  const std::lock_guard lock(memory_.mutex);
  memory_.mappings.remove(request.host);
  return tl::unexpected<Error>(reply.error());
}

Result<std::vector<BusRange>> VfioUserPci::dma_map(const DmaRequest& request) {
  BM_TRY(channel_.serve_always());
  BM_TRY(map(request, std::nullopt));
  return std::vector<BusRange>{{*request.iova, request.bytes}};
}

Status VfioUserPci::dma_unmap(void* host) {
  DmaMapping mapping;
  {
    const std::lock_guard lock(memory_.mutex);
    mapping = BM_TRY(memory_.mappings.find(host));
    // A server that does not answer loses it all the same.
    memory_.mappings.remove(host);
  }
  const DmaUnmap message{
      .argsz = sizeof(DmaUnmap), .flags = 0, .address = mapping.iova, .size = mapping.bytes};
  BM_TRY(channel_.call(Command::kDmaUnmap, bytes_of(message)));
  return {};
}

/// A file in memory that both processes map.
class VfioUserPci::Memory final : public DmaMemory {
 public:
  Memory(VfioUserPci& pci, SystemMapping mapping) : pci_(pci), mapping_(std::move(mapping)) {}
  ~Memory() override {
    if (!ranges_.empty()) (void)pci_.dma_unmap(mapping_.address());
  }
  Status map(int fd, uint64_t iova) {
    view_ = BM_TRY(HostView::mapped(mapping_.address(), mapping_.bytes()));
    BM_TRY(pci_.map({.host = mapping_.address(), .bytes = mapping_.bytes(), .iova = iova}, fd));
    ranges_ = {{iova, mapping_.bytes()}};
    return {};
  }

 private:
  VfioUserPci& pci_;
  SystemMapping mapping_;
};

Result<std::unique_ptr<DmaMemory>> VfioUserPci::dma_allocate(uint64_t bytes, bool,
                                                             std::optional<uint64_t> iova) {
  BM_TRY(status());
  const std::optional<uint64_t> size = checked_align_up(bytes, limits_.page_bytes);
  if (bytes == 0 || !size || !iova)
    return fail(Code::kInvalidArgument, "{}: {:#x} bytes of DMA memory{}", name(), bytes,
                iova ? "" : " without an IOVA");
  const int opened = system_.memory_file("bellmetal-dma", *size);
  if (opened < 0)
    return fail(code_from_errno(-opened), "{:#x} bytes of DMA memory: {}", *size,
                errno_text(-opened));
  const SystemFd fd(system_, opened);
  void* address = nullptr;
  if (const int error =
          system_.mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0, &address);
      error < 0)
    return fail(code_from_errno(-error), "{:#x} bytes of DMA memory: {}", *size,
                errno_text(-error));
  auto memory = std::make_unique<Memory>(*this, SystemMapping(system_, address, *size));
  BM_TRY(memory->map(opened, *iova));
  return memory;
}

Result<uint32_t> VfioUserPci::vectors_of(uint32_t index) {
  if (index >= irqs_) return uint32_t{0};
  vfio_irq_info asked{};
  asked.argsz = sizeof asked;
  asked.index = index;
  const Result<std::vector<std::byte>> reply = channel_.call(Command::kIrqInfo, bytes_of(asked));
  // Refused: a kind of interrupt that the server does not have.
  if (!reply && channel_.status()) return uint32_t{0};
  BM_TRY(reply);
  const auto info = BM_TRY(ByteReader(*reply).read<vfio_irq_info>());
  return (info.flags & VFIO_IRQ_INFO_EVENTFD) != 0 ? info.count : 0;
}

/// None: off.
Status VfioUserPci::set_eventfds(uint32_t index, std::span<const int> fds) {
  vfio_irq_set set{};
  set.argsz = sizeof set;
  set.flags = VFIO_IRQ_SET_ACTION_TRIGGER |
              (fds.empty() ? VFIO_IRQ_SET_DATA_NONE : VFIO_IRQ_SET_DATA_EVENTFD);
  set.index = index;
  set.count = static_cast<uint32_t>(fds.size());
  BM_TRY(channel_.call(Command::kSetIrqs, bytes_of(set), fds));
  return {};
}

Status VfioUserPci::watch(uint32_t index, SystemFd& fd) {
  if (BM_TRY(vectors_of(index)) == 0) return {};
  const int event = system_.eventfd();
  if (event < 0) return fail(code_from_errno(-event), "eventfd: {}", errno_text(-event));
  fd = SystemFd(system_, event);
  const int fds[] = {event};
  return set_eventfds(index, fds);
}

Result<uint32_t> VfioUserPci::enable_interrupts(uint32_t wanted) {
  BM_TRY(status());
  if (wanted == 0 || enabled_ != 0)
    return fail(Code::kInvalidArgument, "{}: {} interrupts are asked for, {} are on", name(),
                wanted, enabled_.load());
  uint32_t index = VFIO_PCI_MSIX_IRQ_INDEX;
  uint32_t count = BM_TRY(vectors_of(index));
  if (count == 0) {
    index = VFIO_PCI_MSI_IRQ_INDEX;
    count = BM_TRY(vectors_of(index));
  }
  if (count == 0) return fail(Code::kUnsupported, "{} has no MSI", name());
  // As many as one message takes descriptors.
  const uint64_t room = std::min<uint64_t>(channel_.capabilities().max_fds, 16);
  count = static_cast<uint32_t>(std::min<uint64_t>({count, wanted, room}));
  if (count == 0) return fail(Code::kUnsupported, "{}: the server takes no descriptors", name());
  std::vector<int> fds;
  for (uint32_t i = 0; i < count; ++i) {
    if (i == events_.size()) {
      const int fd = system_.eventfd();
      if (fd < 0) return fail(code_from_errno(-fd), "eventfd: {}", errno_text(-fd));
      events_.emplace_back(system_, fd);
    }
    fds.push_back(events_[i].get());
  }
  BM_TRY(set_eventfds(index, fds));
  interrupt_index_ = index;
  enabled_ = count;
  return count;
}

Result<int> VfioUserPci::interrupt_fd(uint32_t vector) {
  if (vector >= enabled_)
    return fail(Code::kInvalidArgument, "{}: interrupt {} is not on", name(), vector);
  return events_[vector].get();
}

Result<bool> VfioUserPci::wait_interrupt(uint32_t vector, int timeout_ms) {
  const int fd = BM_TRY(interrupt_fd(vector));
  std::array<pollfd, 3> fds{{{.fd = fd, .events = POLLIN, .revents = 0},
                             {.fd = error_event_.get(), .events = POLLIN, .revents = 0},
                             {.fd = request_event_.get(), .events = POLLIN, .revents = 0}}};
  const int ready = system_.poll(fds.data(), fds.size(), timeout_ms);
  if (ready < 0 && ready != -EINTR)
    return fail(Code::kIo, "{}: waiting for interrupt {}: {}", name(), vector, errno_text(-ready));
  BM_TRY(status());
  if (ready <= 0 || fds[0].revents == 0) return false;
  uint64_t count = 0;
  const ssize_t got = system_.read(fd, &count, sizeof count);
  if (got < 0 && got != -EAGAIN)
    return fail(Code::kIo, "{}: interrupt {}: {}", name(), vector,
                errno_text(static_cast<int>(-got)));
  return got == static_cast<ssize_t>(sizeof count);
}

Status VfioUserPci::reset(PciReset kind) {
  BM_TRY(status());
  if (kind == PciReset::kBus)
    return fail(Code::kUnsupported, "{}: the protocol resets the function alone", name());
  if ((device_flags_ & VFIO_DEVICE_FLAGS_RESET) == 0)
    return fail(Code::kUnsupported, "{} cannot be reset", name());
  if (enabled_ != 0) {
    BM_TRY(set_eventfds(interrupt_index_, {}));
    enabled_ = 0;
  }
  BM_TRY(channel_.call(Command::kReset, {}));
  return {};
}

}  // namespace

Result<std::unique_ptr<PciFunction>> open_vfio_user_pci(System& system,
                                                        const VfioUserOptions& options) {
  if (!options.address.starts_with('/'))
    return fail(Code::kInvalidArgument, "'{}' is not the absolute path of a socket",
                options.address);
  StreamSocket socket = BM_TRY(StreamSocket::connect(system, options.address, options.reply_limit));
  auto function = std::make_unique<VfioUserPci>(system, std::move(socket), options);
  BM_TRY(function->open());
  return function;
}

}  // namespace bm
