#include "drivers/nv/rm_gsp/channel_memory.h"

#include "runtime/base/check.h"

namespace bm::nv::gsp {
namespace {

// kfifoGetInstMemInfo: an instance block is a page; the RAMFC is its start.
constexpr uint64_t kInstanceBytes = 4096, kRamfcBytes = 0x200;
// ADDR_SYSMEM and ADDR_FBMEM of mem_desc.h; NV_MEMORY_UNCACHED and NV_MEMORY_CACHED of nvos.h.
constexpr uint64_t kSystem = 1, kVideo = 2, kUncached = 1, kCached = 0;
// NVOS04_FLAGS_*.
constexpr uint32_t kPrivileged = 1 << 5, kIndexShift = 8, kIndexFixed = 1 << 11, kPageShift = 12,
                   kPageFixed = 1 << 21;
constexpr uint32_t kChannelsPerPage = 8;  // of USERD: 512 bytes each
constexpr uint32_t kNumberMask = 7u << kIndexShift | 0x1ffu << kPageShift;
// NV_KERNELCHANNEL_ALLOC_INTERNALFLAGS_*, ERROR_NOTIFIER_TYPE_* (g_kernel_channel_nvoc.h).
constexpr uint32_t kNotifierShift = 2, kEccNotifierShift = 4;
constexpr uint32_t kNoNotifier = 1, kMemoryNotifier = 3;

using S = abi::ChannelAlloc;

struct Fields {
  S::Field base, size, space, cache;
};

void set_place(abi::Params<S>& params, const Fields& fields, const PhysicalPlace& place) {
  params.set(fields.base, place.address);
  params.set(fields.size, place.bytes);
  params.set(fields.space, place.is_system ? kSystem : kVideo);
  params.set(fields.cache, place.is_system ? kCached : kUncached);
}

}  // namespace

Result<uint32_t> ChannelNumbers::take() {
  for (uint32_t number = kFirst; number < kEnd; ++number)
    if (taken_.insert(number).second) return number;
  return fail(Code::kOutOfMemory, "all {} channels are taken", kEnd - kFirst);
}

Result<ChannelMemory> ChannelMemory::take(CardMemory& memory, uint64_t method_buffer_bytes) {
  Block instance = BM_TRY(memory.take_zeroed(kInstanceBytes, kInstanceBytes));
  Block methods = BM_TRY(memory.take_zeroed(method_buffer_bytes, kInstanceBytes));
  return ChannelMemory{std::move(instance), std::move(methods)};
}

void describe_channel(abi::Params<S>& params, const ChannelMemory& memory,
                      const ChannelPlaces& places) {
  params.set(S::hObjectBuffer, 0);
  params.set(S::hUserdMemory, 0);
  if (!places.notifier) params.set(S::hObjectError, 0);

  auto flags = static_cast<uint32_t>(params.get(S::flags));
  flags &= ~(kNumberMask | kIndexFixed | kPrivileged);
  flags |= kPageFixed | (places.number % kChannelsPerPage) << kIndexShift |
           (places.number / kChannelsPerPage) << kPageShift;
  if (places.privilege == ChannelPrivilege::kAdmin) flags |= kPrivileged;
  params.set(S::flags, flags);
  params.set(S::internalFlags, static_cast<uint32_t>(places.privilege) |
                                   (places.notifier ? kMemoryNotifier : kNoNotifier)
                                       << kNotifierShift |
                                   kNoNotifier << kEccNotifierShift);

  const uint64_t instance = memory.instance.address();
  set_place(params,
            {S::instanceMem_base, S::instanceMem_size, S::instanceMem_addressSpace,
             S::instanceMem_cacheAttrib},
            {instance, kInstanceBytes});
  set_place(params,
            {S::ramfcMem_base, S::ramfcMem_size, S::ramfcMem_addressSpace, S::ramfcMem_cacheAttrib},
            {instance, kRamfcBytes});
  set_place(params,
            {S::mthdbufMem_base, S::mthdbufMem_size, S::mthdbufMem_addressSpace,
             S::mthdbufMem_cacheAttrib},
            {memory.method_buffer.address(), memory.method_buffer.bytes()});
  set_place(params,
            {S::userdMem_base, S::userdMem_size, S::userdMem_addressSpace, S::userdMem_cacheAttrib},
            places.userd);
  if (places.notifier)
    set_place(params,
              {S::errorNotifierMem_base, S::errorNotifierMem_size, S::errorNotifierMem_addressSpace,
               S::errorNotifierMem_cacheAttrib},
              *places.notifier);
}

uint32_t work_submit_token(TokenForm form, uint32_t runlist, uint32_t channel) {
  // NV_CTRL_VF_DOORBELL_*, NV_VIRTUAL_FUNCTION_DOORBELL_* of gb202/dev_vm.h.
  constexpr uint32_t kRunlistShift = 16, kMostRunlists = 0x7f, kEnable = 1u << 30;
  BM_CHECK(channel < ChannelNumbers::kEnd && runlist <= kMostRunlists);
  const uint32_t token = runlist << kRunlistShift | channel;
  switch (form) {
    case TokenForm::kRunlist: return token;
    case TokenForm::kRunlistEnabled: return token | kEnable;
  }
  __builtin_unreachable();
}

}  // namespace bm::nv::gsp
