// Memory and hardware queues of a booted card.

#include "drivers/amd/am/memory.h"

#include <memory>
#include <utility>
#include <vector>

#include "drivers/amd/aql/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kPage = 4096, kLargePage = 2 << 20, kMost = uint64_t{1} << 38;

}  // namespace

Result<std::unique_ptr<Memory>> AmGpu::allocate(const MemoryRequest& request) {
  if (request.size == 0 || request.size > kMost)
    return fail(Code::kInvalidArgument, "{} bytes of GPU memory asked for", request.size);
  std::unique_ptr<AmMemory> memory(new AmMemory(*this));
  std::unique_lock lock(mutex_);
  Status made = memory->make(request);
  while (!made && made.error().code == Code::kOutOfMemory && drop_oldest_kept()) {
    memory->release();
    made = memory->make(request);
  }
  if (made && clear_ && memory->is_foreign()) {
    // Whoever waits for the engine asks for faults.
    lock.unlock();
    made = clear_(memory->va, memory->size);
    lock.lock();
    if (!made) {
      // A fault at what is unmapped under the engine would hide why it did not end.
      abandoned_.push_back(std::move(memory));
      return tl::unexpected(std::move(made.error()));
    }
    memory_->note_cleared(memory->physical_, memory->size);
  }
  if (!made) {
    memory->release();
    return tl::unexpected(std::move(made.error()));
  }
  return std::unique_ptr<Memory>(std::move(memory));
}

bool AmMemory::is_foreign() const {
  return has_physical_ && !gpu_.memory_->is_cleared(physical_, size);
}

Status AmMemory::make(const MemoryRequest& request) {
  BM_TRY(gpu_.bus_.status());
  domain = request.host != nullptr ? MemoryDomain::kSystem : request.domain;
  size = align_up(request.size, kPage);
  std::vector<memory::PhysicalRange> ranges;
  memory::PageAttributes attributes;
  if (gpu_.path_ && is_system(domain)) {
    // System memory is what the host reads and writes as it likes: here, video memory that it sees,
    // which the GPU's caches keep nothing of, since nobody tells them of the host's writes.
    if (request.host != nullptr)
      return fail(
          Code::kUnsupported,
          "{} bytes at {}: the card reaches no memory of this process, since {} gives it no "
          "DMA to the host; copy into a buffer of the device instead",
          request.size, request.host, to_string(gpu_.function_->identity().address));
    attributes.is_uncached = true;
    BM_TRY(take_video(true, &ranges));
    window_ = gpu_.path_->window(physical_, size);
    view = BM_TRY(HostView::remote(*window_));
  } else if (is_system(domain)) {
    // As the kernel maps what is coherent: never kept in the GPU's L2 (gmc_v11_0_get_vm_pte).
    attributes = {.aperture = memory::Aperture::kSystem, .is_uncached = true};
    BM_TRY(request.host != nullptr ? pin(request) : take_system(request.is_contiguous));
    for (const BusRange& range : bus_ranges_) ranges.push_back({range.address, range.bytes});
  } else {
    const bool is_seen = domain == MemoryDomain::kVideoMapped;
    BM_TRY(take_video(is_seen, &ranges));
    if (is_seen) view = gpu_.bus_.memory_view(physical_, size);
  }
  va = BM_TRY(gpu_.gmc_->take_addresses(size));
  has_addresses_ = true;
  BM_TRY(gpu_.gmc_->map(va, ranges, attributes));
  is_mapped_ = true;
  if (window_) gpu_.path_->places().add(va, physical_, size);
  if (is_system(domain) && view.size() != 0) gpu_.host_views_.insert_or_assign(va, view);
  return {};
}

/// What an earlier process has left, as it is.
Status AmMemory::attach(const KeptRecord& record) {
  BM_TRY(gpu_.bus_.status());
  domain = MemoryDomain::kVideo;
  size = align_up(record.bytes, kPage);
  physical_ = record.offset;
  has_physical_ = true;
  gpu_.attached_.insert(physical_);
  va = BM_TRY(gpu_.gmc_->take_addresses(size));
  has_addresses_ = true;
  const memory::PhysicalRange range{physical_, size};
  BM_TRY(gpu_.gmc_->map(va, {&range, 1}, {}));
  is_mapped_ = true;
  return {};
}

Status AmMemory::take_video(bool is_seen, std::vector<memory::PhysicalRange>* ranges) {
  physical_ =
      BM_TRY(gpu_.memory_->allocate(size, size >= kLargePage ? kLargePage : kPage, is_seen));
  has_physical_ = true;
  ranges->push_back({physical_, size});
  return {};
}

/// The transport's own memory: pinned here, or at the other end of a socket.
Status AmMemory::take_system(bool is_contiguous) {
  const DmaLimits& limits = gpu_.function_->dma_limits();
  std::optional<uint64_t> iova;
  if (gpu_.iovas_) {
    size = align_up(size, limits.page_bytes);
    iova = iova_ = BM_TRY(gpu_.iovas_->allocate(size));
  }
  pinned_ = BM_TRY(gpu_.function_->dma_allocate(size, is_contiguous, iova));
  view = pinned_->view();
  if (view.size() > size) view = view.slice(0, size);
  uint64_t left = size;
  for (const BusRange& range : pinned_->ranges()) {
    if (left == 0) break;
    const uint64_t bytes = std::min(left, range.bytes);
    bus_ranges_.push_back({range.address, bytes});
    left -= bytes;
  }
  if (left != 0 || view.size() < size)
    return fail(Code::kIo, "the transport gave {} of {} bytes of memory for DMA", size - left,
                size);
  return check_reach();
}

/// Memory of the process, where it is.
Status AmMemory::pin(const MemoryRequest& request) {
  if (reinterpret_cast<uint64_t>(request.host) % kPage != 0 || request.size % kPage != 0)
    return fail(Code::kInvalidArgument, "{} bytes at {} are not whole pages", request.size,
                request.host);
  DmaRequest dma{.host = request.host, .bytes = size};
  if (gpu_.iovas_) dma.iova = iova_ = BM_TRY(gpu_.iovas_->allocate(size));
  bus_ranges_ = BM_TRY(gpu_.function_->dma_map(dma));
  host_ = request.host;
  view = BM_TRY(HostView::mapped(request.host, size));
  return check_reach();
}

Status AmMemory::check_reach() const {
  for (const BusRange& range : bus_ranges_)
    if (range.address + range.bytes > uint64_t{1} << gpu_.options_.address_bits)
      return fail(Code::kUnsupported,
                  "memory at bus address {:#x} is beyond the card's {} bits: use the IOMMU (VFIO)",
                  range.address, gpu_.options_.address_bits);
  return {};
}

/// Under the mutex. What the card may still reach stays taken.
void AmMemory::release() {
  if (window_) gpu_.path_->places().remove(va);
  if (is_mapped_) {
    is_mapped_ = false;
    // A card that was left is the next process's.
    if (const Status gone = gpu_.has_left_ ? Status{} : gpu_.gmc_->unmap(va, size); !gone) {
      if (gpu_.bus_.status())
        log("amd", LogLevel::kWarning, "unmapping {} bytes at {:#x}: {}", size, va,
            gone.error().message);
      if (host_ == nullptr) {
        gpu_.reachable_.push_back(std::move(pinned_));
        has_addresses_ = has_physical_ = false;
        iova_.reset();
        return;
      }
    }
  }
  if (has_addresses_) {
    gpu_.host_views_.erase(va);
    gpu_.gmc_->give_back(va);
  }
  if (has_physical_) gpu_.release_video(physical_);
  if (host_ != nullptr) static_cast<void>(gpu_.function_->dma_unmap(host_));
  pinned_.reset();
  bus_ranges_.clear();
  if (iova_) static_cast<void>(gpu_.iovas_->free(*iova_));
  has_addresses_ = has_physical_ = false;
  host_ = nullptr;
  iova_.reset();
}

AmMemory::~AmMemory() {
  for (const auto& weak : peers_)
    if (const auto link = weak.lock()) {
      const std::lock_guard lock(link->mutex);
      if (link->gpu != nullptr) link->gpu->drop_peer(va);
    }
  const std::lock_guard lock(gpu_.mutex_);
  release();
}

Result<std::shared_ptr<Memory>> AmGpu::map_peer(Memory& memory, hcq::DriverInterface& owner) {
  auto* mine = dynamic_cast<AmMemory*>(&memory);
  if (mine == nullptr || dynamic_cast<AmGpu*>(&owner) == nullptr)
    return fail(Code::kUnsupported, "memory of a GPU of another driver");
  if (!is_system(mine->domain) || mine->host() == nullptr)
    return fail(Code::kUnsupported,
                "cards without a kernel driver reach each other's system memory only");
  const std::lock_guard lock(mutex_);
  if (peers_.contains(mine->va)) return std::shared_ptr<Memory>();
  Peer peer{.bytes = mine->size, .host = mine->host()};
  if (iovas_) peer.iova = BM_TRY(iovas_->allocate(peer.bytes));
  auto ranges = function_->dma_map({.host = peer.host, .bytes = peer.bytes, .iova = peer.iova});
  Status done = ranges ? Status{} : tl::unexpected(ranges.error());
  if (done) {
    std::vector<memory::PhysicalRange> places;
    for (const BusRange& range : *ranges) places.push_back({range.address, range.bytes});
    done =
        gmc_->map(mine->va, places, {.aperture = memory::Aperture::kSystem, .is_uncached = true});
    if (!done) static_cast<void>(function_->dma_unmap(peer.host));
  }
  if (!done) {
    if (peer.iova) static_cast<void>(iovas_->free(*peer.iova));
    return tl::unexpected(std::move(done.error()));
  }
  peers_.emplace(mine->va, peer);
  mine->peers_.push_back(link_);
  return std::shared_ptr<Memory>();
}

void AmGpu::drop_peer(uint64_t va) {
  const std::lock_guard lock(mutex_);
  const auto at = peers_.find(va);
  if (at == peers_.end()) return;
  const Peer peer = at->second;
  peers_.erase(at);
  static_cast<void>(gmc_->unmap(va, peer.bytes));
  static_cast<void>(function_->dma_unmap(peer.host));
  if (peer.iova) static_cast<void>(iovas_->free(*peer.iova));
}

Result<std::unique_ptr<HardwareQueue>> AmGpu::create_queue(const QueueRequest& request) {
  std::unique_ptr<AmQueue> queue(new AmQueue(*this));
  BM_TRY(queue->make(request));
  return std::unique_ptr<HardwareQueue>(std::move(queue));
}

Status AmQueue::make(const QueueRequest& request) {
  BM_CHECK(is_power_of_two(request.ring->size) && request.priority <= 15);
  request_ = request;
  page_ = BM_TRY(gpu_.allocate({.size = kPage, .domain = MemoryDomain::kSystemUncached}));
  page_->view.fill(0, kPage, std::byte{0});
  const bool is_copy = request.type == QueueType::kSdma;
  if (!is_copy) eop_ = BM_TRY(gpu_.allocate({.size = kPage, .domain = MemoryDomain::kVideo}));
  object = page_->view;
  object_va = page_->va;
  write_pointer = object.slice(aql::kWriteIndexOffset, sizeof(uint64_t));
  read_pointer = object.slice(aql::kReadIndexOffset, sizeof(uint64_t));
  mailbox = page_->va + kMailbox;
  page_->view.publish();
  const std::lock_guard lock(gpu_.mutex_);
  BM_TRY(is_copy ? take_slot(&gpu_.copies_taken_, gpu_.copy_queues(), request.sdma_engine)
                 : take_slot(&gpu_.compute_taken_, kComputeQueues, 0));
  const uint64_t bell = is_copy ? gpu_.copies_->doorbell(slot_) : gpu_.compute_->doorbell(slot_);
  doorbell = BM_TRY(Doorbell<uint64_t>::at(gpu_.bus_.doorbells(), bell * 8));
  return start();
}

Status AmQueue::restart() {
  const std::lock_guard lock(gpu_.mutex_);
  return restart_locked();
}

Status AmQueue::restart_locked() {
  write_pointer.store_release<uint64_t>(0, 0);
  read_pointer.store_release<uint64_t>(0, 0);
  page_->view.publish();
  if (gpu_.is_reset_) return fail(Code::kDeviceLost, "the card was reset: open the device again");
  return start();
}

Status AmQueue::take_slot(uint32_t* taken, uint32_t count, uint32_t wanted) {
  for (uint32_t turn = 0; turn < count; ++turn) {
    const uint32_t slot = (wanted + turn) % count;
    if ((*taken >> slot & 1) != 0) continue;
    *taken |= 1u << slot;
    taken_ = taken;
    slot_ = slot;
    event_id = slot + 1;
    return {};
  }
  return fail(Code::kOutOfMemory, "all {} hardware queues of this kind are taken", count);
}

/// Under the mutex.
Status AmQueue::start() {
  BM_TRY(request_.type == QueueType::kSdma ? start_copy() : start_compute());
  is_started_ = true;
  return {};
}

Status AmQueue::start_compute() {
  return gpu_.compute_->start_queue(slot_, {.ring = request_.ring->va,
                                            .ring_bytes = request_.ring->size,
                                            .read_pointer = page_->va + aql::kReadIndexOffset,
                                            .write_pointer = page_->va + aql::kWriteIndexOffset,
                                            .eop = eop_->va,
                                            .eop_bytes = kPage,
                                            .doorbell_dword = gpu_.compute_->doorbell(slot_) * 2,
                                            .priority = request_.priority,
                                            .is_aql = request_.type == QueueType::kAql});
}

Status AmQueue::start_copy() {
  return gpu_.copies_->start_queue(slot_, {.ring = request_.ring->va,
                                           .ring_bytes = request_.ring->size,
                                           .read_pointer = page_->va + aql::kReadIndexOffset,
                                           .write_pointer = page_->va + aql::kWriteIndexOffset});
}

/// Read pointers are wrapped at the ring's end or not. PM4 counts dwords, SDMA bytes, AQL packets.
bool AmQueue::is_idle() const {
  uint64_t entries = request_.ring->size;
  switch (request_.type) {
    case QueueType::kPm4: entries /= 4; break;
    case QueueType::kAql: entries /= aql::kPacketBytes; break;
    case QueueType::kSdma: break;
  }
  const auto written = write_pointer.load_acquire<uint64_t>(0);
  return ((written - read_pointer.load_acquire<uint64_t>(0)) & (entries - 1)) == 0;
}

AmQueue::~AmQueue() {
  if (taken_ == nullptr) return;
  const std::lock_guard lock(gpu_.mutex_);
  // TIMEOUT: what comes after the last signal, fences and an interrupt, takes microseconds; the
  // rest is for a busy machine.
  constexpr uint64_t kTailUs = 100'000;
  const uint64_t begun = gpu_.bus_.clock().now_us();
  const auto may_end = [&] { return !gpu_.has_hang_ && !gpu_.fault_ && gpu_.bus_.status(); };
  while (is_started_ && !is_idle() && may_end() && gpu_.bus_.clock().now_us() - begun < kTailUs)
    gpu_.bus_.sleep_us(50);
  // Registers of an engine that hangs can say anything: what its queue has not done is the proof.
  if (is_started_ && !is_idle()) gpu_.was_at_work_ = true;
  if (is_started_ && !gpu_.is_reset_) {
    const Status stopped = request_.type == QueueType::kSdma ? gpu_.copies_->stop_queue(slot_)
                                                             : gpu_.compute_->stop_queue(slot_);
    if (!stopped) {
      gpu_.has_hang_ = true;
      log("amd", LogLevel::kWarning, "{}", stopped.error().message);
    }
  }
  *taken_ &= ~(1u << slot_);
}

}  // namespace bm::amd::am
