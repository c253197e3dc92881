#include "drivers/transport/pci_vfio_user.h"

#include <linux/vfio.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/vfio_function.h"
#include "drivers/transport/vfio_info.h"
#include "drivers/transport/vfio_user_channel.h"
#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"

namespace bm {
namespace {

using Command = VfioUserCommand;

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

class VfioUserPci final : public VfioFunction {
 public:
  VfioUserPci(System& system, StreamSocket socket, const VfioUserOptions& options)
      : VfioFunction(system), channel_(system, std::move(socket), memory_, options.reply_limit) {
    limits_.takes_iova = true;
  }
  ~VfioUserPci() override { unmap_bars(); }

  Status open();

  const PciIdentity& identity() const override { return identity_; }
  Status resize_bar(uint32_t index, uint64_t bytes) override;
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override;
  Status dma_unmap(void* host) override;
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;
  Status reset(PciReset kind) override;
  Status status() const override;

 protected:
  uint32_t config_size() const override { return static_cast<uint32_t>(config_size_); }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Memory;
  std::string name() const override { return channel_.name(); }
  Result<VfioRegion> read_region_info(uint32_t index) override;
  int region_fd(uint32_t index) const override { return region_fds_[index].get(); }
  Status check_file(uint32_t index, uint64_t offset, uint64_t bytes) override;
  Result<uint32_t> vectors_of(uint32_t index) override;
  Status set_eventfds(uint32_t index, std::span<const int> fds) override;
  /// As many as one message takes descriptors.
  uint32_t most_vectors() const override {
    return static_cast<uint32_t>(std::min<uint64_t>(channel_.capabilities().max_fds, 16));
  }
  Status map(const DmaRequest& request, std::optional<int> fd);
  Status take_data(const Access& asked, std::span<const std::byte> reply, std::span<std::byte> to);
  Status read_words(uint32_t region, uint64_t offset, std::span<std::byte> to);

  Status read_region(uint32_t region, uint64_t offset, std::span<std::byte> to,
                     bool is_registers) override;
  Status write_region(uint32_t region, uint64_t offset, std::span<const std::byte> from,
                      bool is_registers) override;
  void flush_regions() override;
  Status region_status() const override { return status(); }

  SharedDmaMappings memory_;
  PciIdentity identity_;
  std::array<SystemFd, kPciBars> region_fds_;
  uint64_t config_size_ = 0;
  uint32_t device_flags_ = 0, irqs_ = 0;
  mutable VfioUserChannel channel_;  ///< its thread uses memory_, so it ends first
};

Status VfioUserPci::open() {
  BM_TRY(channel_.negotiate());
  const VfioUserCapabilities& capabilities = channel_.capabilities();
  const uint64_t pages = capabilities.page_sizes;
  limits_.page_bytes = std::max<uint64_t>(limits_.page_bytes, pages & -pages);
  limits_.mappings = static_cast<uint32_t>(std::min<uint64_t>(capabilities.max_dma_maps, ~0u));
  const DeviceInfo asked{.argsz = sizeof(DeviceInfo), .flags = 0, .regions = 0, .irqs = 0};
  const std::vector<std::byte> reply = BM_TRY(channel_.call(Command::kDeviceInfo, bytes_of(asked)));
  const auto info = BM_TRY(ByteReader(reply).read<DeviceInfo>());
  if ((info.flags & VFIO_DEVICE_FLAGS_PCI) == 0 || info.regions <= VFIO_PCI_CONFIG_REGION_INDEX)
    return fail(Code::kUnsupported, "{} serves no PCI device", name());
  device_flags_ = info.flags;
  irqs_ = info.irqs;
  const VfioRegion config = BM_TRY(read_region_info(VFIO_PCI_CONFIG_REGION_INDEX));
  config_size_ = std::min<uint64_t>(config.size, 4096);
  if (config_size_ < 256)
    return fail(Code::kCorrupt, "{}: configuration space of {:#x} bytes", name(), config_size_);
  identity_ = BM_TRY(read_identity(*this, {}));
  return describe();
}

Result<VfioRegion> VfioUserPci::read_region_info(uint32_t index) {
  vfio_region_info asked{};
  asked.argsz = kMaxInfo;
  asked.index = index;
  std::vector<SystemFd> fds;
  const std::vector<std::byte> reply =
      BM_TRY(channel_.call(Command::kRegionInfo, bytes_of(asked), {}, &fds));
  VfioRegion region = BM_TRY(parse_vfio_region(reply));
  region.is_mappable &= !fds.empty();
  if (!fds.empty() && index < kPciBars) region_fds_[index] = std::move(fds[0]);
  return region;
}

Status VfioUserPci::status() const {
  BM_TRY(channel_.status());
  if (is_asked_for())
    return channel_.lose(
        fail(Code::kDeviceLost, "{}: the server asks for the device back", name()));
  if (has_error())
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

/// Touching what a file does not have would end this process by a bus error.
Status VfioUserPci::check_file(uint32_t index, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  const int64_t file = system_.file_size(region_fd(index));
  const auto size = static_cast<uint64_t>(std::max<int64_t>(file, 0));
  if (bytes <= size && offset <= size - bytes && offset % kPage == 0) return {};
  return fail(Code::kCorrupt, "{}: {:#x} bytes at {:#x} of BAR {} are not in the file of {:#x}",
              name(), bytes, offset - regions_[index].offset, index, file);
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

Status VfioUserPci::reset(PciReset kind) {
  BM_TRY(status());
  if (kind == PciReset::kBus)
    return fail(Code::kUnsupported, "{}: the protocol resets the function alone", name());
  if ((device_flags_ & VFIO_DEVICE_FLAGS_RESET) == 0)
    return fail(Code::kUnsupported, "{} cannot be reset", name());
  BM_TRY(disable_interrupts());
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
  if (Status opened = function->open(); !opened) {
    if (opened.error().code == Code::kTimeout) opened.error().message += kOneClient;
    return tl::unexpected(std::move(opened.error()));
  }
  return function;
}

}  // namespace bm
