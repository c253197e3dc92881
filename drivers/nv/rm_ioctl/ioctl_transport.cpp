#include "drivers/nv/rm_ioctl/ioctl_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/log.h"

namespace bm::nv {
namespace {

constexpr const char* kControlNode = "/dev/nvidiactl";
constexpr const char* kVersionFile = "/proc/driver/nvidia/version";
constexpr uint32_t kMostCards = 32;  // NV_MAX_DEVICES of the driver

// NVOS02_FLAGS of nvos.h: scattered pages, cached by the CPU, not mapped by the call itself.
constexpr uint32_t kHostMemoryFlags = 1u << 4 | 1u << 12 | 1u << 30;
// NVOS33_FLAGS_CACHING_TYPE_WRITECOMBINED.
constexpr uint32_t kWriteCombined = 2u << 23;

std::string_view text_of(std::span<const std::byte> bytes) {
  const char* const text = reinterpret_cast<const char*>(bytes.data());
  return {text, ::strnlen(text, bytes.size())};
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  …": the number.
std::string version_in(std::string_view line) {
  for (size_t at = 0; at < line.size(); ++at) {
    if (line[at] < '0' || line[at] > '9' || (at > 0 && line[at - 1] != ' ')) continue;
    const size_t end = std::min(line.find_first_not_of("0123456789.", at), line.size());
    const std::string_view word = line.substr(at, end - at);
    if (abi::parse_version(word)) return std::string(word);
    at = end;
  }
  return {};
}

std::string loaded_module(System& system) {
  std::string text;
  return system.read_file(kVersionFile, &text) == 0 ? version_in(text) : std::string();
}

Error node_error(System& system, Stage stage, const std::string& path, int error_number) {
  Error error = errno_error(stage, fmt::format("open {}", path), error_number);
  const std::string module = loaded_module(system);
  switch (error_number) {
    case ENOENT:
      error.message +=
          module.empty()
              ? "; the nvidia kernel driver is not loaded: install it and run modprobe nvidia"
              : fmt::format(
                    "; driver {} is loaded but the node is missing: run nvidia-modprobe -u -c 0, "
                    "or in a container pass this node too (--gpus, or --device {})",
                    module, path);
      break;
    case EACCES:
    case EPERM:
      error.message = fmt::format(
          "stage {} ({}): open {}: {}; this user may not: the nodes are usually mode 0666, here "
          "join their group (ls -l {}) or load the driver with NVreg_DeviceFileMode=0666; in a "
          "container the device must also be allowed by its cgroup",
          static_cast<int>(stage), stage_name(stage), path, errno_text(error_number), path);
      break;
    case EIO:
    case ENODEV:
    case ENXIO:
      error.message += "; the driver could not start the GPU; see dmesg for NVRM lines";
      break;
    case EMFILE:
    case ENFILE: error.message += "; raise the limit of open files (ulimit -n)"; break;
    default: break;
  }
  return error;
}

Result<std::string> ask_version(System& system, int control, const abi::Abi& abi) {
  abi::Params<abi::VersionCheck> query(abi);
  query.set(abi::VersionCheck::cmd, '2');  // tell, do not compare
  const unsigned long request =
      _IOC(_IOC_READ | _IOC_WRITE, 'F', abi::kEscCheckVersionStr, query.size());
  const int result = system.ioctl(control, request, query.data());
  std::string said(text_of(query.bytes(abi::VersionCheck::versionString)));
  if (result >= 0 && !said.empty()) return said;
  said = loaded_module(system);
  if (!said.empty()) return said;
  return tl::unexpected(
      errno_error(Stage::kVersion, "CHECK_VERSION_STR", result < 0 ? -result : EIO));
}

}  // namespace

Result<DeviceFile> open_node(System& system, Stage stage, const std::string& path) {
  const int fd = system.open(path, O_RDWR);
  if (fd < 0) return tl::unexpected(node_error(system, stage, path, -fd));
  return DeviceFile(system, fd);
}

std::string Card::path() const { return fmt::format("/dev/nvidia{}", minor); }

std::string Card::text() const {
  return fmt::format("GPU 10de:{:04x} at {:04x}:{:02x}:{:02x}.{}", device_id, domain, bus, slot,
                     function);
}

Result<std::unique_ptr<IoctlTransport>> IoctlTransport::open(System& system,
                                                             const std::string& version_override) {
  DeviceFile control = BM_TRY(open_node(system, Stage::kOpen, kControlNode));
  // The query's layout is older than every release known.
  const abi::Abi any = BM_TRY(abi::Abi::create(abi::kOldestKnown));
  std::string said = BM_TRY(ask_version(system, control.get(), any));
  const std::string& used = version_override.empty() ? said : version_override;
  Result<abi::Version> version = abi::parse_version(used);
  if (!version) return tl::unexpected(std::move(version.error()).within("stage 2 (version)"));
  Result<abi::Abi> abi = abi::Abi::create(*version);
  if (!abi) return tl::unexpected(std::move(abi.error()).within("stage 2 (version)"));
  if (abi->is_newer_than_known())
    log("nv", LogLevel::kWarning,
        "driver {} is newer than any known here ({}); its interface is taken to be the same. "
        "BM_NV_VERSION chooses another",
        used, abi::newest_known().text());
  return std::unique_ptr<IoctlTransport>(
      new IoctlTransport(system, std::move(control), *abi, std::move(said)));
}

Status IoctlTransport::escape(Stage stage, int fd, uint32_t number, std::string_view what,
                              abi::AnyParams& params) {
  const unsigned long request = _IOC(_IOC_READ | _IOC_WRITE, 'F', number, params.size());
  const int result = system_.ioctl(fd, request, params.data());
  if (result < 0) return tl::unexpected(errno_error(stage, what, -result));
  return {};
}

Result<std::vector<Card>> IoctlTransport::cards() {
  // An array of fixed size: a short one would be filled with the first cards only.
  abi::Params<abi::CardInfo> one(abi_);
  std::vector<std::byte> all(one.size() * kMostCards + abi::kSlack);
  const unsigned long request =
      _IOC(_IOC_READ | _IOC_WRITE, 'F', abi::kEscCardInfo, one.size() * kMostCards);
  const int result = system_.ioctl(control_fd(), request, all.data());
  if (result < 0) return tl::unexpected(errno_error(Stage::kCards, "CARD_INFO", -result));
  std::vector<Card> cards;
  using Info = abi::CardInfo;
  for (uint32_t i = 0; i < kMostCards; ++i) {
    std::memcpy(one.data(), all.data() + i * one.size(), one.size());
    if (one.get(Info::valid) == 0) continue;
    const auto number = [&](Info::Field field) { return static_cast<uint32_t>(one.get(field)); };
    cards.push_back({.gpu_id = number(Info::gpu_id),
                     .minor = number(Info::minor_number),
                     .domain = number(Info::pci_info_domain),
                     .bus = number(Info::pci_info_bus),
                     .slot = number(Info::pci_info_slot),
                     .function = number(Info::pci_info_function),
                     .device_id = number(Info::pci_info_device_id),
                     .bar1_bytes = one.get(Info::fb_size)});
  }
  const std::lock_guard lock(mutex_);
  listed_ = cards;
  return cards;
}

Result<DeviceFile> IoctlTransport::open_device(const Card& card) {
  DeviceFile file = BM_TRY(open_node(system_, Stage::kDeviceFile, card.path()));
  abi::Params<abi::RegisterFd> bind(abi_);
  bind.set(abi::RegisterFd::ctl_fd, static_cast<uint64_t>(control_fd()));
  BM_TRY(escape(Stage::kDeviceFile, file.get(), abi::kEscRegisterFd,
                fmt::format("REGISTER_FD on {}", card.path()), bind));
  return file;
}

Result<RmAnswer> IoctlTransport::alloc(Stage stage, std::string_view what,
                                       const RmAllocCall& asked) {
  abi::Params<abi::RmAlloc> call(abi_);
  call.set(abi::RmAlloc::hRoot, asked.client);
  call.set(abi::RmAlloc::hObjectParent, asked.parent);
  call.set(abi::RmAlloc::hClass, asked.object_class);
  // The size stays 0: the kernel then copies as much as the class has, which is what it does
  // anyway.
  if (asked.params != nullptr) call.set(abi::RmAlloc::pAllocParms, asked.params->address());
  BM_TRY(escape(stage, control_fd(), abi::kEscRmAlloc, what, call));
  return RmAnswer{static_cast<uint32_t>(call.get(abi::RmAlloc::status)),
                  static_cast<uint32_t>(call.get(abi::RmAlloc::hObjectNew))};
}

Result<uint32_t> IoctlTransport::register_host(uint32_t client, uint32_t device, int device_fd,
                                               void* memory, uint64_t bytes) {
  // The kernel makes no handle for this kind of memory (escape.c, RmAllocOsDescriptor).
  const uint32_t handle = next_handle_++;
  using Call = abi::RmAllocMemory;
  abi::Params<Call> call(abi_);
  call.set(Call::params_hRoot, client);
  call.set(Call::params_hObjectParent, device);
  call.set(Call::params_hObjectNew, handle);
  call.set(Call::params_hClass, abi::kClassHostMemory);
  call.set(Call::params_flags, kHostMemoryFlags);
  call.set(Call::params_pMemory, reinterpret_cast<uint64_t>(memory));
  call.set(Call::params_limit, bytes - 1);
  call.set(Call::fd, static_cast<uint64_t>(-1));
  const std::string what =
      fmt::format("RM_ALLOC_MEMORY of {} bytes of this process at {}", bytes, memory);
  BM_TRY(escape(Stage::kMemory, device_fd, abi::kEscRmAllocMemory, what, call));
  const uint32_t status = static_cast<uint32_t>(call.get(Call::params_status));
  if (status != kStatusOk) return tl::unexpected(status_error(Stage::kMemory, what, status));
  return static_cast<uint32_t>(call.get(Call::params_hObjectNew));
}

Result<uint32_t> IoctlTransport::control(Stage stage, std::string_view what,
                                         const RmControlCall& asked) {
  abi::Params<abi::RmControl> call(abi_);
  call.set(abi::RmControl::hClient, asked.client);
  call.set(abi::RmControl::hObject, asked.object);
  call.set(abi::RmControl::cmd, asked.command);
  call.set(abi::RmControl::params, asked.params->address());
  call.set(abi::RmControl::paramsSize, asked.bytes);
  BM_TRY(escape(stage, control_fd(), abi::kEscRmControl, what, call));
  return static_cast<uint32_t>(call.get(abi::RmControl::status));
}

Status IoctlTransport::prepare_mapping(uint32_t client, uint32_t device, uint32_t memory,
                                       uint64_t bytes, int fd, bool is_combined) {
  using Call = abi::RmMapMemory;
  abi::Params<Call> call(abi_);
  call.set(Call::params_hClient, client);
  call.set(Call::params_hDevice, device);
  call.set(Call::params_hMemory, memory);
  call.set(Call::params_length, bytes);
  call.set(Call::params_flags, is_combined ? kWriteCombined : 0);
  call.set(Call::fd, static_cast<uint64_t>(fd));
  const std::string what = fmt::format("RM_MAP_MEMORY of {} bytes of {:#x}", bytes, memory);
  BM_TRY(escape(Stage::kMap, control_fd(), abi::kEscRmMapMemory, what, call));
  const uint32_t status = static_cast<uint32_t>(call.get(Call::params_status));
  if (status != kStatusOk) return tl::unexpected(status_error(Stage::kMap, what, status));
  return {};
}

Result<uint32_t> IoctlTransport::free(Stage stage, std::string_view what, uint32_t client,
                                      uint32_t parent, uint32_t handle) {
  abi::Params<abi::RmFree> call(abi_);
  call.set(abi::RmFree::hRoot, client);
  call.set(abi::RmFree::hObjectParent, parent);
  call.set(abi::RmFree::hObjectOld, handle);
  BM_TRY(escape(stage, control_fd(), abi::kEscRmFree, what, call));
  return static_cast<uint32_t>(call.get(abi::RmFree::status));
}

/// As cards() listed it last: asking again for every descriptor would cost a call each.
Result<Card> IoctlTransport::card_of(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  for (const Card& card : listed_)
    if (card.gpu_id == gpu) return card;
  return fail(Code::kNotFound, "stage 7 (cards): GPU {:#x} is not listed", gpu);
}

/// Pages of a node, shown by one mmap.
class IoctlTransport::Mapping final : public RmMapping {
 public:
  static Result<std::unique_ptr<RmMapping>> make(System& system, int fd, Stage stage,
                                                 const RmMapCall& call) {
    void* at = nullptr;
    const int mapped =
        system.mmap(nullptr, call.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &at);
    if (mapped < 0)
      return tl::unexpected(errno_error(stage, fmt::format("mmap of {}", call.what), -mapped));
    auto mapping = std::make_unique<Mapping>(system, at, call.bytes);
    mapping->view_ = BM_TRY(HostView::mapped(at, call.bytes));
    return mapping;
  }
  Mapping(System& system, void* at, uint64_t bytes) : system_(system), at_(at), bytes_(bytes) {}
  ~Mapping() override { system_.munmap(at_, bytes_); }

 private:
  System& system_;
  void* const at_;
  const uint64_t bytes_;
};

Result<DeviceFile> IoctlTransport::open_node_of(uint32_t gpu) {
  // System memory is mapped through the control node; the descriptor holds the one mapping.
  if (gpu == 0) return open_node(system_, Stage::kMap, kControlNode);
  const Card card = BM_TRY(card_of(gpu));
  return open_device(card);
}

Result<std::unique_ptr<RmMapping>> IoctlTransport::map(Stage stage, const RmMapCall& call) {
  const DeviceFile file = BM_TRY(open_node_of(call.gpu));
  BM_TRY(prepare_mapping(call.client, call.device, call.memory, call.bytes, file.get(), false));
  return Mapping::make(system_, file.get(), stage, call);
}

/// A descriptor of the card's node that the kernel makes readable.
class IoctlTransport::Event final : public RmEvent {
 public:
  Event(System& system, DeviceFile file) : system_(system), file_(std::move(file)) {}
  uint64_t data() const override { return static_cast<uint64_t>(file_.get()); }
  Result<int> fd() const override { return file_.get(); }
  Result<bool> wait(int timeout_ms, std::string_view gpu_name) override {
    pollfd waited = {.fd = file_.get(), .events = POLLIN | POLLPRI, .revents = 0};
    // Polling a node of the driver also takes the event.
    const int ready = system_.poll(&waited, 1, timeout_ms);
    if (ready < 0 && ready != -EINTR)
      return tl::unexpected(errno_error(Stage::kEvent, "poll", -ready));
    if (ready > 0 && (waited.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0 &&
        (waited.revents & (POLLIN | POLLPRI)) == 0)
      return fail(Code::kDeviceLost, "stage 35 (event): {} is gone (poll events {:#x})", gpu_name,
                  waited.revents);
    return ready > 0;
  }

 private:
  System& system_;
  DeviceFile file_;
};

Result<std::unique_ptr<RmEvent>> IoctlTransport::open_event(uint32_t gpu, uint32_t client,
                                                            uint32_t device) {
  DeviceFile file = BM_TRY(open_node_of(gpu));
  abi::Params<abi::AllocOsEvent> os(abi_);
  os.set(abi::AllocOsEvent::hClient, client);
  os.set(abi::AllocOsEvent::hDevice, device);
  os.set(abi::AllocOsEvent::fd, static_cast<uint64_t>(file.get()));
  BM_TRY(escape(Stage::kEvent, file.get(), abi::kEscAllocOsEvent, "ALLOC_OS_EVENT", os));
  if (const uint64_t status = os.get(abi::AllocOsEvent::Status); status != kStatusOk)
    return tl::unexpected(
        status_error(Stage::kEvent, "ALLOC_OS_EVENT", static_cast<uint32_t>(status)));
  return std::make_unique<Event>(system_, std::move(file));
}

std::string IoctlTransport::driver_log() {
  std::string text;
  return system_.kernel_log(&text) == 0 ? text : std::string();
}

}  // namespace bm::nv
