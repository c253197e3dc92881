#include "drivers/nv/rm_ioctl/memory.h"

#include <algorithm>
#include <cstring>

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
constexpr uint64_t kTypeImage = 0, kTypeNotifier = 4;
constexpr uint64_t kFormat = 6;
constexpr uint64_t kMapNotRequired = 0x8000, kHandleProvided = 0x4000, kAlignmentForce = 0x100,
                   kIgnoreBank = 0x1, kPersistentVideo = 0x10000;
constexpr uint64_t kAllocFlags = kMapNotRequired | kHandleProvided | kAlignmentForce | kIgnoreBank;
constexpr uint64_t kContiguous = 2ull << 27, kScatteredAllowed = 3ull << 27;
constexpr uint64_t kPageSizeHuge = 3ull << 23;
constexpr uint64_t kLocationSystem = 1ull << 25;
constexpr uint64_t kGpuCached = 1ull << 2, kGpuUncached = 2ull << 2;
constexpr uint64_t kHuge2MiB = 1ull << 20;

void report(const Status& status) {
  if (!status) log("nv", LogLevel::kWarning, "{}", status.error().message);
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
  const DeviceFile file = BM_TRY(rm.open_device(gpu.card()));
  BM_TRY(rm.prepare_mapping(gpu.device(), object_.handle(), size, file.get(), true));
  BM_TRY(session_.addresses().map_cpu(va, size, file.get()));
  is_cpu_mapped_ = true;
  host = reinterpret_cast<std::byte*>(va);
  return {};
}

Status RmMemory::make_system(RmGpu& gpu) {
  size = align_up(size, kPage);
  va = BM_TRY(session_.addresses().take_low(size, size >= kHugePage ? kHugePage : kPage));
  has_addresses_ = true;
  BM_TRY(session_.addresses().map_cpu(va, size, -1));
  is_cpu_mapped_ = true;
  host = reinterpret_cast<std::byte*>(va);
  object_ = BM_TRY(gpu.client().register_host(gpu.device(), gpu.device_fd(), host, size));
  return {};
}

Status RmMemory::register_existing(RmGpu& gpu, void* existing) {
  const uint64_t address = reinterpret_cast<uint64_t>(existing);
  if (!is_aligned(address, kPage) || !is_aligned(size, kPage))
    return fail(Code::kInvalidArgument,
                "stage 24 (memory): {} bytes at {:#x} are not whole pages of 4096 bytes", size,
                address);
  object_ = BM_TRY(gpu.client().register_host(gpu.device(), gpu.device_fd(), existing, size));
  host = static_cast<std::byte*>(existing);
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
  Status mapped = session_->uvm().map(memory.va, memory.size, memory.handle, facts_.uuid);
  if (!mapped) return fail(Code::kUnsupported, "stage 22 (peer): {}", mapped.error().message);
  return nullptr;
}

Result<std::unique_ptr<NotifierPage>> NotifierPage::create(RmGpu& gpu) {
  RmClient& rm = gpu.client();
  std::unique_ptr<NotifierPage> page(new NotifierPage(gpu));
  using S = abi::MemoryAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::owner, rm.root());
  params.set(S::type, kTypeNotifier);
  params.set(S::flags, kAllocFlags);
  params.set(S::attr, kScatteredAllowed | kLocationSystem);
  params.set(S::attr2, kGpuUncached);
  params.set(S::format, kFormat);
  params.set(S::size, kBytes);
  params.set(S::alignment, kBytes);
  params.set(S::limit, kBytes - 1);
  page->object_ =
      BM_TRY(rm.allocate(Stage::kMemory, gpu.device(), abi::kClassSystemMemory, &params));
  page->address_ = BM_TRY(gpu.session().addresses().take_low(kBytes, kPage));
  // System memory is mapped through the control node; the descriptor holds the one mapping.
  const DeviceFile file = BM_TRY(rm.open_control());
  BM_TRY(rm.prepare_mapping(gpu.device(), page->object_.handle(), kBytes, file.get(), false));
  BM_TRY(gpu.session().addresses().map_cpu(page->address_, kBytes, file.get()));
  page->is_mapped_ = true;
  std::memset(page->data(), 0, kBytes);
  return page;
}

NotifierPage::~NotifierPage() {
  object_.reset();
  if (is_mapped_) session_.addresses().unmap_cpu(address_, kBytes);
  if (address_ != 0) session_.addresses().give_back(address_);
}

}  // namespace bm::nv
