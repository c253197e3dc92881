#include "drivers/nv/rm_gsp/golden_context.h"

#include <cstring>
#include <utility>

#include "drivers/nv/rm/status.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::nv::gsp {
namespace {

// Handles below the client, which has a space of its own for them.
constexpr uint32_t kDevice = 0xde1d0000, kSubdevice = 0x5d1d0000, kSpace = 0x90f10000,
                   kChannel = 0xf1f00000, kCompute = 0xc0000000;
// Where buffers are mapped: behind the resource manager's part, under the same directory of 512 MiB
// entries, so that the directories it wants exist.
constexpr AddressSpace::Window kWindow = {8_GiB, 64_GiB};
constexpr uint64_t kRingVa = 6_GiB, kRingBytes = 4096, kUserdBytes = 512;
constexpr uint32_t kReservedShift = 29;
constexpr uint64_t kVideoAperture = 1;

/// Objects of the golden context's client, freed as one when it ends.
class Client {
 public:
  Client(RmCalls& calls, uint32_t handle) : calls_(calls), handle_(handle) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() {
    free_channel();
    if (is_made_)
      end(calls_.free("freeing the golden context's client", handle_, handle_, handle_));
  }

  Status open() {
    abi::Params<abi::ClientAlloc> root(calls_.abi());
    root.set(abi::ClientAlloc::hClient, handle_);
    BM_TRY(make(0, handle_, abi::kClassRoot, &root));
    is_made_ = true;
    abi::Params<abi::DeviceAlloc> device(calls_.abi());
    device.set(abi::DeviceAlloc::hClientShare, handle_);
    BM_TRY(make(handle_, kDevice, abi::kClassDevice, &device));
    abi::Params<abi::SubdeviceAlloc> subdevice(calls_.abi());
    return make(kDevice, kSubdevice, abi::kClassSubdevice, &subdevice);
  }

  Status make(uint32_t parent, uint32_t object, uint32_t object_class, abi::AnyParams* params) {
    return calls_.must_alloc(fmt::format("GSP_RM_ALLOC of class {:04x}", object_class),
                             {.client = handle_,
                              .parent = parent,
                              .object = object,
                              .object_class = object_class,
                              .params = params,
                              .bytes = params == nullptr ? 0 : params->size()});
  }

  void has_channel() { has_channel_ = true; }
  /// The resource manager has its copy by then.
  void free_channel() {
    if (std::exchange(has_channel_, false))
      end(calls_.free("freeing the golden channel", handle_, kDevice, kChannel));
  }

 private:
  static void end(const Result<uint32_t>& freed) {
    if (!freed)
      log("nv", LogLevel::kInfo, "{}", freed.error().message);
    else if (*freed != kStatusOk)
      log("nv", LogLevel::kInfo, "freeing the golden context: {}", status_text(*freed));
  }
  RmCalls& calls_;
  const uint32_t handle_;
  bool is_made_ = false, has_channel_ = false;
};

/// Number that goes back with its holder.
struct Number {
  ChannelNumbers& numbers;
  uint32_t number;
  ~Number() { numbers.give_back(number); }
};

Result<std::vector<ContextBuffer>> read_buffers(RmCalls& calls, const StaticInfo& info) {
  // The first engine's part begins the answer: room behind the structure takes the rest.
  abi::Params<abi::ContextBuffers> params(calls.abi());
  const uint32_t bytes = calls.abi().layout(abi::ContextBuffersAll::kId).size;
  BM_TRY(calls.must_control("STATIC_KGR_GET_CONTEXT_BUFFERS_INFO",
                            {.client = info.client,
                             .object = info.subdevice,
                             .command = abi::kCtrlContextBuffers,
                             .params = &params,
                             .bytes = bytes}));
  return list_context_buffers(params);
}

/// Tells which directories lead to the part of the space that is the resource manager's.
Status share_directories(RmCalls& calls, const AddressSpace& space, uint32_t client) {
  using S = abi::CopyReservedPdes;
  abi::Params<S> params(calls.abi());
  params.set(S::pageSize, GoldenContext::kReservedBytes);
  params.set(S::virtAddrLo, GoldenContext::kReservedBase);
  params.set(S::virtAddrHi, GoldenContext::kReservedBase + GoldenContext::kReservedBytes - 1);
  uint32_t count = 0;
  for (const memory::PageTable::Place& place : space.tables().path(GoldenContext::kReservedBase)) {
    const memory::PageLevel& level = space.tables().format().levels[place.level];
    if (level.shift < kReservedShift) break;
    params.set(S::levels_physAddress, place.address, count);
    params.set(S::levels_size, uint64_t{level.entries()} * level.words * 8, count);
    params.set(S::levels_aperture, kVideoAperture, count);
    params.set(S::levels_pageShift, level.shift, count);
    ++count;
  }
  params.set(S::numLevelsToCopy, count);
  return calls.must_control("VASPACE_COPY_SERVER_RESERVED_PDES",
                            {.client = client,
                             .object = kSpace,
                             .command = abi::kCtrlCopyReservedPdes,
                             .params = &params,
                             .bytes = params.size()});
}

}  // namespace

Result<GoldenContext> GoldenContext::make(RmCalls& calls, CardMemory& memory, Mmu& mmu,
                                          ChannelNumbers& numbers, const ContextFacts& facts,
                                          uint32_t client_handle) {
  GoldenContext golden;
  golden.buffers_ = BM_TRY(read_buffers(calls, *facts.info));
  // In the order of their needs: what is declared first is freed last.
  const std::unique_ptr<AddressSpace> space = BM_TRY(AddressSpace::create(mmu, {&kWindow, 1}));
  ContextMemory buffers = BM_TRY(ContextMemory::make(memory, *space, 0, golden.buffers_, nullptr));
  ChannelMemory channel_memory = BM_TRY(ChannelMemory::take(memory, facts.method_buffer_bytes));
  const Block ring = BM_TRY(memory.take_zeroed(kRingBytes + kUserdBytes, 4096));
  // It never runs, but a ring is somewhere.
  BM_TRY(space->map(kRingVa, ring.ranges(), attributes_of(ring)));
  const Number number{numbers, BM_TRY(numbers.take())};
  {
    Client client(calls, client_handle);
    BM_TRY(client.open());
    abi::Params<abi::VaSpaceAlloc> va_space(calls.abi());
    BM_TRY(client.make(kDevice, kSpace, abi::kClassVaSpace, &va_space));
    BM_TRY(share_directories(calls, *space, client_handle));

    using S = abi::ChannelAlloc;
    abi::Params<S> channel(calls.abi());
    channel.set(S::gpFifoOffset, kRingVa);
    channel.set(S::gpFifoEntries, kRingBytes / 8);
    channel.set(S::hVASpace, kSpace);
    channel.set(S::engineType, abi::kEngineGraphics);
    describe_channel(channel, channel_memory,
                     {.number = number.number,
                      .userd = {ring.address() + kRingBytes, kUserdBytes},
                      .notifier = {},
                      .privilege = ChannelPrivilege::kAdmin});
    BM_TRY(client.make(kDevice, kChannel, facts.channel_class, &channel));
    client.has_channel();

    abi::Params<abi::PromoteCtx> promote(calls.abi());
    buffers.describe(promote, client_handle, kChannel);
    BM_TRY(calls.must_control("GPU_PROMOTE_CTX", {.client = client_handle,
                                                  .object = kSubdevice,
                                                  .command = abi::kCtrlPromoteCtx,
                                                  .params = &promote,
                                                  .bytes = promote.size()}));
    BM_TRY(client.make(kChannel, kCompute, facts.compute_class, nullptr));
  }
  buffers.keep_global();
  golden.memory_ = std::move(buffers);
  return golden;
}

}  // namespace bm::nv::gsp
