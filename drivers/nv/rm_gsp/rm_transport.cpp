#include "drivers/nv/rm_gsp/rm_transport.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::nv::gsp {
namespace {

constexpr uint32_t kNotSupported = 0x56, kObjectNotFound = 0x57, kNoMemory = 0x51;
constexpr uint64_t kPage = 4096;
constexpr uint32_t kNumberMask = 0xfff;  // of a token: NV_VIRTUAL_FUNCTION_DOORBELL_VECTOR
// open-gpu-doc, clc361.h and later usermode classes.
constexpr uint64_t kClockLow = 0x80, kClockHigh = 0x84;
constexpr uint64_t kUserdBytes = 512;
constexpr size_t kLogLines = 32;
constexpr uint16_t kIsError = 0xffff;
// Xid 119 and 120: "GSP RPC timeout", "GSP error"; 79: "fallen off the bus".
constexpr uint32_t kGspSilent = 119, kGspError = 120, kCardGone = 79;
constexpr uint32_t kCopyIsGraphics = 1;  // NV2080_CTRL_CE_CAPS_CE_GRCE: byte 0, bit 0
constexpr uint32_t kFbTotalKib = 8;      // NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE
// How often waits look at the queue of the GSP: far more often than people notice, far less often
// than it costs.
constexpr uint64_t kPollEveryUs = 500;

struct Indexed {
  uint32_t index, data;
};

// What ends the names of classes of a kind, whatever their generation.
constexpr uint32_t kKindMask = 0xff, kUsermode = 0x61, kGpfifo = 0x6f, kCompute = 0xc0;
bool is_kind(uint32_t object_class, uint32_t kind) {
  return object_class > kKindMask && (object_class & kKindMask) == kind;
}
bool is_channel_class(uint32_t object_class) {
  return is_kind(object_class, kGpfifo) && object_class >= 0xc000;
}

template <class S>
abi::Params<S>& as(abi::AnyParams& params) {
  BM_CHECK(params.id() == S::kId);
  return static_cast<abi::Params<S>&>(params);
}

/// Bytes a call points to, as values.
template <class T>
size_t copy_to(std::span<std::byte> pointed, std::span<const T> values) {
  const size_t count = std::min(values.size(), pointed.size() / sizeof(T));
  if (count != 0) std::memcpy(pointed.data(), values.data(), count * sizeof(T));
  return count;
}

class ViewMapping final : public RmMapping {
 public:
  explicit ViewMapping(const HostView& view) { view_ = view; }
};

uint64_t now_us() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

Result<std::unique_ptr<GspTransport>> GspTransport::create(TransportParts parts) {
  std::unique_ptr<GspTransport> transport(new GspTransport(std::move(parts)));
  BM_TRY(transport->read_gr_info());
  transport->parts_.calls->rpc().set_sink(transport.get());
  return transport;
}

GspTransport::~GspTransport() { parts_.calls->rpc().set_sink(nullptr); }

Status GspTransport::read_gr_info() {
  using S = abi::StaticGrInfo;
  // The first engine's part begins the answer: room behind the structure takes the rest.
  abi::Params<S> params(abi());
  const uint32_t bytes = abi().layout(abi::StaticGrInfoAll::kId).size;
  BM_TRY(parts_.calls->must_control("STATIC_KGR_GET_INFO", {.client = parts_.info->client,
                                                            .object = parts_.info->subdevice,
                                                            .command = abi::kCtrlStaticGrInfo,
                                                            .params = &params,
                                                            .bytes = bytes}));
  const uint32_t count = abi().layout(S::kId).fields[S::infoList_data].count;
  // A list by index; an entry that names another index is believed.
  for (uint32_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint32_t>(params.get(S::infoList_index, i));
    const auto data = static_cast<uint32_t>(params.get(S::infoList_data, i));
    gr_info_[index != 0 ? index : i] = data;
  }
  return {};
}

uint32_t GspTransport::gr_info(uint32_t index) const {
  const auto found = gr_info_.find(index);
  return found == gr_info_.end() ? 0 : found->second;
}

std::optional<uint32_t> GspTransport::runlist_of(uint32_t engine) const {
  const auto found = std::ranges::find(parts_.engines, engine, &RunlistEngine::type);
  if (found == parts_.engines.end()) return std::nullopt;
  return found->runlist;
}

uint32_t GspTransport::enlist(const Block& block) {
  const std::lock_guard lock(mutex_);
  const uint32_t handle = take_handle();
  memory_.emplace(handle, &block);
  return handle;
}

bool GspTransport::delist(uint32_t handle) {
  const std::lock_guard lock(mutex_);
  memory_.erase(handle);
  return is_named(handle);
}

bool GspTransport::is_named(uint32_t memory) const {
  return std::ranges::any_of(channels_, [&](const auto& entry) {
    return entry.second.userd == memory || entry.second.error == memory;
  });
}

// --- Allocation

Result<RmAnswer> GspTransport::alloc(Stage, std::string_view what, const RmAllocCall& call) {
  const std::lock_guard lock(mutex_);
  if (call.client == 0) return alloc_client();
  if (call.object_class == abi::kClassSystemMemory) return alloc_memory();
  if (is_kind(call.object_class, kUsermode)) {
    const uint32_t handle = take_handle();
    objects_[handle] = {.parent = call.parent, .object_class = call.object_class, .is_local = true};
    return RmAnswer{.status = kStatusOk, .handle = handle};
  }
  if (call.object_class == abi::kClassOsEvent) return RmAnswer{.status = kNotSupported};
  if (is_channel_class(call.object_class)) return alloc_channel(what, call);
  if (is_kind(call.object_class, kCompute)) {
    // Before the object: the resource manager copies the golden context when it makes that.
    const auto channel = channels_.find(call.parent);
    if (channel != channels_.end() && !channel->second.has_context) {
      const uint32_t status = BM_TRY(promote(call.client, call.parent, channel->second));
      if (status != kStatusOk) return RmAnswer{.status = status};
    }
  }
  return alloc_forwarded(what, call);
}

Result<RmAnswer> GspTransport::alloc_client() {
  const uint32_t handle = next_client_++;
  abi::Params<abi::ClientAlloc> params(abi());
  params.set(abi::ClientAlloc::hClient, handle);
  const uint32_t status =
      BM_TRY(parts_.calls->alloc("GSP_RM_ALLOC of a client", {.client = handle,
                                                              .object = handle,
                                                              .object_class = abi::kClassRoot,
                                                              .params = &params,
                                                              .bytes = params.size()}));
  return RmAnswer{.status = status, .handle = handle};
}

/// System memory is this process's; what the GSP is told of it are addresses.
Result<RmAnswer> GspTransport::alloc_memory() {
  Result<Block> block = parts_.memory->take_system(kPage, true);
  if (!block && block.error().code == Code::kOutOfMemory) return RmAnswer{.status = kNoMemory};
  const uint32_t handle = take_handle();
  Object& object = objects_[handle];
  object = {.object_class = abi::kClassSystemMemory, .is_local = true};
  object.block = BM_TRY(std::move(block));
  memory_.emplace(handle, &*object.block);
  return RmAnswer{.status = kStatusOk, .handle = handle};
}

Result<RmAnswer> GspTransport::alloc_forwarded(std::string_view what, const RmAllocCall& call) {
  const uint32_t handle = take_handle();
  const uint32_t status = BM_TRY(
      parts_.calls->alloc(what, {.client = call.client,
                                 .parent = call.parent,
                                 .object = handle,
                                 .object_class = call.object_class,
                                 .params = call.params,
                                 .bytes = call.params == nullptr ? 0 : call.params->size()}));
  if (status != kStatusOk) return RmAnswer{.status = status};
  Object object{.parent = call.parent, .object_class = call.object_class};
  if (call.object_class == abi::kClassSubdevice) subdevice_ = handle;
  if (call.object_class == abi::kClassChannelGroup)
    object.engine = static_cast<uint32_t>(
        as<abi::ChannelGroupAlloc>(*call.params).get(abi::ChannelGroupAlloc::engineType));
  objects_[handle] = std::move(object);
  if (call.object_class == abi::kClassVaSpace)
    BM_TRY(parts_.calls->set_page_directory(call.client, call.parent, handle, parts_.space->root(),
                                            parts_.space->root_entries()));
  return RmAnswer{.status = kStatusOk, .handle = handle};
}

Result<RmAnswer> GspTransport::alloc_channel(std::string_view what, const RmAllocCall& call) {
  using S = abi::ChannelAlloc;
  abi::Params<S>& params = as<S>(*call.params);
  const auto group = objects_.find(call.parent);
  const auto userd = memory_.find(static_cast<uint32_t>(params.get(S::hUserdMemory)));
  if (group == objects_.end() || userd == memory_.end()) return RmAnswer{.status = kObjectNotFound};
  const auto wanted = static_cast<uint32_t>(params.get(S::engineType));
  const uint32_t engine = wanted != 0 ? wanted : group->second.engine;
  const std::optional<uint32_t> runlist = runlist_of(engine);
  if (!runlist) return RmAnswer{.status = kObjectNotFound};
  const auto notifier = memory_.find(static_cast<uint32_t>(params.get(S::hObjectError)));

  ChannelMemory memory = BM_TRY(ChannelMemory::take(*parts_.memory, parts_.method_buffer_bytes));
  const uint32_t number = BM_TRY(parts_.numbers->take());
  ChannelPlaces places{.number = number,
                       .userd = {userd->second->address() + params.get(S::userdOffset), kUserdBytes,
                                 userd->second->is_system()},
                       .notifier = {},
                       .privilege = ChannelPrivilege::kUser};
  HostView record;
  if (notifier != memory_.end()) {
    places.notifier = PhysicalPlace{notifier->second->address(), notifier->second->bytes(), true};
    record = notifier->second->view().slice(0, sizeof(ErrorNotifier));
  }
  describe_channel(params, memory, places);
  const uint32_t handle = next_handle_;
  Result<RmAnswer> answer = alloc_forwarded(what, call);
  if (answer && answer->status != kStatusOk) {
    parts_.numbers->give_back(number);
    return answer;
  }
  // Without an answer the GSP may have made it: then, too, the memory stays the channel's.
  channels_.emplace(handle, Channel{.number = number,
                                    .taken = number,
                                    .engine = engine,
                                    .runlist = *runlist,
                                    .userd = userd->first,
                                    .error = notifier != memory_.end() ? notifier->first : 0,
                                    .memory = std::move(memory),
                                    .context = {},
                                    .has_context = false,
                                    .notifier = record});
  return answer;
}

Result<uint32_t> GspTransport::promote(uint32_t client, uint32_t channel, Channel& state) {
  state.context = BM_TRY(ContextMemory::make(*parts_.memory, *parts_.space, parts_.context_window,
                                             parts_.golden->buffers(), &parts_.golden->memory()));
  abi::Params<abi::PromoteCtx> params(abi());
  state.context.describe(params, client, channel);
  const uint32_t status =
      BM_TRY(parts_.calls->control("GPU_PROMOTE_CTX", {.client = client,
                                                       .object = subdevice_,
                                                       .command = abi::kCtrlPromoteCtx,
                                                       .params = &params,
                                                       .bytes = params.size()}));
  state.has_context = status == kStatusOk;
  return status;
}

// --- Controls

Result<uint32_t> GspTransport::control(Stage, std::string_view what, const RmControlCall& call) {
  const std::lock_guard lock(mutex_);
  if (const std::optional<uint32_t> status = answer_locally(call)) return *status;
  if (call.command == abi::kCtrlWorkSubmitToken) return complete_token(what, call);
  if (call.command == abi::kCtrlCopyCaps) return copy_caps(what, call);
  // A pointer of this process is nothing to the GSP.
  if (!call.pointed.empty()) return kNotSupported;
  return parts_.calls->control(what, {.client = call.client,
                                      .object = call.object,
                                      .command = call.command,
                                      .params = call.params,
                                      .bytes = call.bytes});
}

std::optional<uint32_t> GspTransport::answer_locally(const RmControlCall& call) {
  abi::AnyParams& params = *call.params;
  switch (call.command) {
    case abi::kCtrlGpuIdInfo: return kStatusOk;  // one card: instances are 0
    case abi::kCtrlClassList: {
      auto& list = as<abi::ClassList>(params);
      const auto& classes = parts_.row->classes;
      copy_to(call.pointed, std::span<const uint32_t>(classes));
      list.set(abi::ClassList::numClasses, classes.size());
      return kStatusOk;
    }
    case abi::kCtrlGidInfo: {
      auto& gid = as<abi::GidInfo>(params);
      gid.set_bytes(abi::GidInfo::data, parts_.info->uuid);
      gid.set(abi::GidInfo::length, parts_.info->uuid.size());
      return kStatusOk;
    }
    case abi::kCtrlNameString: {
      const std::string& name = parts_.info->name;
      as<abi::NameString>(params).set_bytes(
          abi::NameString::gpuNameString_ascii,
          {reinterpret_cast<const uint8_t*>(name.data()), name.size()});
      return kStatusOk;
    }
    case abi::kCtrlGrInfo:
    case abi::kCtrlFbInfo: {
      std::vector<Indexed> list(call.pointed.size() / sizeof(Indexed));
      std::memcpy(list.data(), call.pointed.data(), list.size() * sizeof(Indexed));
      for (Indexed& entry : list) {
        if (call.command == abi::kCtrlGrInfo)
          entry.data = gr_info(entry.index);
        else
          entry.data = entry.index == kFbTotalKib
                           ? static_cast<uint32_t>(parts_.info->video_bytes >> 10)
                           : 0;
      }
      copy_to(call.pointed, std::span<const Indexed>(list));
      return kStatusOk;
    }
    case abi::kCtrlEngines: {
      std::vector<uint32_t> types;
      for (const RunlistEngine& engine : parts_.engines) types.push_back(engine.type);
      copy_to(call.pointed, std::span<const uint32_t>(types));
      as<abi::EngineList>(params).set(abi::EngineList::engineCount, types.size());
      return kStatusOk;
    }
    default: return std::nullopt;
  }
}

/// The GSP knows the channel's number alone; what a doorbell wants beside it is its client's.
Result<uint32_t> GspTransport::complete_token(std::string_view what, const RmControlCall& call) {
  using S = abi::WorkSubmitToken;
  const auto channel = channels_.find(call.object);
  if (channel == channels_.end()) return kObjectNotFound;
  auto& params = as<S>(*call.params);
  const uint32_t status = BM_TRY(parts_.calls->control(what, {.client = call.client,
                                                              .object = call.object,
                                                              .command = call.command,
                                                              .params = call.params,
                                                              .bytes = call.bytes}));
  if (status != kStatusOk) return status;
  // It takes the number it was asked to take; should it not, its own is what counts.
  const uint32_t told = static_cast<uint32_t>(params.get(S::workSubmitToken)) & kNumberMask;
  if (told != channel->second.number)
    log("nv", LogLevel::kInfo, "{}: the GSP calls the channel {:#x}, not {:#x}", what, told,
        channel->second.number);
  channel->second.number = told;
  params.set(S::workSubmitToken,
             work_submit_token(parts_.row->token, channel->second.runlist, channel->second.number));
  return kStatusOk;
}

/// Copy engines on the runlist of graphics work in step with it; so do those that the card's own
/// table of capabilities says it of.
Result<uint32_t> GspTransport::copy_caps(std::string_view what, const RmControlCall& call) {
  using S = abi::CopyCaps;
  auto& params = as<S>(*call.params);
  const auto type = static_cast<uint32_t>(params.get(S::ceEngineType));
  const uint32_t status = BM_TRY(parts_.calls->control(what, {.client = parts_.info->client,
                                                              .object = parts_.info->subdevice,
                                                              .command = abi::kCtrlCopyPhysicalCaps,
                                                              .params = call.params,
                                                              .bytes = call.bytes}));
  if (status != kStatusOk) params.set(S::capsTbl, 0);
  params.set(S::ceEngineType, type);
  if (runlist_of(type) == runlist_of(abi::kEngineGraphics))
    params.set(S::capsTbl, params.get(S::capsTbl) | kCopyIsGraphics);
  return kStatusOk;
}

// --- The end of objects

Result<uint32_t> GspTransport::free(Stage, std::string_view what, uint32_t client, uint32_t parent,
                                    uint32_t handle) {
  const std::lock_guard lock(mutex_);
  const auto object = objects_.find(handle);
  if (object != objects_.end() && object->second.is_local) {
    memory_.erase(handle);
    if (object->second.block && is_named(handle))
      parts_.memory->keep(std::move(*object->second.block));
    objects_.erase(object);
    return kStatusOk;
  }
  if (object != objects_.end() && object->second.object_class == abi::kClassVaSpace)
    if (const Status unset =
            parts_.calls->unset_page_directory(client, object->second.parent, handle);
        !unset)
      log("nv", LogLevel::kInfo, "{}", unset.error().message);
  const Result<uint32_t> status = parts_.calls->free(what, client, parent, handle);
  if (object != objects_.end()) objects_.erase(object);
  // What the hardware kept of a channel is free once the channel is.
  if (const auto channel = channels_.find(handle); channel != channels_.end()) {
    if (status && *status == kStatusOk) {
      parts_.numbers->give_back(channel->second.taken);
      channels_.erase(channel);
    } else {
      log("nv", LogLevel::kWarning, "{}: the channel stays, and its memory with it", what);
    }
  }
  return status;
}

// --- Views

Result<std::unique_ptr<RmMapping>> GspTransport::map(Stage stage, const RmMapCall& call) {
  const std::lock_guard lock(mutex_);
  const auto object = objects_.find(call.memory);
  if (object != objects_.end()) {
    if (is_kind(object->second.object_class, kUsermode) && call.bytes <= parts_.usermode.size())
      return std::make_unique<ViewMapping>(parts_.usermode.slice(0, call.bytes));
    if (object->second.block && call.bytes <= object->second.block->bytes())
      return std::make_unique<ViewMapping>(object->second.block->view().slice(0, call.bytes));
  }
  return tl::unexpected(status_error(stage, call.what, kObjectNotFound));
}

Result<std::unique_ptr<RmEvent>> GspTransport::open_event(uint32_t, uint32_t, uint32_t) {
  return fail(Code::kUnsupported, "interrupts of a card without a kernel driver are not served");
}

// --- Stage P16: what the GSP tells

uint64_t GspTransport::clock_ns() const {
  const auto word = [&](uint64_t offset) { return parts_.usermode.registers().read32(offset); };
  // The low half may wrap between the two reads, once: it takes four seconds.
  const uint32_t high = word(kClockHigh), low = word(kClockLow);
  const uint32_t again = word(kClockHigh);
  return again == high ? uint64_t{high} << 32 | low : uint64_t{again} << 32 | word(kClockLow);
}

void GspTransport::poll_events() {
  const uint64_t now = now_us();
  if (now < next_poll_us_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // a call of another thread serves events, too
  next_poll_us_.store(now + kPollEveryUs, std::memory_order_relaxed);
  const Status polled = parts_.calls->rpc().poll();
  if (polled || is_lost_) return;
  log_.push_back(fmt::format("NVRM: {}: {}", parts_.card, polled.error().message));
  lose_card(polled.error().code == Code::kTimeout      ? kGspSilent
            : polled.error().code == Code::kDeviceLost ? kCardGone
                                                       : kGspError);
}

/// Under the mutex, inside a call or a poll.
void GspTransport::on_event(RpcEvent event, uint32_t, std::span<const std::byte> payload) {
  switch (event) {
    case RpcEvent::kRcTriggered: {
      Result<ChannelFault> fault = decode_channel_fault(abi(), payload);
      if (!fault) {
        log("nv", LogLevel::kWarning, "{}", fault.error().message);
        return;
      }
      fault->time_ns = clock_ns();
      for (auto& [handle, channel] : channels_) {
        if (channel.number != fault->channel) continue;
        if (!channel.fault) channel.fault = *fault;
        write_notifier(channel.notifier, fault->code, fault->engine);
        return;
      }
      log("nv", LogLevel::kInfo, "an error {} of channel {}, which is nobody's", fault->code,
          fault->channel);
      return;
    }
    case RpcEvent::kOsErrorLog: {
      const Result<ErrorLog> entry = decode_error_log(abi(), payload);
      if (!entry) {
        log("nv", LogLevel::kWarning, "{}", entry.error().message);
        return;
      }
      log_.push_back(error_log_line(parts_.card, *entry));
      if (log_.size() > kLogLines) log_.erase(log_.begin());
      log("nv", LogLevel::kInfo, "{}", log_.back());
      if (loses_card(entry->xid)) lose_card(entry->xid);
      return;
    }
    case RpcEvent::kMmuFaultQueued:
      // Which, whose and where follows in RC_TRIGGERED, once the GSP has looked.
      log("nv", LogLevel::kInfo, "{}: an MMU fault is queued", parts_.card);
      return;
    case RpcEvent::kGspInitDone:
    case RpcEvent::kRunCpuSequencer:
    case RpcEvent::kPostEvent:
    case RpcEvent::kPerfBoostSyncLimits:
    case RpcEvent::kUcodeLibosPrint:
    case RpcEvent::kGspLockdownNotice:
    case RpcEvent::kGspPostNocatRecord:
    case RpcEvent::kRecoveryAction: break;
  }
  log("nv", LogLevel::kTrace, "{}: {} of {} bytes", parts_.card,
      rpc_name(static_cast<uint32_t>(event)), payload.size());
}

/// As the GSP writes it, should it not have done so.
void GspTransport::write_notifier(const HostView& notifier, uint32_t code, uint32_t engine) const {
  if (notifier.size() == 0) return;
  constexpr uint64_t kStatusAt = offsetof(ErrorNotifier, status);
  if (notifier.load<uint16_t>(kStatusAt) == kIsError) return;
  notifier.store<uint64_t>(offsetof(ErrorNotifier, time_ns), clock_ns());
  notifier.store<uint32_t>(offsetof(ErrorNotifier, code), code);
  notifier.store<uint16_t>(offsetof(ErrorNotifier, engine), static_cast<uint16_t>(engine));
  notifier.store_release<uint16_t>(kStatusAt, kIsError);
}

void GspTransport::lose_card(uint32_t code) {
  is_lost_ = true;
  for (auto& [handle, channel] : channels_) write_notifier(channel.notifier, code, 0);
}

std::string GspTransport::driver_log() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const std::string& line : log_) text += line + "\n";
  return text;
}

std::optional<ChannelFault> GspTransport::fault_of(uint32_t channel) {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(channel);
  return found == channels_.end() ? std::nullopt : found->second.fault;
}

}  // namespace bm::nv::gsp
