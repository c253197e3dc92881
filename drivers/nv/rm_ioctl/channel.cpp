#include "drivers/nv/rm_ioctl/channel.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::nv {
namespace {

// nvos.h: NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC.
constexpr uint64_t kAsync = 1;
// clb0b5sw.h: NVB0B5_ALLOCATION_PARAMETERS_VERSION_1, the engine is named by its type.
constexpr uint64_t kByEngineType = 1;
// Room for the buffers of one graphics context. Only addresses; UVM places them, and refuses the
// channel when they do not fit.
constexpr uint64_t kContextWindow = 256_MiB, kCopyWindow = 2_MiB;

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
std::vector<uint32_t> engines_for(const RmGpu& gpu, const ChannelRequest& request) {
  if (request.engine == Engine::kCompute) return {abi::kEngineGraphics};
  std::vector<uint32_t> engines = gpu.copy_engines();
  if (!engines.empty())
    std::rotate(engines.begin(), engines.begin() + request.copy_index % engines.size(),
                engines.end());
  // Copies work on the graphics engine's own copy engine too, then without a runlist of their own.
  engines.push_back(abi::kEngineGraphics);
  return engines;
}

}  // namespace

Result<std::unique_ptr<Channel>> RmGpu::create_channel(const ChannelRequest& request) {
  return RmChannel::create(*this, request);
}

Result<std::unique_ptr<Channel>> RmChannel::create(RmGpu& gpu, const ChannelRequest& request) {
  BM_TRY(check(request));
  Error first;
  for (const uint32_t engine : engines_for(gpu, request)) {
    std::unique_ptr<RmChannel> channel(new RmChannel(gpu));
    Status made = channel->make(request, engine);
    if (made) return std::unique_ptr<Channel>(std::move(channel));
    log("nv", LogLevel::kInfo, "no channel on engine {}: {}", engine, made.error().message);
    if (first.message.empty()) first = std::move(made.error());
  }
  return tl::unexpected(std::move(first));
}

Status RmChannel::make(const ChannelRequest& request, uint32_t engine) {
  notifier_ = BM_TRY(NotifierPage::create(gpu_));
  error = reinterpret_cast<volatile const ErrorNotifier*>(notifier_->data());
  BM_TRY(make_group(engine));
  BM_TRY(make_channel(request, engine));
  BM_TRY(make_engine_object(request, engine));
  const uint64_t bytes = engine == abi::kEngineGraphics ? kContextWindow : kCopyWindow;
  window_ = BM_TRY(gpu_.session().addresses().take_low(bytes, kCopyWindow));
  BM_TRY(gpu_.session().uvm().register_channel(gpu_.uuid(), channel_.handle(), window_, bytes));
  is_registered_ = true;
  return start();
}

Status RmChannel::make_group(uint32_t engine) {
  RmClient& rm = gpu_.client();
  abi::Params<abi::ChannelGroupAlloc> group(rm.abi());
  group.set(abi::ChannelGroupAlloc::engineType, engine);
  // Asynchronous subcontexts are for the graphics engine alone (kernel_fifo_gp102.c,
  // kfifoValidateEngineAndSubctxType_GP102): a copy channel takes its group's address space.
  const bool is_graphics = engine == abi::kEngineGraphics;
  if (!is_graphics) group.set(abi::ChannelGroupAlloc::hVASpace, gpu_.va_space());
  group_ = BM_TRY(rm.allocate(Stage::kGroup, gpu_.device(), abi::kClassChannelGroup, &group));
  if (!is_graphics) return {};
  abi::Params<abi::ContextShareAlloc> share(rm.abi());
  share.set(abi::ContextShareAlloc::hVASpace, gpu_.va_space());
  share.set(abi::ContextShareAlloc::flags, kAsync);
  share_ =
      BM_TRY(rm.allocate(Stage::kContextShare, group_.handle(), abi::kClassContextShare, &share));
  return {};
}

Status RmChannel::make_channel(const ChannelRequest& request, uint32_t engine) {
  RmClient& rm = gpu_.client();
  using S = abi::ChannelAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::hObjectError, notifier_->handle());
  params.set(S::hObjectBuffer, request.ring->handle);
  params.set(S::gpFifoOffset, request.ring->va + request.ring_offset);
  params.set(S::gpFifoEntries, request.entries);
  params.set(S::hContextShare, share_.handle());
  params.set(S::hUserdMemory, request.ring->handle);
  params.set(S::userdOffset, request.userd_offset);
  // The graphics engine is what a group of it inherits.
  if (engine != abi::kEngineGraphics) params.set(S::engineType, engine);
  channel_ = BM_TRY(rm.allocate(Stage::kChannel, group_.handle(), gpu_.classes().channel, &params));
  return {};
}

Status RmChannel::make_engine_object(const ChannelRequest& request, uint32_t engine) {
  RmClient& rm = gpu_.client();
  if (request.engine == Engine::kCompute) {
    engine_class = gpu_.classes().compute;
    object_ = BM_TRY(rm.allocate(Stage::kEngine, channel_.handle(), engine_class));
    abi::Params<abi::DebuggerAlloc> params(rm.abi());
    params.set(abi::DebuggerAlloc::hAppClient, rm.root());
    params.set(abi::DebuggerAlloc::hClass3dObject, object_.handle());
    Result<RmObject> debugger =
        rm.allocate(Stage::kDebugger, gpu_.device(), abi::kClassDebugger, &params);
    if (debugger)
      debugger_ = std::move(*debugger);
    else
      log("nv", LogLevel::kInfo, "faults will lack details: {}", debugger.error().message);
    return {};
  }
  engine_class = gpu_.classes().copy;
  // To the unified memory module a channel on graphics' runlist is one of graphics, which has the
  // buffers it asks for only once an object of graphics or compute was made.
  if (engine == abi::kEngineGraphics)
    context_ = BM_TRY(rm.allocate(Stage::kEngine, channel_.handle(), gpu_.classes().compute));
  abi::Params<abi::CopyAlloc> params(rm.abi());
  params.set(abi::CopyAlloc::version, kByEngineType);
  params.set(abi::CopyAlloc::engineType, engine);
  // On a graphics channel the driver finds the copy engine of that channel by itself.
  object_ = BM_TRY(rm.allocate(Stage::kEngine, channel_.handle(), engine_class,
                               engine == abi::kEngineGraphics ? nullptr : &params));
  return {};
}

Status RmChannel::start() {
  RmClient& rm = gpu_.client();
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
  if (is_registered_)
    report(gpu_.session().uvm().unregister_channel(gpu_.uuid(), channel_.handle()));
  debugger_.reset();
  object_.reset();
  context_.reset();
  channel_.reset();
  share_.reset();
  group_.reset();
  if (window_ != 0) gpu_.session().addresses().give_back(window_);
}

Status RmChannel::open_event() {
  RmClient& rm = gpu_.client();
  DeviceFile file = BM_TRY(rm.open_device(gpu_.card()));
  abi::Params<abi::AllocOsEvent> os(rm.abi());
  os.set(abi::AllocOsEvent::hClient, rm.root());
  os.set(abi::AllocOsEvent::hDevice, gpu_.device());
  os.set(abi::AllocOsEvent::fd, static_cast<uint64_t>(file.get()));
  BM_TRY(rm.escape(Stage::kEvent, file.get(), abi::kEscAllocOsEvent, "ALLOC_OS_EVENT", os));
  if (const uint64_t status = os.get(abi::AllocOsEvent::Status); status != kStatusOk)
    return tl::unexpected(
        status_error(Stage::kEvent, "ALLOC_OS_EVENT", static_cast<uint32_t>(status)));
  using S = abi::EventAlloc;
  abi::Params<S> params(rm.abi());
  params.set(S::hParentClient, rm.root());
  params.set(S::hSrcResource, gpu_.subdevice());
  params.set(S::hClass, abi::kClassOsEvent);
  params.set(S::notifyIndex, abi::kNotifierFifoEvent | kNonStall | kWithoutData);
  params.set(S::data, static_cast<uint64_t>(file.get()));
  RmObject event =
      BM_TRY(rm.allocate(Stage::kEvent, gpu_.subdevice(), abi::kClassOsEvent, &params));
  abi::Params<abi::EventNotification> notify(rm.abi());
  notify.set(abi::EventNotification::event, abi::kNotifierFifoEvent);
  notify.set(abi::EventNotification::action, kRepeat);
  BM_TRY(rm.control(Stage::kEvent, gpu_.subdevice(), abi::kCtrlEventNotification,
                    "EVENT_SET_NOTIFICATION", notify));
  event_file_ = std::move(file);
  event_ = std::move(event);
  return {};
}

Result<int> RmChannel::event_fd() {
  if (event_file_.get() >= 0) return event_file_.get();
  const Status opened = open_event();
  if (!opened) return fail(Code::kUnsupported, "{}", opened.error().message);
  return event_file_.get();
}

Result<bool> RmChannel::wait(int timeout_ms) {
  pollfd waited = {.fd = BM_TRY(event_fd()), .events = POLLIN | POLLPRI, .revents = 0};
  // Polling a node of the driver also takes the event.
  const int ready = gpu_.session().system().poll(&waited, 1, timeout_ms);
  if (ready < 0 && ready != -EINTR)
    return tl::unexpected(errno_error(Stage::kEvent, "poll", -ready));
  if (ready > 0 && (waited.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0 &&
      (waited.revents & (POLLIN | POLLPRI)) == 0)
    return fail(Code::kDeviceLost, "stage 35 (event): {} is gone (poll events {:#x})",
                gpu_.facts().name, waited.revents);
  return ready > 0;
}

Result<int> RmGpu::event_fd(Channel& channel) {
  return static_cast<RmChannel&>(channel).event_fd();
}

Result<bool> RmGpu::wait_event(Channel& channel, int timeout_ms) {
  return static_cast<RmChannel&>(channel).wait(timeout_ms);
}

}  // namespace bm::nv
