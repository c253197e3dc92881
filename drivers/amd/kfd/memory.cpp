#include "drivers/amd/kfd/memory.h"

#include <algorithm>
#include <cerrno>

#include "drivers/amd/aql/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::amd::kfd {
namespace {

constexpr uint64_t kPage = 4096, kHugePage = 2_MiB;
constexpr uint64_t kMost = uint64_t{1} << 46;

uint32_t flags_of(const MemoryRequest& request) {
  constexpr uint32_t kAlways = kAllocWritable | kAllocExecutable | kAllocNoSubstitute;
  if (request.host != nullptr) return kAlways | kAllocUserPointer | kAllocCoherent | kAllocUncached;
  switch (request.domain) {
    case MemoryDomain::kVideo: return kAlways | kAllocVram;
    case MemoryDomain::kVideoMapped: return kAlways | kAllocVram | kAllocPublic;
    case MemoryDomain::kSystem: return kAlways | kAllocGtt | kAllocCoherent;
    case MemoryDomain::kSystemUncached:
      return kAlways | kAllocGtt | kAllocCoherent | kAllocUncached;
  }
  __builtin_unreachable();
}

std::string hint_of(KfdGpu& gpu, const MemoryRequest& request, int error) {
  if (error == EINVAL && request.domain == MemoryDomain::kVideoMapped && request.host == nullptr)
    return "video memory the CPU sees needs a BAR as large as the memory: enable Resizable BAR "
           "(Above 4G Decoding) in the firmware setup";
  if (error == ENOMEM && request.host == nullptr)
    return fmt::format("{} bytes wanted, {} bytes of video memory are free", request.size,
                       gpu.available_memory());
  if (error == EFAULT && request.host != nullptr)
    return "the memory to register is no ordinary memory of this process";
  return "";
}

void report(const Status& status) {
  if (!status) log("amd", LogLevel::kWarning, "{}", status.error().message);
}

}  // namespace

Result<std::unique_ptr<Memory>> KfdGpu::allocate(const MemoryRequest& request) {
  return std::unique_ptr<Memory>(BM_TRY(KfdMemory::allocate(*this, request)));
}

Result<std::unique_ptr<KfdMemory>> KfdMemory::allocate(KfdGpu& gpu, const MemoryRequest& request) {
  if (request.size == 0 || request.size > kMost)
    return fail(Code::kInvalidArgument, "{} bytes of GPU memory asked for", request.size);
  std::unique_ptr<KfdMemory> memory(new KfdMemory(gpu.shared_session()));
  BM_TRY(memory->make(gpu, request));
  return memory;
}

Result<std::unique_ptr<KfdMemory>> KfdMemory::flush_page(KfdGpu& gpu) {
  static_assert(kFlushOffset == 0, "the page's address is the register's");
  std::unique_ptr<KfdMemory> page(new KfdMemory(gpu.shared_session()));
  page->domain = MemoryDomain::kSystemUncached;
  page->size = kPage;
  page->va = BM_TRY(page->session_->take_addresses(kPage, kPage));
  page->has_addresses_ = true;
  AllocMemory memory{};
  memory.va = page->va;
  memory.bytes = kPage;
  memory.gpu_id = gpu.facts().gpu_id;
  memory.flags = kAllocMmioRemap | kAllocWritable | kAllocCoherent | kAllocUncached;
  if (const int failed = page->session_->try_call(AllocMemory::kRequest, &memory); failed < 0) {
    Error error = call_error("ALLOC_MEMORY_OF_GPU", "the registers that flush writes over PCIe",
                             -failed, "virtual functions have none");
    error.code = Code::kUnsupported;
    return tl::unexpected(std::move(error));
  }
  page->handle_ = memory.handle;
  page->has_handle_ = true;
  return page;
}

Status KfdMemory::make(KfdGpu& gpu, const MemoryRequest& request) {
  domain = request.host != nullptr ? MemoryDomain::kSystem : request.domain;
  size = align_up(request.size, kPage);
  if (request.host != nullptr) {
    if (reinterpret_cast<uint64_t>(request.host) % kPage != 0 || request.size % kPage != 0)
      return fail(Code::kInvalidArgument, "{} bytes at {} are not whole pages", request.size,
                  request.host);
    view = BM_TRY(HostView::mapped(request.host, size));
  }
  // Registered memory, too: buffers of the process may share pages, GPU mappings may not overlap.
  va = BM_TRY(session_->take_addresses(size, size >= kHugePage ? kHugePage : kPage));
  has_addresses_ = true;
  AllocMemory memory{};
  memory.va = va;
  memory.bytes = size;
  memory.mmap_offset = reinterpret_cast<uint64_t>(request.host);
  memory.gpu_id = gpu.facts().gpu_id;
  memory.flags = flags_of(request);
  if (const int failed = session_->try_call(AllocMemory::kRequest, &memory); failed < 0) {
    Error error = call_error("ALLOC_MEMORY_OF_GPU", fmt::format("{} bytes", request.size), -failed,
                             hint_of(gpu, request, -failed));
    if (failed == -EINVAL && domain == MemoryDomain::kVideoMapped) error.code = Code::kUnsupported;
    return tl::unexpected(std::move(error));
  }
  handle_ = memory.handle;
  has_handle_ = true;
  BM_TRY(map_to(gpu.facts().gpu_id));
  if (domain == MemoryDomain::kVideo || request.host != nullptr) return {};
  BM_TRY(session_->map_cpu(va, size, gpu.render(), memory.mmap_offset));
  view = BM_TRY(HostView::mapped(reinterpret_cast<void*>(va), size));
  return {};
}

Status KfdMemory::map_to(uint32_t gpu_id) {
  if (std::ranges::find(gpu_ids_, gpu_id) != gpu_ids_.end()) return {};
  MapMemory map{handle_, reinterpret_cast<uint64_t>(&gpu_id), 1, 0};
  BM_TRY(session_->call(map, "MAP_MEMORY_TO_GPU", fmt::format("{} bytes at {:#x}", size, va)));
  if (map.succeeded != 1)
    return fail(Code::kIo, "KFD MAP_MEMORY_TO_GPU: mapped to {} of 1 GPUs", map.succeeded);
  gpu_ids_.push_back(gpu_id);
  return {};
}

/// Addresses are free for others only when the kernel has nothing there any more; where it refuses,
/// they stay taken.
KfdMemory::~KfdMemory() {
  Status gone;
  if (!gpu_ids_.empty()) {
    MapMemory map{handle_, reinterpret_cast<uint64_t>(gpu_ids_.data()),
                  static_cast<uint32_t>(gpu_ids_.size()), 0};
    report(session_->raw_call(MapMemory::kUnmapRequest, &map, "UNMAP_MEMORY_FROM_GPU", "", ""));
  }
  if (has_handle_) {
    // Not mapped by the CPU either, when it is freed.
    if (host() != nullptr && reinterpret_cast<uint64_t>(host()) == va)
      report(session_->map_cpu(va, size, -1, 0));
    FreeMemory memory{handle_};
    gone = session_->call(memory, "FREE_MEMORY_OF_GPU");
    report(gone);
  }
  if (has_addresses_ && gone) session_->give_back(va, size);
}

Result<std::shared_ptr<KfdMemory>> KfdGpu::flush_page() {
  std::shared_ptr<KfdMemory> page = flush_page_.lock();
  if (page == nullptr) {
    page = BM_TRY(KfdMemory::flush_page(*this));
    flush_page_ = page;
  }
  return page;
}

Result<std::shared_ptr<Memory>> KfdGpu::map_peer(Memory& memory, hcq::DriverInterface& owner) {
  auto* mine = dynamic_cast<KfdMemory*>(&memory);
  auto* gpu = dynamic_cast<KfdGpu*>(&owner);
  if (mine == nullptr || gpu == nullptr || mine->session() != session_.get())
    return fail(Code::kUnsupported, "memory of a GPU of another driver");
  const bool has_link =
      std::ranges::find(facts_.near_gpu_ids, gpu->facts().gpu_id) != facts_.near_gpu_ids.end();
  std::shared_ptr<KfdMemory> flush;
  Status mapped;
  if (!is_system(mine->domain) && !has_link) {
    flush = BM_TRY(gpu->flush_page());
    mapped = flush->map_to(node_.gpu_id);
  }
  if (mapped) mapped = mine->map_to(node_.gpu_id);
  if (mapped) return flush;
  if (mapped.error().code != Code::kIo) return tl::unexpected(std::move(mapped.error()));
  return fail(Code::kUnsupported, "{} (GPUs {} and {} may have no access to each other)",
              mapped.error().message, node_.gpu_id, gpu->facts().gpu_id);
}

Result<std::unique_ptr<HardwareQueue>> KfdGpu::create_queue(const QueueRequest& request) {
  return std::unique_ptr<HardwareQueue>(BM_TRY(KfdQueue::create(*this, request)));
}

Result<std::unique_ptr<KfdQueue>> KfdQueue::create(KfdGpu& gpu, const QueueRequest& request) {
  std::unique_ptr<KfdQueue> queue(new KfdQueue(gpu));
  BM_TRY(queue->make(request));
  return queue;
}

Status KfdQueue::make(const QueueRequest& request) {
  const Memory& ring = *request.ring;
  BM_CHECK(is_power_of_two(ring.size) && request.priority <= 15);
  page_ = BM_TRY(gpu_.allocate({.size = kPage, .domain = MemoryDomain::kSystemUncached}));
  page_->view.fill(0, kPage, std::byte{0});
  CreateQueue create{};
  create.ring_base = ring.va;
  create.ring_bytes = static_cast<uint32_t>(ring.size);
  create.write_pointer = page_->va + aql::kWriteIndexOffset;
  create.read_pointer = page_->va + aql::kReadIndexOffset;
  create.gpu_id = gpu_.facts().gpu_id;
  create.percentage = 100;
  create.priority = request.priority;
  create.sdma_engine = request.sdma_engine;
  const char* what = "an SDMA queue";
  create.type = kQueueSdma;
  if (request.type != QueueType::kSdma) {
    // The kernel compares every one of these sizes, and says EINVAL without more.
    const SaveSizes sizes = gpu_.save();
    eop_ = BM_TRY(gpu_.allocate({.size = kEopBytes, .domain = MemoryDomain::kVideo}));
    save_ = BM_TRY(
        gpu_.allocate({.size = sizes.total(gpu_.facts().xccs), .domain = MemoryDomain::kVideo}));
    create.eop_address = eop_->va;
    create.eop_bytes = kEopBytes;
    create.save_address = save_->va;
    create.save_bytes = sizes.save;
    create.control_stack_bytes = sizes.control_stack;
    what = request.type == QueueType::kAql ? "an AQL queue" : "a PM4 queue";
    create.type = request.type == QueueType::kAql ? kQueueComputeAql : kQueueCompute;
  }
  event_ = BM_TRY(gpu_.session().create_event(kEventSignal, true));
  BM_TRY(gpu_.session().call(
      create, "CREATE_QUEUE", what,
      create.type == kQueueSdma
          ? "too many copy queues may be open"
          : "this kernel may want other sizes of the save area than this program computes; kernels "
            "from 7.2 on publish them"));
  queue_id_ = create.queue_id;
  is_created_ = true;
  doorbell = BM_TRY(gpu_.doorbell(create.doorbell_offset));
  object = page_->view;
  object_va = page_->va;
  write_pointer = object.slice(aql::kWriteIndexOffset, sizeof(uint64_t));
  read_pointer = object.slice(aql::kReadIndexOffset, sizeof(uint64_t));
  mailbox = gpu_.session().slot_address(event_);
  event_id = event_.id;
  gpu_.add_event(event_.id);
  return {};
}

KfdQueue::~KfdQueue() {
  if (is_created_) {
    DestroyQueue destroy{queue_id_, 0};
    report(gpu_.session().call(destroy, "DESTROY_QUEUE"));
    gpu_.remove_event(event_.id);
  }
  if (event_.id != 0) gpu_.session().destroy_event(event_);
}

}  // namespace bm::amd::kfd
