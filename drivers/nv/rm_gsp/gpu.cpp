#include "drivers/nv/rm_gsp/gpu.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "drivers/memory/address_windows.h"
#include "drivers/nv/rm/channel.h"
#include "drivers/nv/rm/fault.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::nv::gsp {
namespace {

constexpr uint64_t kPage = 4096, kLargePage = 2_MiB, kMost = uint64_t{1} << 38;
// NV_VIRTUAL_FUNCTION of the physical function: doorbell and clock lie at 0x30000 of it.
constexpr uint64_t kUsermode = 0xb80000 + 0x30000, kUsermodeBytes = 64 << 10;

// Addresses. Rings, push buffers and launch descriptors have 40 bits; what the host sees lies there
// (kLow), the rest above. Each GPU of the process has a part of its own, so that what one maps of
// another's keeps its address. The first 64 GiB hold what the resource manager has for itself
// (GoldenContext::kReservedBase). The windows of shared and local memory lie where those of the
// kernel driver's way do, above everything here.
constexpr size_t kLow = 0, kHigh = 1;
constexpr uint64_t kLowBase = 64_GiB, kLowBytes = 64_GiB;
constexpr uint64_t kHighBase = uint64_t{1} << 42, kHighBytes = uint64_t{1} << 42;
constexpr uint32_t kWindows = 15;
static_assert(kLowBase + kWindows * kLowBytes <= uint64_t{1} << 40);
constexpr uint64_t kSharedWindow = 0x7294'0000'0000, kLocalWindow = 0x7293'0000'0000;
static_assert(kHighBase + kWindows * kHighBytes <= kLocalWindow);

memory::AddressWindows& windows() {
  static memory::AddressWindows of_process(kWindows);
  return of_process;
}

Status at(UpperStage stage, Status status) {
  if (!status) return tl::unexpected(at_stage(stage, std::move(status.error())));
  return status;
}

}  // namespace

/// Address on the GPU and in the process have nothing to do with each other: the view is at an
/// offset of its own.
class GspMemory final : public Memory {
 public:
  explicit GspMemory(GspGpu& gpu) : gpu_(gpu) {}
  ~GspMemory() override {
    for (GspGpu* const peer : peers) peer->drop_peer(va);
    if (is_moved_) gpu_.path_->places().remove(va);
    bool is_in_use = handle != 0 && gpu_.transport_->delist(handle);
    if (is_mapped_) {
      if (const Status gone = gpu_.space_->unmap(va, size); !gone) {
        log("nv", LogLevel::kWarning, "unmapping {} bytes at {:#x}: {}", size, va,
            gone.error().message);
        is_in_use = true;
      } else {
        gpu_.space_->free(va);
      }
    }
    if (is_in_use) gpu_.memory_->keep(std::move(*block_));
  }
  Status make(const MemoryRequest& request) {
    const bool is_host = request.host != nullptr;
    domain = is_host ? MemoryDomain::kSystem : request.domain;
    const bool is_seen = domain != MemoryDomain::kVideo;
    CardMemory& memory = *gpu_.memory_;
    if (is_host && gpu_.path_)
      return fail(Code::kUnsupported,
                  "{} bytes at {}: the card reaches no memory of this process through its server; "
                  "copy into a buffer of the device instead",
                  request.size, request.host);
    const bool is_moved = gpu_.path_ && is_system(domain);
    if (is_host)
      block_ = BM_TRY(memory.pin(request.host, request.size));
    else if (is_system(domain) && !is_moved)
      block_ = BM_TRY(memory.take_system(request.size, request.is_contiguous));
    else
      block_ = BM_TRY(memory.take_video(request.size,
                                        request.size >= kLargePage ? kLargePage : kPage, is_seen));
    size = block_->bytes();
    if (is_seen) view = block_->view();
    if (is_seen && view.size() == 0)
      return fail(Code::kOutOfMemory,
                  "{} bytes that the host sees: BAR1 shows {} MiB of video memory, all taken", size,
                  memory.window().visible_bytes() >> 20);
    const uint64_t alignment = size >= kLargePage ? kLargePage : 64_KiB;
    const uint64_t address = BM_TRY(gpu_.space_->allocate(is_seen ? kLow : kHigh, size, alignment));
    if (Status mapped = gpu_.space_->map(address, block_->ranges(), attributes_of(*block_));
        !mapped) {
      gpu_.space_->free(address);
      return mapped;
    }
    va = address;
    is_mapped_ = true;
    is_moved_ = is_moved;
    if (is_moved) gpu_.path_->places().add(va, block_->address(), size);
    handle = gpu_.transport_->enlist(*block_);
    return {};
  }

  /// Video memory that may hold what another process has left.
  bool is_foreign() const {
    return !block_->is_system() && !gpu_.memory_->video().is_cleared(block_->address(), size);
  }
  void note_cleared() { gpu_.memory_->video().note_cleared(block_->address(), size); }

  std::vector<GspGpu*> peers;  ///< that have mapped it, too

 private:
  GspGpu& gpu_;
  std::optional<Block> block_;
  bool is_mapped_ = false;
  bool is_moved_ = false;  ///< system memory that is video memory: see BarPath
};

Result<std::unique_ptr<GspGpu>> GspGpu::open(std::unique_ptr<RunningCard> card) {
  std::unique_ptr<GspGpu> gpu(new GspGpu(std::move(card)));
  BM_TRY(gpu->start());
  return gpu;
}

Status GspGpu::start() {
  BM_TRY(at(UpperStage::kStaticInfo, read_card()));
  BM_TRY(at(UpperStage::kMemory, start_memory()));
  BM_TRY(at(UpperStage::kGolden, make_golden()));
  return at(UpperStage::kObjects, open_objects());
}

Status GspGpu::read_card() {
  row_ = BM_TRY(find_card_row(card_->chip()));
  calls_ = BM_TRY(RmCalls::create(card_->rpc()));
  info_ = BM_TRY(calls_->read_static_info());
  engines_ = BM_TRY(calls_->read_engines(info_));
  method_buffer_bytes_ = BM_TRY(calls_->read_method_buffer_bytes(info_));
  return {};
}

Status GspGpu::start_memory() {
  PciFunction& function = card_->function();
  const HostView bar1 = BM_TRY(function.map_bar_memory(1, true));
  uint64_t end = 0;
  for (const VideoRegion& region : info_.regions) end = std::max(end, region.base + region.bytes);
  VideoWindow window = BM_TRY(VideoWindow::open(card_->registers(), bar1, end, row_->window));
  VideoMemory video = BM_TRY(VideoMemory::create(info_.regions, window.visible_bytes()));
  memory_ =
      BM_TRY(CardMemory::create(function, card_->iovas(), std::move(window), std::move(video)));
  if (const VideoWindow& seen = memory_->window(); !function.dma_limits().reaches_host)
    path_.emplace(seen.view(0, seen.visible_bytes()));
  mmu_ = std::make_unique<Mmu>(card_->registers(), *memory_, row_->page_tables());
  window_ = BM_TRY(windows().take());
  const AddressSpace::Window windows[] = {{kLowBase + *window_ * kLowBytes, kLowBytes},
                                          {kHighBase + *window_ * kHighBytes, kHighBytes}};
  space_ = BM_TRY(AddressSpace::create(*mmu_, windows));
  return {};
}

Status GspGpu::make_golden() {
  constexpr uint32_t kClient = 0xc1d0ffff;
  golden_ = BM_TRY(GoldenContext::make(*calls_, *memory_, *mmu_, numbers_,
                                       {.info = &info_,
                                        .method_buffer_bytes = method_buffer_bytes_,
                                        .channel_class = row_->classes[1],
                                        .compute_class = row_->classes[2]},
                                       kClient));
  return {};
}

Status GspGpu::open_objects() {
  const HostView registers = BM_TRY(card_->function().map_bar_memory(0, false));
  const HostView usermode = BM_TRY(registers.window(kUsermode, kUsermodeBytes));
  const std::string address = to_string(card_->function().identity().address);
  transport_ = BM_TRY(GspTransport::create({.calls = &*calls_,
                                            .memory = memory_.get(),
                                            .numbers = &numbers_,
                                            .space = space_.get(),
                                            .context_window = kHigh,
                                            .golden = &*golden_,
                                            .info = &info_,
                                            .row = row_,
                                            .engines = engines_,
                                            .method_buffer_bytes = method_buffer_bytes_,
                                            .usermode = usermode,
                                            .card = address}));
  client_ = BM_TRY(RmClient::create(*transport_));
  const PciIdentity& identity = card_->function().identity();
  device_ = std::make_unique<RmDevice>(
      *client_, RmGpuId{.gpu = 1,
                        .text = fmt::format("GPU {:04x}:{:04x} at {}", identity.vendor,
                                            identity.device, address),
                        .least_video_memory = memory_->video().bytes()});
  BM_TRY(device_->open_objects());
  BM_TRY(device_->map_usermode());
  constexpr uint64_t kDoorbell = 0x90;
  // As a register, not through the page's view: behind a socket stores to memory are collected.
  const Mmio page = BM_TRY(card_->registers().window(kUsermode, kUsermodeBytes));
  doorbell_ = BM_TRY(Doorbell<uint32_t>::at(page, kDoorbell));
  BM_TRY(device_->open_va_space());
  return device_->read_facts();
}

GspGpu::~GspGpu() {
  while (!peers_.empty()) drop_peer(peers_.begin()->first);
  abandoned_.clear();
  device_.reset();
  client_.reset();
  // Before anything that the card still knows of is freed: the transport has channels that could
  // not be, and their memory.
  if (const Status down = card_->shut_down(); !down)
    log("nv", LogLevel::kWarning, "{}", down.error().message);
  transport_.reset();
  golden_.reset();
  space_.reset();
  if (window_) windows().give_back(*window_);
  mmu_.reset();
  memory_.reset();
}

Result<std::unique_ptr<Memory>> GspGpu::allocate(const MemoryRequest& request) {
  if (request.size == 0 || request.size > kMost)
    return fail(Code::kInvalidArgument, "{} bytes of GPU memory asked for", request.size);
  auto memory = std::make_unique<GspMemory>(*this);
  BM_TRY(memory->make(request));
  if (!clear_ || !memory->is_foreign()) return std::unique_ptr<Memory>(std::move(memory));
  if (Status cleared = clear_(memory->va, memory->size); !cleared) {
    // A fault at what is unmapped under the engine would hide why it did not end.
    abandoned_.push_back(std::move(memory));
    return tl::unexpected(std::move(cleared.error()));
  }
  memory->note_cleared();
  return std::unique_ptr<Memory>(std::move(memory));
}

Result<std::shared_ptr<Memory>> GspGpu::map_peer(Memory& memory, hcq::DriverInterface& owner) {
  auto* const theirs = dynamic_cast<GspMemory*>(&memory);
  if (theirs == nullptr || dynamic_cast<GspGpu*>(&owner) == nullptr)
    return fail(Code::kUnsupported, "memory of a GPU of another driver");
  if (!is_system(memory.domain) || memory.host() == nullptr)
    return fail(Code::kUnsupported,
                "cards without a kernel driver reach each other's system memory only");
  if (peers_.contains(memory.va)) return std::shared_ptr<Memory>();
  Block block = BM_TRY(memory_->pin(memory.host(), memory.size));
  BM_TRY(space_->map(memory.va, block.ranges(), attributes_of(block)));
  peers_.emplace(memory.va, Peer{std::move(block), memory.size});
  theirs->peers.push_back(this);
  return std::shared_ptr<Memory>();
}

void GspGpu::drop_peer(uint64_t va) {
  const auto at = peers_.find(va);
  if (at == peers_.end()) return;
  static_cast<void>(space_->unmap(va, at->second.bytes));
  peers_.erase(at);
}

Result<std::unique_ptr<Channel>> GspGpu::create_channel(const ChannelRequest& request) {
  auto channel = RmChannel::create(*device_, *this, request);
  if (!channel) return tl::unexpected(at_stage(UpperStage::kObjects, std::move(channel.error())));
  return channel;
}

FaultDetails GspGpu::fault_details(Channel& channel) {
  auto& mine = static_cast<RmChannel&>(channel);
  FaultDetails details = read_fault_details(*device_, mine);
  const std::optional<ChannelFault> fault = transport_->fault_of(mine.handle());
  if (details.mmu.empty() && fault && fault->is_mmu_fault())
    details.mmu.push_back(mmu_details(*fault));
  return details;
}

Result<int> GspGpu::event_fd(Channel& channel) {
  return static_cast<RmChannel&>(channel).event_fd();
}

Result<bool> GspGpu::wait_event(Channel& channel, int timeout_ms) {
  return static_cast<RmChannel&>(channel).wait(timeout_ms);
}

uint64_t GspGpu::shared_window() const { return kSharedWindow; }
uint64_t GspGpu::local_window() const { return kLocalWindow; }

Status GspGpu::add_channel(uint32_t, bool) { return {}; }
Status GspGpu::remove_channel(uint32_t) { return {}; }

}  // namespace bm::nv::gsp
