#include "drivers/nv/rm/channel.h"

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::nv {
namespace {

// nvos.h: NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC.
constexpr uint64_t kAsync = 1;
// clb0b5sw.h: NVB0B5_ALLOCATION_PARAMETERS_VERSION_1, the engine is named by its type.
constexpr uint64_t kByEngineType = 1;

// nvos.h, NVOS32_*: what NV_MEMORY_ALLOCATION_PARAMS wants to know of a notifier: scattered system
// memory, handle chosen by the caller, no mapping by the call itself.
constexpr uint64_t kTypeNotifier = 4, kFormat = 6;
constexpr uint64_t kNotifierFlags = 0x8000 | 0x4000 | 0x100 | 0x1;
constexpr uint64_t kScatteredSystem = 3ull << 27 | 1ull << 25, kGpuUncached = 2ull << 2;
constexpr uint64_t kNotifierBytes = 4096;

// nvos.h: NV01_EVENT_NONSTALL_INTR, NV01_EVENT_WITHOUT_EVENT_DATA.
constexpr uint64_t kNonStall = 0x0800'0000, kWithoutData = 0x1000'0000;
// ctrl2080event.h: NV2080_CTRL_EVENT_SET_NOTIFICATION_ACTION_REPEAT.
constexpr uint64_t kRepeat = 2;

void report(const Status& status) {
  if (!status) log("nv", LogLevel::kWarning, "{}", status.error().message);
}

Status check(const ChannelRequest& request) {
  const Memory* const ring = request.ring;
  const uint64_t ring_bytes = uint64_t{request.entries} * 8;
  if (ring == nullptr || !is_power_of_two(request.entries) ||
      !is_aligned(request.userd_offset, 512) || request.ring_offset + ring_bytes > ring->size ||
      request.userd_offset + 512 > ring->size)
    return fail(Code::kInvalidArgument,
                "stage 26 (channel): {} entries at {:#x} and USERD at {:#x} of a ring memory of {} "
                "bytes",
                request.entries, request.ring_offset, request.userd_offset,
                ring == nullptr ? 0 : ring->size);
  return {};
}

/// Engines to try for a channel, best first.
std::vector<uint32_t> engines_for(const RmDevice& device, const ChannelRequest& request) {
  if (request.engine == Engine::kCompute) return {abi::kEngineGraphics};
  std::vector<uint32_t> engines = device.copy_engines();
  if (!engines.empty())
    std::rotate(engines.begin(), engines.begin() + request.copy_index % engines.size(),
                engines.end());
  // Copies work on the graphics engine's own copy engine too, then without a runlist of their own.
  engines.push_back(abi::kEngineGraphics);
  return engines;
}

}  // namespace

Result<std::unique_ptr<Channel>> RmChannel::create(RmDevice& device, RmAddressSpace& space,
                                                   const ChannelRequest& request) {
  BM_TRY(check(request));
  Error first;
  for (const uint32_t engine : engines_for(device, request)) {
    std::unique_ptr<RmChannel> channel(new RmChannel(device, space));
    Status made = channel->make(request, engine);
    if (made) return std::unique_ptr<Channel>(std::move(channel));
    log("nv", LogLevel::kInfo, "no channel on engine {}: {}", engine, made.error().message);
    if (first.message.empty()) first = std::move(made.error());
  }
  return tl::unexpected(std::move(first));
}

Status RmChannel::make(const ChannelRequest& request, uint32_t engine) {
  BM_TRY(make_notifier());
  BM_TRY(make_group(engine));
  BM_TRY(make_channel(request, engine));
  BM_TRY(make_engine_object(request, engine));
  BM_TRY(space_.add_channel(channel_.handle(), engine == abi::kEngineGraphics));
  is_in_space_ = true;
  return start();
}

Status RmChannel::make_notifier() {
  RmClient& rm = device_.client();
  using S = abi::MemoryAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::owner, rm.root());
  params.set(S::type, kTypeNotifier);
  params.set(S::flags, kNotifierFlags);
  params.set(S::attr, kScatteredSystem);
  params.set(S::attr2, kGpuUncached);
  params.set(S::format, kFormat);
  params.set(S::size, kNotifierBytes);
  params.set(S::alignment, kNotifierBytes);
  params.set(S::limit, kNotifierBytes - 1);
  notifier_ =
      BM_TRY(rm.allocate(Stage::kMemory, device_.device(), abi::kClassSystemMemory, &params));
  notifier_page_ = BM_TRY(rm.transport().map(Stage::kMap, {.client = rm.root(),
                                                           .device = device_.device(),
                                                           .memory = notifier_.handle(),
                                                           .bytes = kNotifierBytes,
                                                           .what = "the error notifier"}));
  notifier = notifier_page_->view().slice(0, sizeof(ErrorNotifier));
  notifier.fill(0, notifier.size(), std::byte{0});
  needs_look = rm.transport().has_events();
  return {};
}

Status RmChannel::make_group(uint32_t engine) {
  RmClient& rm = device_.client();
  abi::Params<abi::ChannelGroupAlloc> group(rm.abi());
  group.set(abi::ChannelGroupAlloc::engineType, engine);
  // Asynchronous subcontexts are for the graphics engine alone (kernel_fifo_gp102.c,
  // kfifoValidateEngineAndSubctxType_GP102): a copy channel takes its group's address space.
  const bool is_graphics = engine == abi::kEngineGraphics;
  if (!is_graphics) group.set(abi::ChannelGroupAlloc::hVASpace, device_.va_space());
  group_ = BM_TRY(rm.allocate(Stage::kGroup, device_.device(), abi::kClassChannelGroup, &group));
  if (!is_graphics) return {};
  abi::Params<abi::ContextShareAlloc> share(rm.abi());
  share.set(abi::ContextShareAlloc::hVASpace, device_.va_space());
  share.set(abi::ContextShareAlloc::flags, kAsync);
  share_ =
      BM_TRY(rm.allocate(Stage::kContextShare, group_.handle(), abi::kClassContextShare, &share));
  return {};
}

Status RmChannel::make_channel(const ChannelRequest& request, uint32_t engine) {
  RmClient& rm = device_.client();
  using S = abi::ChannelAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::hObjectError, notifier_.handle());
  params.set(S::hObjectBuffer, request.ring->handle);
  params.set(S::gpFifoOffset, request.ring->va + request.ring_offset);
  params.set(S::gpFifoEntries, request.entries);
  params.set(S::hContextShare, share_.handle());
  params.set(S::hUserdMemory, request.ring->handle);
  params.set(S::userdOffset, request.userd_offset);
  // The graphics engine is what a group of it inherits.
  if (engine != abi::kEngineGraphics) params.set(S::engineType, engine);
  channel_ =
      BM_TRY(rm.allocate(Stage::kChannel, group_.handle(), device_.classes().channel, &params));
  return {};
}

Status RmChannel::make_engine_object(const ChannelRequest& request, uint32_t engine) {
  RmClient& rm = device_.client();
  if (request.engine == Engine::kCompute) {
    engine_class = device_.classes().compute;
    object_ = BM_TRY(rm.allocate(Stage::kEngine, channel_.handle(), engine_class));
    abi::Params<abi::DebuggerAlloc> params(rm.abi());
    params.set(abi::DebuggerAlloc::hAppClient, rm.root());
    params.set(abi::DebuggerAlloc::hClass3dObject, object_.handle());
    Result<RmObject> debugger =
        rm.allocate(Stage::kDebugger, device_.device(), abi::kClassDebugger, &params);
    if (debugger)
      debugger_ = std::move(*debugger);
    else
      log("nv", LogLevel::kInfo, "faults will lack details: {}", debugger.error().message);
    return {};
  }
  engine_class = device_.classes().copy;
  // To the unified memory module a channel on graphics' runlist is one of graphics, which has the
  // buffers it asks for only once an object of graphics or compute was made.
  if (engine == abi::kEngineGraphics)
    context_ = BM_TRY(rm.allocate(Stage::kEngine, channel_.handle(), device_.classes().compute));
  abi::Params<abi::CopyAlloc> params(rm.abi());
  params.set(abi::CopyAlloc::version, kByEngineType);
  params.set(abi::CopyAlloc::engineType, engine);
  // On a graphics channel the driver finds the copy engine of that channel by itself.
  object_ = BM_TRY(rm.allocate(Stage::kEngine, channel_.handle(), engine_class,
                               engine == abi::kEngineGraphics ? nullptr : &params));
  return {};
}

Status RmChannel::start() {
  RmClient& rm = device_.client();
  abi::Params<abi::WorkSubmitToken> ask(rm.abi());
  ask.set(abi::WorkSubmitToken::workSubmitToken, UINT32_MAX);
  BM_TRY(rm.control(Stage::kToken, channel_.handle(), abi::kCtrlWorkSubmitToken,
                    "GPFIFO_GET_WORK_SUBMIT_TOKEN", ask));
  token = static_cast<uint32_t>(ask.get(abi::WorkSubmitToken::workSubmitToken));
  abi::Params<abi::GroupSchedule> schedule(rm.abi());
  schedule.set(abi::GroupSchedule::bEnable, 1);
  return rm.control(Stage::kSchedule, group_.handle(), abi::kCtrlGroupSchedule, "GPFIFO_SCHEDULE",
                    schedule);
}

RmChannel::~RmChannel() {
  event_.reset();
  if (is_in_space_) report(space_.remove_channel(channel_.handle()));
  debugger_.reset();
  object_.reset();
  context_.reset();
  channel_.reset();
  share_.reset();
  group_.reset();
  notifier_.reset();
}

Status RmChannel::open_event() {
  RmClient& rm = device_.client();
  std::unique_ptr<RmEvent> arrivals =
      BM_TRY(rm.transport().open_event(device_.id().gpu, rm.root(), device_.device()));
  using S = abi::EventAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::hParentClient, rm.root());
  params.set(S::hSrcResource, device_.subdevice());
  params.set(S::hClass, abi::kClassOsEvent);
  params.set(S::notifyIndex, abi::kNotifierFifoEvent | kNonStall | kWithoutData);
  params.set(S::data, arrivals->data());
  RmObject event =
      BM_TRY(rm.allocate(Stage::kEvent, device_.subdevice(), abi::kClassOsEvent, &params));
  abi::Params<abi::EventNotification> notify(rm.abi());
  notify.set(abi::EventNotification::event, abi::kNotifierFifoEvent);
  notify.set(abi::EventNotification::action, kRepeat);
  BM_TRY(rm.control(Stage::kEvent, device_.subdevice(), abi::kCtrlEventNotification,
                    "EVENT_SET_NOTIFICATION", notify));
  arrivals_ = std::move(arrivals);
  event_ = std::move(event);
  return {};
}

Result<int> RmChannel::event_fd() {
  if (arrivals_ == nullptr)
    if (const Status opened = open_event(); !opened)
      return fail(Code::kUnsupported, "{}", opened.error().message);
  return arrivals_->fd();
}

Result<bool> RmChannel::wait(int timeout_ms) {
  BM_TRY(event_fd());
  return arrivals_->wait(timeout_ms, device_.facts().name);
}

}  // namespace bm::nv
