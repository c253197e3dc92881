#include "drivers/transport/pci_remote.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/stream_socket.h"
#include "runtime/base/bits.h"

namespace bm {
namespace {

/// RemoteCmd of tinygrad/runtime/support/system.py.
enum class Command : uint8_t {
  kProbe,
  kMapBar,
  kMapMemoryFd,
  kReadConfig,
  kWriteConfig,
  kReset,
  kReadBar,
  kWriteBar,
  kMapMemory,
  kReadMemory,
  kWriteMemory,
  kResizeBar,
  kPing,
};

// A request is packed as '<BIIQQQ', a reply as '<BQQ'; the server adds what the command returns.
constexpr size_t kRequestBytes = 33, kReplyBytes = 17;
constexpr uint64_t kPage = 4096;
/// Of one message, either way: the server copies it once more.
constexpr uint64_t kMaxTransfer = 1_MiB;
/// What is collected before it is sent anyway.
constexpr size_t kMaxPosted = 64_KiB;
/// Register reads that are under way at once: their requests and replies fit into the smallest
/// socket buffers, so that neither side waits for the other to read.
constexpr size_t kMaxPipelined = 64;
constexpr uint64_t kMaxText = 64_KiB, kMaxFunctions = 4096;
constexpr uint64_t kMaxAllocation = 16_GiB;
/// A huge page of the server, which is all the contiguous memory it can have.
constexpr uint64_t kMaxContiguous = 2_MiB;
constexpr uint32_t kBar0 = 0x10;

struct Request {
  Command command;
  uint32_t device = 0;
  uint32_t place = 0;  ///< number of a BAR or of an allocation
  uint64_t arguments[3] = {};
};

void append(std::vector<std::byte>& to, const Request& request) {
  const size_t at = to.size();
  to.resize(at + kRequestBytes);
  std::byte* const bytes = to.data() + at;
  bytes[0] = static_cast<std::byte>(request.command);
  std::memcpy(bytes + 1, &request.device, 4);
  std::memcpy(bytes + 5, &request.place, 4);
  std::memcpy(bytes + 9, request.arguments, 24);
}

struct Reply {
  uint64_t values[2] = {};
};

/// What a server says, on one line of ours.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

std::chrono::milliseconds limit_of_opening(const RemotePciOptions& options) {
  return std::min(options.open_limit, options.reply_limit);
}

/// The connection. Its first failure is the last thing that happens on it. Thread: any; who needs
/// several calls in a row holds lock().
class Connection {
 public:
  Connection(StreamSocket socket, const RemotePciOptions& options)
      : socket_(std::move(socket)),
        is_unix_(socket_.is_unix()),
        limit_(limit_of_opening(options)),
        slow_limit_(options.reset_limit) {}

  std::unique_lock<std::recursive_mutex> lock() const { return std::unique_lock(mutex_); }
  Status status() const {
    const auto held = lock();
    return status_;
  }
  /// From here on kernels may run before an answer comes.
  void is_open(std::chrono::milliseconds limit) {
    const auto held = lock();
    limit_ = limit;
  }
  bool is_unix() const { return is_unix_; }
  const std::string& name() const { return socket_.name(); }

  /// A request with an answer. Errors: kIo (refused, with the server's words), others: the
  /// connection is lost.
  Result<Reply> call(const Request& request, std::span<const std::byte> payload = {},
                     std::vector<SystemFd>* fds = nullptr) {
    const auto held = lock();
    append(posted_, request);
    posted_.insert(posted_.end(), payload.begin(), payload.end());
    BM_TRY(flush());
    const bool is_slow =
        request.command == Command::kReset || request.command == Command::kResizeBar;
    return reply(is_slow ? slow_limit_ : limit_, fds);
  }

  /// A request without an answer; it waits for flush().
  void post(const Request& request, std::span<const std::byte> payload) {
    const auto held = lock();
    if (!status_) return;
    append(posted_, request);
    if (payload.size() >= kMaxPosted) {
      (void)send(payload);
      return;
    }
    posted_.insert(posted_.end(), payload.begin(), payload.end());
    if (posted_.size() >= kMaxPosted) (void)flush();
  }
  /// A request whose answer is taken later, with reply(), under the same lock().
  void ask(const Request& request) {
    if (status_) append(posted_, request);
  }
  Status flush() {
    const auto held = lock();
    return send({});
  }

  Result<Reply> reply() { return reply(limit_, nullptr); }
  Status take(std::span<std::byte> to) {
    return keep(status_ ? socket_.receive(to, limit_) : status_);
  }

  /// The first one stays.
  Status lose(Status why) {
    const auto held = lock();
    return keep(std::move(why));
  }

 private:
  Status send(std::span<const std::byte> payload) {
    if (!status_) return status_;
    if (posted_.empty() && payload.empty()) return {};
    const std::span<const std::byte> parts[] = {posted_, payload};
    const Status sent = socket_.send(parts, limit_);
    posted_.clear();
    return keep(sent);
  }

  Result<Reply> reply(std::chrono::milliseconds limit, std::vector<SystemFd>* fds) {
    if (!status_) return tl::unexpected<Error>(status_.error());
    std::array<std::byte, kReplyBytes> raw;
    BM_TRY(keep(socket_.receive(raw, limit, fds)));
    Reply reply;
    std::memcpy(reply.values, raw.data() + 1, sizeof reply.values);
    if (raw[0] == std::byte{0}) return reply;
    const uint64_t bytes = reply.values[0];
    if (bytes > kMaxText)
      return lost(
          "{}: an error text of {} bytes is no answer of the remote PCI protocol: something else "
          "listens there",
          name(), bytes);
    std::string text(bytes, ' ');
    BM_TRY(keep(socket_.receive(std::as_writable_bytes(std::span(text)), limit)));
    return fail(Code::kIo, "{}: the server says: {}", name(),
                text.empty() ? "no reason" : one_line(std::move(text)));
  }

  template <class... Args>
  tl::unexpected<Error> lost(fmt::format_string<Args...> format, Args&&... args) {
    return tl::unexpected<Error>(
        keep(fail(Code::kCorrupt, format, std::forward<Args>(args)...)).error());
  }

  Status keep(Status now) {
    if (!now && status_) {
      status_ = now;
      socket_.close();
      posted_.clear();
    }
    return now;
  }

  mutable std::recursive_mutex mutex_;
  StreamSocket socket_;
  const bool is_unix_;
  std::chrono::milliseconds limit_;
  const std::chrono::milliseconds slow_limit_;
  Status status_;
  std::vector<std::byte> posted_;
};

/// A BAR, or memory of the server.
class Window final : public RemoteWindow {
 public:
  enum class Kind : uint8_t {
    kRegisters,  ///< of a BAR: blocks are 32-bit accesses
    kBarMemory,
    kMemory,
  };
  Window(Connection& connection, Kind kind, uint32_t device, uint32_t place, uint64_t size)
      : connection_(connection), kind_(kind), device_(device), place_(place), size_(size) {}

  uint64_t size() const override { return size_; }

  uint64_t read(uint64_t offset, uint32_t width) override {
    uint64_t value = ~uint64_t{0};
    std::array<std::byte, 8> bytes;
    const auto to = std::span(bytes).first(width);
    if (fetch(offset, to)) {
      value = 0;
      std::memcpy(&value, to.data(), width);
    }
    return value;
  }

  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    const auto held = connection_.lock();
    connection_.post(write_request(offset, width),
                     std::as_bytes(std::span(&value, 1)).first(width));
    if (kind_ == Kind::kRegisters) (void)connection_.flush();
  }

  void read_block(uint64_t offset, std::span<std::byte> to) override {
    const bool is_words = offset % 4 == 0 && to.size() % 4 == 0;
    if (kind_ == Kind::kRegisters && is_words && to.size() > 4) {
      read_words(offset, to);
      return;
    }
    for (size_t at = 0; at < to.size();) {
      const auto part = to.subspan(at, std::min<size_t>(to.size() - at, kMaxTransfer));
      if (!fetch(offset + at, part)) std::fill(part.begin(), part.end(), std::byte{0xff});
      at += part.size();
    }
  }

  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    const auto held = connection_.lock();
    const bool is_words = offset % 4 == 0 && from.size() % 4 == 0;
    // The server copies what is not 4 bytes with memcpy(), which promises no width.
    const size_t step = kind_ == Kind::kRegisters && is_words ? 4 : kMaxTransfer;
    for (size_t at = 0; at < from.size();) {
      const auto part = from.subspan(at, std::min(from.size() - at, step));
      connection_.post(write_request(offset + at, part.size()), part);
      at += part.size();
    }
    if (kind_ == Kind::kRegisters) (void)connection_.flush();
  }

  /// Writes are not answered, so that a question behind them says when the server has done them.
  void flush() override { (void)connection_.call({.command = Command::kPing, .device = device_}); }

  Status status() const override { return connection_.status(); }

 private:
  Request read_request(uint64_t offset, uint64_t bytes) const {
    return {.command = kind_ == Kind::kMemory ? Command::kReadMemory : Command::kReadBar,
            .device = device_,
            .place = place_,
            .arguments = {offset, bytes}};
  }
  Request write_request(uint64_t offset, uint64_t bytes) const {
    return {.command = kind_ == Kind::kMemory ? Command::kWriteMemory : Command::kWriteBar,
            .device = device_,
            .place = place_,
            .arguments = {offset, bytes}};
  }

  /// The answer to a read that was asked for.
  bool take(const Result<Reply>& reply, std::span<std::byte> to) {
    if (!reply) {
      // A refused read is a failure of the device's, and reads cannot say so.
      (void)connection_.lose(tl::unexpected<Error>(reply.error()));
      return false;
    }
    if (reply->values[0] != to.size()) {
      (void)connection_.lose(fail(Code::kCorrupt, "{}: {} bytes were asked for, {} are announced",
                                  connection_.name(), to.size(), reply->values[0]));
      return false;
    }
    return connection_.take(to).has_value();
  }
  bool fetch(uint64_t offset, std::span<std::byte> to) {
    const auto held = connection_.lock();
    return take(connection_.call(read_request(offset, to.size())), to);
  }

  void read_words(uint64_t offset, std::span<std::byte> to) {
    for (size_t at = 0; at < to.size();) {
      const auto held = connection_.lock();
      const size_t count = std::min<size_t>((to.size() - at) / 4, kMaxPipelined);
      for (size_t i = 0; i < count; ++i) connection_.ask(read_request(offset + at + i * 4, 4));
      (void)connection_.flush();
      for (size_t i = 0; i < count; ++i, at += 4) {
        const auto word = to.subspan(at, 4);
        if (!take(connection_.reply(), word)) std::fill(word.begin(), word.end(), std::byte{0xff});
      }
    }
  }

  Connection& connection_;
  const Kind kind_;
  const uint32_t device_, place_;
  const uint64_t size_;
};

/// Memory of the server that a device can reach: behind the connection, or mapped here as well.
struct Allocation {
  std::vector<BusRange> ranges;
  bool is_contiguous = false;
  std::unique_ptr<Window> window;
  void* mapped = nullptr;
  uint64_t bytes = 0;
  HostView view;
};

class RemotePci final : public PciFunction {
 public:
  RemotePci(System& system, std::unique_ptr<Connection> connection, uint32_t id)
      : system_(system), connection_(std::move(connection)), id_(id) {
    limits_.reaches_host = false;  // open() looks
  }
  ~RemotePci() override {
    for (const std::unique_ptr<Allocation>& allocation : free_)
      if (allocation->mapped != nullptr) system_.munmap(allocation->mapped, allocation->bytes);
  }

  Status open(const RemotePciOptions& options, const std::string& bus);

  const PciIdentity& identity() const override { return identity_; }
  const std::array<PciBar, kPciBars>& bars() const override { return bars_; }
  Result<Mmio> map_bar(uint32_t index) override {
    return Mmio::remote(*BM_TRY(window(index, Window::Kind::kRegisters)));
  }
  Result<HostView> map_bar_memory(uint32_t index, bool) override {
    return HostView::remote(*BM_TRY(window(index, Window::Kind::kBarMemory)));
  }
  Status resize_bar(uint32_t index, uint64_t bytes) override;

  const DmaLimits& dma_limits() const override { return limits_; }
  bool is_served() const override { return true; }
  Result<std::vector<BusRange>> dma_map(const DmaRequest&) override {
    return fail(Code::kUnsupported,
                "{}: the device cannot reach memory of this process; dma_allocate() gives memory "
                "of the server",
                connection_->name());
  }
  Status dma_unmap(void* host) override {
    return fail(Code::kInvalidArgument, "nothing is mapped at {}", host);
  }
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;

  Result<uint32_t> enable_interrupts(uint32_t) override { return no_interrupts(); }
  Result<int> interrupt_fd(uint32_t) override { return no_interrupts(); }
  Result<bool> wait_interrupt(uint32_t, int) override { return no_interrupts(); }

  Status reset(PciReset kind) override;
  Status status() const override { return connection_->status(); }

  void give_back(std::unique_ptr<Allocation> allocation) { free_.push_back(std::move(allocation)); }

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Memory;
  Result<Window*> window(uint32_t index, Window::Kind kind);
  Status read_bars();
  Result<std::unique_ptr<Allocation>> allocate(uint64_t bytes, bool is_contiguous);
  Result<std::unique_ptr<Allocation>> allocate_mapped(uint64_t bytes, bool is_contiguous);
  Result<std::unique_ptr<Allocation>> allocate_remote(uint64_t bytes, bool is_contiguous);
  tl::unexpected<Error> no_interrupts() const {
    return fail(Code::kUnsupported, "{}: the protocol has no interrupts; poll the device",
                connection_->name());
  }
  template <class... Args>
  tl::unexpected<Error> lost(fmt::format_string<Args...> format, Args&&... args) {
    Status status = connection_->lose(fail(Code::kCorrupt, format, std::forward<Args>(args)...));
    return tl::unexpected<Error>(std::move(status.error()));
  }

  System& system_;
  const std::unique_ptr<Connection> connection_;
  const uint32_t id_;
  PciIdentity identity_;
  std::array<PciBar, kPciBars> bars_{};
  std::array<std::string, kPciBars> missing_;  ///< what the server said to a BAR
  std::map<std::pair<uint32_t, Window::Kind>, std::unique_ptr<Window>> windows_;
  std::vector<std::unique_ptr<Allocation>> free_;
  bool has_shared_memory_ = true;  ///< until the server refuses
  DmaLimits limits_;
};

/// Runs of pages as ranges. Errors: kCorrupt.
Result<std::vector<BusRange>> merge(std::span<const BusRange> pages, uint64_t bytes,
                                    const std::string& name) {
  std::vector<BusRange> ranges;
  uint64_t sum = 0;
  for (const BusRange& page : pages) {
    if (sum >= bytes) break;
    const uint64_t used = std::min(page.bytes, bytes - sum);
    if (page.address % kPage != 0 || page.bytes == 0 || page.bytes % kPage != 0 ||
        !checked_add(page.address, page.bytes))
      return fail(Code::kCorrupt, "{}: {:#x} bytes at {:#x} are no pages of memory", name,
                  page.bytes, page.address);
    if (!ranges.empty() && ranges.back().address + ranges.back().bytes == page.address)
      ranges.back().bytes += used;
    else
      ranges.push_back({page.address, used});
    sum += used;
  }
  if (sum != bytes)
    return fail(Code::kCorrupt, "{}: {:#x} bytes of memory were asked for, {:#x} are described",
                name, bytes, sum);
  return ranges;
}

class RemotePci::Memory final : public DmaMemory {
 public:
  Memory(RemotePci& pci, std::unique_ptr<Allocation> allocation)
      : pci_(pci), allocation_(std::move(allocation)) {
    view_ = allocation_->view;
    ranges_ = allocation_->ranges;
  }
  ~Memory() override { pci_.give_back(std::move(allocation_)); }

 private:
  RemotePci& pci_;
  std::unique_ptr<Allocation> allocation_;
};

Status RemotePci::open(const RemotePciOptions& options, const std::string& bus) {
  const Result<PciAddress> address = parse_pci_address(bus);
  const uint32_t vendor = BM_TRY(read_config(0, 2));
  if (vendor == 0 && options.probe) {
    // Models of devices may serve an empty configuration space. They have said what they are by
    // answering the probe.
    identity_.vendor = options.probe->vendor;
    identity_.class_code = uint32_t{options.probe->base_class} << 16;
    if (options.probe->devices.size() == 1)
      identity_.device = static_cast<uint16_t>(options.probe->devices[0].device);
  } else {
    identity_ = BM_TRY(read_identity(*this, {}));
  }
  if (address) identity_.address = *address;
  for (uint32_t bar = 0; options.is_resized && bar < kPciBars; ++bar) {
    const Result<std::vector<uint64_t>> sizes = resizable_bar_sizes(*this, bar);
    if (!sizes) break;  // A damaged list is the driver's to find, where it needs it.
    if (sizes->size() < 2) continue;
    // No room below the other machine's bridge leaves the BAR as it is.
    (void)connection_->call({.command = Command::kResizeBar, .device = id_, .place = bar});
  }
  BM_TRY(status());
  BM_TRY(read_bars());
  if (!connection_->is_unix()) return {};
  // The server's memory is no memory of this process, unless its descriptors come along.
  if (auto page = allocate(kPage, true); page && (*page)->mapped != nullptr) {
    limits_.reaches_host = true;
    free_.push_back(std::move(*page));
  }
  return status();
}

Status RemotePci::read_bars() {
  for (uint32_t i = 0; i < kPciBars; ++i) {
    PciBar& bar = bars_[i];
    if (i > 0 && bars_[i - 1].is_64_bit) continue;
    const Result<Reply> reply =
        connection_->call({.command = Command::kMapBar, .device = id_, .place = i});
    if (!reply) {
      BM_TRY(status());
      missing_[i] = reply.error().message;
      continue;
    }
    const auto [address, size] = reply->values;
    // An empty line of the kernel's resource file is "1 byte" to the server.
    if (size <= 1) continue;
    if (!is_power_of_two(size) || address % size != 0)
      return lost("{}: BAR {} of {:#x} bytes at {:#x} cannot be", connection_->name(), i, size,
                  address);
    const uint32_t flags = BM_TRY(read_config(kBar0 + i * 4, 4));
    bar = {.size = size,
           .address = address,
           .is_memory = (flags & 1) == 0,
           .is_64_bit = (flags & 7) == 4,
           .is_prefetchable = (flags & 9) == 8};
  }
  return {};
}

Result<Window*> RemotePci::window(uint32_t index, Window::Kind kind) {
  BM_TRY(status());
  if (index >= kPciBars || bars_[index].size == 0 || !bars_[index].is_memory)
    return fail(Code::kInvalidArgument, "the function has no memory BAR {}{}{}", index,
                index < kPciBars && !missing_[index].empty() ? ": " : "",
                index < kPciBars ? missing_[index] : "");
  std::unique_ptr<Window>& window = windows_[{index, kind}];
  if (window == nullptr)
    window = std::make_unique<Window>(*connection_, kind, id_, index, bars_[index].size);
  return window.get();
}

Status RemotePci::resize_bar(uint32_t index, uint64_t bytes) {
  BM_TRY(status());
  if (index < kPciBars && bars_[index].size == bytes && bytes != 0) return {};
  return fail(Code::kUnsupported,
              "{}: BAR {} has {:#x} bytes; the server gives it its largest size when it is opened "
              "and no other",
              connection_->name(), index, index < kPciBars ? bars_[index].size : 0);
}

Result<uint32_t> RemotePci::do_read_config(uint32_t offset, uint32_t width) {
  const Reply reply = BM_TRY(connection_->call(
      {.command = Command::kReadConfig, .device = id_, .arguments = {offset, width}}));
  if (width < 4 && reply.values[0] >> width * 8 != 0)
    return lost("{}: {:#x} for {} bytes of configuration space", connection_->name(),
                reply.values[0], width);
  if (reply.values[0] > ~0u)
    return lost("{}: {:#x} for 4 bytes of configuration space", connection_->name(),
                reply.values[0]);
  return static_cast<uint32_t>(reply.values[0]);
}

Status RemotePci::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  BM_TRY(connection_->call(
      {.command = Command::kWriteConfig, .device = id_, .arguments = {offset, width, value}}));
  return {};
}

Status RemotePci::reset(PciReset kind) {
  BM_TRY(status());
  if (kind != PciReset::kFunction)
    return fail(Code::kUnsupported, "{}: the server resets the function alone",
                connection_->name());
  BM_TRY(connection_->call({.command = Command::kReset, .device = id_}));
  return {};
}

Result<std::unique_ptr<Allocation>> RemotePci::allocate_mapped(uint64_t bytes, bool is_contiguous) {
  std::vector<SystemFd> fds;
  const Reply reply =
      BM_TRY(connection_->call({.command = Command::kMapMemoryFd,
                                .device = id_,
                                .arguments = {bytes, is_contiguous ? uint64_t{1} : 0}},
                               {}, &fds));
  const uint64_t size = reply.values[0];
  if (fds.size() != 1 || size < bytes || size > kMaxAllocation || size % kPage != 0)
    return lost("{}: {} descriptors with {:#x} bytes of memory for {:#x}", connection_->name(),
                fds.size(), size, bytes);
  // A file that is shorter than it is said to be would end this process by a bus error.
  if (const int64_t real = system_.file_size(fds[0].get());
      real < 0 || static_cast<uint64_t>(real) < size)
    return lost("{}: the memory's file has not the {:#x} bytes announced", connection_->name(),
                size);
  auto allocation = std::make_unique<Allocation>();
  allocation->is_contiguous = is_contiguous;
  if (const int error = system_.mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                                     fds[0].get(), 0, &allocation->mapped);
      error < 0)
    return fail(code_from_errno(-error), "{}: mapping {:#x} bytes of the server's memory: {}",
                connection_->name(), size, errno_text(-error));
  allocation->bytes = size;
  // The memory begins with its own addresses: pairs of address and bytes up to one of no bytes.
  std::vector<BusRange> pages;
  uint64_t sum = 0;
  for (uint64_t at = 0; at + 16 <= size && sum < bytes; at += 16) {
    BusRange page;
    std::memcpy(&page.address, static_cast<std::byte*>(allocation->mapped) + at, 8);
    std::memcpy(&page.bytes, static_cast<std::byte*>(allocation->mapped) + at + 8, 8);
    if (page.bytes == 0) break;
    pages.push_back(page);
    sum = checked_add(sum, page.bytes).value_or(bytes);
  }
  Result<std::vector<BusRange>> ranges = merge(pages, bytes, connection_->name());
  Result<HostView> view = HostView::mapped(allocation->mapped, bytes);
  if (!ranges || !view) {
    system_.munmap(allocation->mapped, size);
    return lost("{}", !ranges ? ranges.error().message : view.error().message);
  }
  allocation->ranges = std::move(*ranges);
  allocation->view = *view;
  return allocation;
}

Result<std::unique_ptr<Allocation>> RemotePci::allocate_remote(uint64_t bytes, bool is_contiguous) {
  const auto held = connection_->lock();
  const Reply reply =
      BM_TRY(connection_->call({.command = Command::kMapMemory,
                                .device = id_,
                                .arguments = {bytes, is_contiguous ? uint64_t{1} : 0}}));
  const auto [length, handle] = reply.values;
  if (length != bytes / kPage * 8 || handle > ~0u)
    return lost("{}: {:#x} bytes of addresses for {:#x} bytes of memory, handle {:#x}",
                connection_->name(), length, bytes, handle);
  std::vector<uint64_t> addresses(bytes / kPage);
  BM_TRY(connection_->take(std::as_writable_bytes(std::span(addresses))));
  std::vector<BusRange> pages;
  pages.reserve(addresses.size());
  for (const uint64_t address : addresses) pages.push_back({address, kPage});
  Result<std::vector<BusRange>> ranges = merge(pages, bytes, connection_->name());
  if (!ranges) return lost("{}", ranges.error().message);
  auto allocation = std::make_unique<Allocation>();
  allocation->is_contiguous = is_contiguous;
  allocation->bytes = bytes;
  allocation->ranges = std::move(*ranges);
  allocation->window = std::make_unique<Window>(*connection_, Window::Kind::kMemory, id_,
                                                static_cast<uint32_t>(handle), bytes);
  allocation->view = BM_TRY(HostView::remote(*allocation->window));
  return allocation;
}

Result<std::unique_ptr<Allocation>> RemotePci::allocate(uint64_t bytes, bool is_contiguous) {
  const auto kept = std::find_if(free_.begin(), free_.end(), [&](const auto& allocation) {
    return allocation->view.size() == bytes && (allocation->is_contiguous || !is_contiguous);
  });
  if (kept != free_.end()) {
    std::unique_ptr<Allocation> allocation = std::move(*kept);
    free_.erase(kept);
    return allocation;
  }
  if (connection_->is_unix() && has_shared_memory_) {
    Result<std::unique_ptr<Allocation>> mapped = allocate_mapped(bytes, is_contiguous);
    if (mapped || !status()) return mapped;
    // Most servers do not know the command.
    has_shared_memory_ = false;
  }
  return allocate_remote(bytes, is_contiguous);
}

Result<std::unique_ptr<DmaMemory>> RemotePci::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                           std::optional<uint64_t> iova) {
  BM_TRY(status());
  if (iova)
    return fail(Code::kInvalidArgument, "{}: bus addresses are the server's choice",
                connection_->name());
  if (bytes == 0 || bytes > kMaxAllocation)
    return fail(Code::kInvalidArgument, "{:#x} bytes of DMA memory", bytes);
  const uint64_t size = align_up(bytes, kPage);
  if (is_contiguous && size > kMaxContiguous)
    return fail(Code::kOutOfMemory, "{}: {:#x} contiguous bytes are more than the server's {:#x}",
                connection_->name(), size, kMaxContiguous);
  std::unique_ptr<Allocation> allocation = BM_TRY(allocate(size, is_contiguous));
  if (is_contiguous && allocation->ranges.size() != 1)
    return lost("{}: the server gave {} pieces of memory for one", connection_->name(),
                allocation->ranges.size());
  // Kept memory holds what was there, mapped memory its own addresses.
  allocation->view.fill(0, size, std::byte{0});
  BM_TRY(status());
  return std::make_unique<Memory>(*this, std::move(allocation));
}

Result<std::unique_ptr<Connection>> connect(System& system, const RemotePciOptions& options) {
  StreamSocket socket =
      BM_TRY(StreamSocket::connect(system, options.address, limit_of_opening(options)));
  return std::make_unique<Connection>(std::move(socket), options);
}

Result<std::vector<RemotePciName>> probe(Connection& connection, const RemotePciProbe& wanted) {
  std::vector<uint32_t> payload;
  for (const RemotePciProbe::Match& match : wanted.devices) {
    payload.push_back(match.mask);
    payload.push_back(match.device);
  }
  const auto bytes = std::as_bytes(std::span(payload));
  const Reply reply = BM_TRY(connection.call(
      {.command = Command::kProbe, .arguments = {wanted.base_class, bytes.size(), wanted.vendor}},
      bytes));
  const auto lost = [&connection](std::string why) {
    return tl::unexpected<Error>(
        connection.lose(fail(Code::kCorrupt, "{}: {}", connection.name(), why)).error());
  };
  const auto [length, count] = reply.values;
  if (length > kMaxText || count > kMaxFunctions)
    return lost(fmt::format("a list of {} functions in {} bytes", count, length));
  std::string text(length, ' ');
  BM_TRY(connection.take(std::as_writable_bytes(std::span(text))));
  // A line per function: its name on the server's bus, a colon, the server's number.
  std::vector<RemotePciName> names;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const size_t colon = line.rfind(':');
    uint32_t id = 0;
    const char* const stop = line.data() + line.size();
    if (colon == std::string_view::npos ||
        std::from_chars(line.data() + colon + 1, stop, id).ptr != stop || colon + 1 == line.size())
      return lost(fmt::format("'{}' names no function", one_line(std::string(line))));
    names.push_back({one_line(std::string(line.substr(0, colon))), id});
  }
  if (names.size() != count)
    return lost(fmt::format("{} functions are announced, {} listed", count, names.size()));
  return names;
}

}  // namespace

Result<std::vector<RemotePciName>> probe_remote_pci(System& system,
                                                    const RemotePciOptions& options) {
  const std::unique_ptr<Connection> connection = BM_TRY(connect(system, options));
  return probe(*connection, options.probe.value_or(RemotePciProbe{}));
}

namespace {

Result<std::unique_ptr<PciFunction>> open_named(System& system, const RemotePciOptions& options) {
  std::unique_ptr<Connection> connection = BM_TRY(connect(system, options));
  RemotePciName name{.bus = "", .id = options.index};
  if (options.probe) {
    const std::vector<RemotePciName> names = BM_TRY(probe(*connection, *options.probe));
    if (options.index >= names.size())
      return fail(Code::kNotFound, "{}: function {} is not among the {} of vendor {:04x} there",
                  options.address, options.index, names.size(), options.probe->vendor);
    name = names[options.index];
  }
  Connection& opened = *connection;
  auto function = std::make_unique<RemotePci>(system, std::move(connection), name.id);
  BM_TRY(function->open(options, name.bus));
  opened.is_open(options.reply_limit);
  return function;
}

}  // namespace

Result<std::unique_ptr<PciFunction>> open_remote_pci(System& system,
                                                     const RemotePciOptions& options) {
  auto function = open_named(system, options);
  if (!function && function.error().code == Code::kTimeout) function.error().message += kOneClient;
  return function;
}

}  // namespace bm
