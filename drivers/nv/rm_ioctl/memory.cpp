#include "drivers/nv/rm_ioctl/memory.h"

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::nv {
namespace {

constexpr uint64_t kPage = 4096;
// The driver takes 64 KiB pages for small video memory where it is free to; addresses and sizes fit
// both.
constexpr uint64_t kSmallPage = 64_KiB, kHugePage = 2_MiB;
constexpr uint64_t kHugeFrom = 8_MiB;

// nvos.h, NVOS32_*: what NV_MEMORY_ALLOCATION_PARAMS wants to know.
constexpr uint64_t kTypeImage = 0;
constexpr uint64_t kFormat = 6;
constexpr uint64_t kMapNotRequired = 0x8000, kHandleProvided = 0x4000, kAlignmentForce = 0x100,
                   kIgnoreBank = 0x1, kPersistentVideo = 0x10000;
constexpr uint64_t kAllocFlags = kMapNotRequired | kHandleProvided | kAlignmentForce | kIgnoreBank;
constexpr uint64_t kContiguous = 2ull << 27, kScatteredAllowed = 3ull << 27;
constexpr uint64_t kPageSizeHuge = 3ull << 23;
constexpr uint64_t kGpuCached = 1ull << 2;
constexpr uint64_t kHuge2MiB = 1ull << 20;

void report(const Status& status) {
  if (!status) log("nv", LogLevel::kWarning, "{}", status.error().message);
}

Result<RmObject> register_host(RmGpu& gpu, void* memory, uint64_t bytes) {
  RmClient& rm = gpu.client();
  const uint32_t handle = BM_TRY(
      gpu.transport().register_host(rm.root(), gpu.device(), gpu.device_fd(), memory, bytes));
  return RmObject(rm, gpu.device(), handle);
}

}  // namespace

Result<std::unique_ptr<Memory>> RmGpu::allocate(const MemoryRequest& request) {
  return RmMemory::allocate(*this, request);
}

Result<std::unique_ptr<Memory>> RmMemory::allocate(RmGpu& gpu, const MemoryRequest& request) {
  constexpr uint64_t kMost = uint64_t{1} << 46;
  if (request.size == 0 || request.size > kMost)
    return fail(Code::kInvalidArgument, "stage 24 (memory): {} bytes asked for", request.size);
  std::unique_ptr<RmMemory> memory(new RmMemory(gpu));
  memory->domain = request.domain;
  memory->size = request.size;
  switch (request.domain) {
    case MemoryDomain::kVideo:
    case MemoryDomain::kVideoMapped: BM_TRY(memory->make_video(gpu, request)); break;
    case MemoryDomain::kSystem:
    case MemoryDomain::kSystemUncached:
      if (request.host == nullptr)
        BM_TRY(memory->make_system(gpu));
      else
        BM_TRY(memory->register_existing(gpu, request.host));
      break;
  }
  memory->handle = memory->object_.handle();
  BM_TRY(memory->map_gpu(gpu));
  return std::unique_ptr<Memory>(std::move(memory));
}

Status RmMemory::make_video(RmGpu& gpu, const MemoryRequest& request) {
  RmClient& rm = gpu.client();
  const bool is_huge = size >= kHugeFrom;
  const uint64_t page = is_huge ? kHugePage : kSmallPage;
  size = align_up(size, page);
  using S = abi::MemoryAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::owner, rm.root());
  params.set(S::type, kTypeImage);
  params.set(S::flags, kAllocFlags | kPersistentVideo);
  params.set(S::attr, (request.is_contiguous ? kContiguous : kScatteredAllowed) |
                          (is_huge ? kPageSizeHuge : 0));
  params.set(S::attr2, kGpuCached | (is_huge ? kHuge2MiB : 0));
  params.set(S::format, kFormat);
  params.set(S::size, size);
  params.set(S::alignment, page);
  params.set(S::limit, size - 1);
  object_ = BM_TRY(rm.allocate(Stage::kMemory, gpu.device(), abi::kClassVideoMemory, &params));
  const bool is_mapped = request.domain == MemoryDomain::kVideoMapped;
  va = is_mapped ? BM_TRY(session_.addresses().take_low(size, page))
                 : BM_TRY(session_.addresses().take_high(size, page));
  has_addresses_ = true;
  if (!is_mapped) return {};
  const DeviceFile file = BM_TRY(gpu.transport().open_device(gpu.card()));
  BM_TRY(gpu.transport().prepare_mapping(rm.root(), gpu.device(), object_.handle(), size,
                                         file.get(), true));
  BM_TRY(session_.addresses().map_cpu(va, size, file.get()));
  is_cpu_mapped_ = true;
  view = BM_TRY(HostView::mapped(reinterpret_cast<void*>(va), size));
  return {};
}

Status RmMemory::make_system(RmGpu& gpu) {
  size = align_up(size, kPage);
  va = BM_TRY(session_.addresses().take_low(size, size >= kHugePage ? kHugePage : kPage));
  has_addresses_ = true;
  BM_TRY(session_.addresses().map_cpu(va, size, -1));
  is_cpu_mapped_ = true;
  view = BM_TRY(HostView::mapped(reinterpret_cast<void*>(va), size));
  object_ = BM_TRY(register_host(gpu, host(), size));
  return {};
}

Status RmMemory::register_existing(RmGpu& gpu, void* existing) {
  const uint64_t address = reinterpret_cast<uint64_t>(existing);
  if (!is_aligned(address, kPage) || !is_aligned(size, kPage))
    return fail(Code::kInvalidArgument,
                "stage 24 (memory): {} bytes at {:#x} are not whole pages of 4096 bytes", size,
                address);
  object_ = BM_TRY(register_host(gpu, existing, size));
  view = BM_TRY(HostView::mapped(existing, size));
  va = address;
  if (session_.addresses().is_outside(address, size)) return {};
  va = BM_TRY(session_.addresses().take_high(size, kSmallPage));
  has_addresses_ = true;
  return {};
}

Status RmMemory::map_gpu(RmGpu& gpu) {
  Status made = session_.uvm().create_range(va, size);
  // Registered memory has a range at its own addresses already when it is registered twice.
  if (!made && !has_addresses_) {
    va = BM_TRY(session_.addresses().take_high(size, kSmallPage));
    has_addresses_ = true;
    made = session_.uvm().create_range(va, size);
  }
  BM_TRY(std::move(made));
  has_range_ = true;
  return session_.uvm().map(va, size, object_.handle(), gpu.uuid());
}

RmMemory::~RmMemory() {
  const Status freed = has_range_ ? session_.uvm().free_range(va, size) : Status();
  report(freed);
  object_.reset();
  if (is_cpu_mapped_) session_.addresses().unmap_cpu(va, size);
  // Addresses whose range is still there cannot be mapped again: they are lost, not reused.
  if (has_addresses_ && freed) session_.addresses().give_back(va);
}

Result<std::shared_ptr<Memory>> RmGpu::map_peer(Memory& memory, hcq::DriverInterface& owner) {
  const auto* gpu = dynamic_cast<const RmGpu*>(&owner);
  if (gpu == nullptr || !session_->has(gpu->uuid()))
    return fail(Code::kUnsupported, "stage 22 (peer): {} is not of the same session",
                owner.facts().name);
  // System memory belongs to no GPU: all may map it.
  if (!hcq::is_system(memory.domain)) BM_TRY(session_->enable_peers(uuid(), gpu->uuid()));
  Status mapped = session_->uvm().map(memory.va, memory.size, memory.handle, uuid());
  if (!mapped) return fail(Code::kUnsupported, "stage 22 (peer): {}", mapped.error().message);
  return nullptr;
}

}  // namespace bm::nv
