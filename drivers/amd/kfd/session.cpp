#include "drivers/amd/kfd/session.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "runtime/base/bits.h"
#include "runtime/base/log.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace bm::amd::kfd {
namespace {

// Linux 6.1 has 1.11; older ones lack AVAILABLE_MEMORY and were never tried.
constexpr uint32_t kMajor = 1, kLeastMinor = 11, kRuntimeMinor = 14;
constexpr uint64_t kWindowBytes = 64_GiB, kSmallWindowBytes = 1_GiB;
constexpr int kKeep = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

Result<std::shared_ptr<Session>> Session::share(System& system, uint64_t window) {
  // The table of drivers opens each GPU on its own, so what they share has to be found. Nothing is
  // kept alive here.
  static std::mutex mutex;
  static std::map<System*, std::weak_ptr<Session>> open_sessions;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Session>& known = open_sessions[&system];
  if (std::shared_ptr<Session> session = known.lock()) return session;
  std::shared_ptr<Session> session = BM_TRY(open(system, window));
  known = session;
  return session;
}

Result<std::shared_ptr<Session>> Session::open(System& system, uint64_t window) {
  std::shared_ptr<Session> session(new Session(system));
  BM_TRY(session->start(window));
  return session;
}

Status Session::start(uint64_t window) {
  const int fd = system_.open("/dev/kfd", O_RDWR);
  if (fd < 0) return tl::unexpected(open_error(system_, "/dev/kfd", -fd));
  kfd_ = Descriptor(system_, fd);
  GetVersion version{};
  BM_TRY(call(version, "GET_VERSION"));
  if (version.major != kMajor || version.minor < kLeastMinor)
    return fail(Code::kUnsupported,
                "the kernel's compute interface is version {}.{}; {}.{} or later of major {} is "
                "needed (Linux 6.1)",
                version.major, version.minor, kMajor, kLeastMinor, kMajor);
  minor_ = version.minor;
  if (minor_ >= kRuntimeMinor) {
    // Without trap temporaries, as ROCR does it unless it is to be debugged; a debugger that
    // attaches later finds a process it may stop. Refusals (EBUSY: done already; EEXIST: there are
    // queues) leave everything usable. Sources: Linux, kfd_chardev.c, kfd_ioctl_runtime_enable(),
    // where a mode without the bit disables; ROCR-Runtime, amd_topology.cpp, Load().
    RuntimeEnable enable{};
    enable.mode = kRuntimeEnableMode;
    try_call(RuntimeEnable::kRequest, &enable);
  }
  return window == 0 ? Status{} : take_window(window);
}

Status Session::take_window(uint64_t base) {
  if (!is_aligned(base, 2_MiB))
    return fail(Code::kInvalidArgument, "BM_AMD_WINDOW {:#x} is not a multiple of 2 MiB", base);
  const std::lock_guard lock(kept_->mutex);
  std::unique_ptr<KeptForProcess::Window>& known = kept_->windows[base];
  window_ = known.get();
  for (const uint64_t bytes : {kWindowBytes, kSmallWindowBytes}) {
    void* at = nullptr;
    if (window_ != nullptr) return {};
    if (system_.mmap(pointer(base), bytes, PROT_NONE, kKeep | MAP_FIXED_NOREPLACE, -1, 0, &at) < 0)
      continue;
    if (at != pointer(base)) {
      system_.munmap(at, bytes);
      continue;
    }
    auto window = std::make_unique<KeptForProcess::Window>();
    window->base = base;
    window->bytes = bytes;
    window->ranges = BM_TRY(Tlsf::create(base, bytes, 4096));
    known = std::move(window);
    window_ = known.get();
  }
  if (window_ != nullptr) return {};
  return fail(Code::kUnsupported,
              "BM_AMD_WINDOW {:#x}: the process has mappings there; choose another address", base);
}

KeptForProcess::Window::~Window() {
  if (bytes != 0) ::munmap(pointer(base), bytes);
}

Result<int> Session::render_node(uint32_t minor) {
  const std::lock_guard lock(kept_->mutex);
  const auto known = kept_->renders.find(minor);
  if (known != kept_->renders.end()) return known->second;
  const std::string path = fmt::format("/dev/dri/renderD{}", minor);
  const int fd = system_.open(path, O_RDWR);
  if (fd < 0) return tl::unexpected(open_error(system_, path, -fd));
  kept_->renders[minor] = fd;
  return fd;
}

void Session::note_eviction(uint32_t gpu_id, std::string cause) {
  const std::lock_guard lock(kept_->mutex);
  std::string& known = gpu_id == 0 ? kept_->eviction_from_all : kept_->evictions[gpu_id];
  if (known.empty()) known = std::move(cause);
}

Status Session::check_eviction(uint32_t gpu_id) {
  const std::lock_guard lock(kept_->mutex);
  std::string cause = kept_->eviction_from_all;
  if (const auto own = kept_->evictions.find(gpu_id); own != kept_->evictions.end())
    cause = own->second;
  if (cause.empty()) return {};
  return fail(Code::kDeviceLost,
              "the kernel driver stopped this process on GPU {} for good ({}): start the program "
              "again",
              gpu_id, cause);
}

/// Not in the window, which goes with the session.
Status Session::make_event_page(uint32_t gpu_id, int render) {
  const uint64_t address = BM_TRY(take_anywhere(kEventPageBytes, 4096));
  AllocMemory memory{};
  memory.va = address;
  memory.bytes = kEventPageBytes;
  memory.gpu_id = gpu_id;
  memory.flags = kAllocGtt | kAllocWritable | kAllocExecutable | kAllocNoSubstitute |
                 kAllocCoherent | kAllocUncached;
  Status made = call(memory, "ALLOC_MEMORY_OF_GPU", "the event page");
  if (made) {
    made = map_cpu(address, kEventPageBytes, render, memory.mmap_offset);
    // The one call that tells the kernel where the slots are; the event is not needed.
    Result<Event> event =
        made ? create_event(kEventSignal, true, memory.handle) : tl::unexpected(made.error());
    // Kernels before kfd_event_init_process() kept number 0 gave it to the first one, and an
    // interrupt of context 0 is dropped on gfx9 (event_interrupt_isr_v9()): nobody gets it then.
    if (!event)
      made = tl::unexpected(event.error());
    else if (event->id != 0)
      destroy_event(*event);
    FreeMemory free{memory.handle};
    if (!made) try_call(FreeMemory::kRequest, &free);
  }
  if (!made) {
    system_.munmap(pointer(address), kEventPageBytes);
    return made;
  }
  kept_->page_handle = memory.handle;
  kept_->page_address = address;
  return {};
}

Status Session::share_event_page(uint32_t gpu_id, int render) {
  const std::lock_guard lock(kept_->mutex);
  if (kept_->page_handle == 0) BM_TRY(make_event_page(gpu_id, render));
  MapMemory map{kept_->page_handle, reinterpret_cast<uint64_t>(&gpu_id), 1, 0};
  return call(map, "MAP_MEMORY_TO_GPU", "the event page");
}

void Session::leave_event_page(uint32_t gpu_id) {
  const std::lock_guard lock(kept_->mutex);
  if (kept_->page_handle == 0) return;
  MapMemory map{kept_->page_handle, reinterpret_cast<uint64_t>(&gpu_id), 1, 0};
  const Status done =
      raw_call(MapMemory::kUnmapRequest, &map, "UNMAP_MEMORY_FROM_GPU", "the event page", "");
  if (!done) log("amd", LogLevel::kWarning, "{}", done.error().message);
}

Status Session::raw_call(unsigned long request, void* arguments, std::string_view name,
                         std::string_view what, std::string_view hint) {
  const int result = system_.ioctl(kfd_.get(), request, arguments);
  if (result >= 0) return {};
  if (result == -EBADF)
    hint =
        "a descriptor of /dev/kfd works only in the process that opened it: after fork() open "
        "the device anew";
  return tl::unexpected(call_error(name, what, -result, hint));
}

Result<uint64_t> Session::take_addresses(uint64_t bytes, uint64_t alignment) {
  if (window_ != nullptr) {
    const std::lock_guard lock(kept_->mutex);
    return window_->ranges->allocate(bytes, alignment);
  }
  return take_anywhere(bytes, alignment);
}

Result<uint64_t> Session::take_anywhere(uint64_t bytes, uint64_t alignment) {
  // More than wanted, then the edges are given back: mmap aligns to pages only.
  const uint64_t extra = alignment > 4096 ? alignment : 0;
  void* at = nullptr;
  const int failed = system_.mmap(nullptr, bytes + extra, PROT_NONE, kKeep, -1, 0, &at);
  if (failed < 0)
    return fail(Code::kOutOfMemory, "no addresses for {} bytes of GPU memory: {}", bytes,
                errno_text(-failed));
  const auto begin = reinterpret_cast<uint64_t>(at);
  const uint64_t first = align_up(begin, std::max<uint64_t>(alignment, 4096));
  if (first > begin) system_.munmap(at, first - begin);
  if (const uint64_t end = begin + bytes + extra; end > first + bytes)
    system_.munmap(pointer(first + bytes), end - first - bytes);
  return first;
}

Status Session::map_cpu(uint64_t address, uint64_t bytes, int fd, uint64_t offset) {
  void* at = nullptr;
  const int failed =
      fd >= 0 ? system_.mmap(pointer(address), bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset), &at)
              : system_.mmap(pointer(address), bytes, PROT_NONE, kKeep | MAP_FIXED, -1, 0, &at);
  if (failed >= 0) return {};
  return fail(code_from_errno(-failed), "mmap of {} bytes of GPU memory: {}", bytes,
              errno_text(-failed));
}

void Session::give_back(uint64_t address, uint64_t bytes) {
  if (window_ == nullptr) {
    system_.munmap(pointer(address), bytes);
    return;
  }
  (void)map_cpu(address, bytes, -1, 0);
  const std::lock_guard lock(kept_->mutex);
  if (const Status freed = window_->ranges->free(address); !freed)
    log("amd", LogLevel::kError, "GPU addresses: {}", freed.error().message);
}

Result<Event> Session::create_event(uint32_t type, bool resets, uint64_t page_handle) {
  CreateEvent create{};
  create.page_offset = page_handle;
  create.type = type;
  create.auto_reset = resets ? 1 : 0;
  BM_TRY(call(create, "CREATE_EVENT"));
  return Event{create.event_id, create.slot};
}

void Session::destroy_event(const Event& event) {
  DestroyEvent destroy{event.id, 0};
  const Status done = call(destroy, "DESTROY_EVENT");
  if (!done) log("amd", LogLevel::kWarning, "{}", done.error().message);
}

}  // namespace bm::amd::kfd
