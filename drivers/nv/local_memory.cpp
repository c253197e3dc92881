#include "drivers/nv/local_memory.h"

#include "drivers/nv/methods/compute.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

// What the hardware rounds to; found by upstream drivers, not in the published headers.
constexpr uint64_t kWarpUnit = 0x200, kTpcUnit = 0x8000, kBufferUnit = 128 << 10;
constexpr uint64_t kThreadUnit = 32, kWarp = 32;

}  // namespace

LocalMemorySize local_memory_size(const GpuFacts& facts, uint64_t per_thread) {
  const uint64_t per_warp = align_up(per_thread * kWarp, kWarpUnit);
  LocalMemorySize size;
  size.per_tpc = align_up(per_warp * facts.warps_per_sm * facts.sms_per_tpc, kTpcUnit);
  size.total = align_up(size.per_tpc * facts.tpcs_per_gpc * facts.gpcs, kBufferUnit);
  return size;
}

Status LocalMemory::ensure(Gpu& gpu, HardwareRing& compute, uint32_t per_thread) {
  if (per_thread <= per_thread_) return {};
  std::erase_if(retired_, [&](const Retired& r) { return compute.has_passed(r.fence); });
  const GpuFacts& facts = gpu.driver->facts();
  // Half as much again, so that a series of growing kernels does not move the buffer every time.
  uint64_t wanted =
      align_up(std::max<uint64_t>(per_thread, uint64_t{per_thread_} * 3 / 2), kThreadUnit);
  auto memory =
      gpu.pool.allocate(local_memory_size(facts, wanted).total, MemoryDomain::kVideo, kBufferUnit);
  if (!memory && wanted > per_thread) {
    wanted = per_thread;
    memory = gpu.pool.allocate(local_memory_size(facts, wanted).total, MemoryDomain::kVideo,
                               kBufferUnit);
  }
  if (!memory)
    return fail(memory.error().code,
                "{} bytes of stack for each thread are {} bytes in all: {}; compile with fewer "
                "spills or free memory",
                per_thread, local_memory_size(facts, wanted).total, memory.error().message);
  const uint64_t fence = BM_TRY(announce(gpu, compute, *memory, wanted));
  if (memory_) retired_.push_back({std::move(memory_), fence});
  memory_ = std::move(*memory);
  per_thread_ = static_cast<uint32_t>(wanted);
  return {};
}

Result<uint64_t> LocalMemory::announce(Gpu& gpu, HardwareRing& compute, const Allocation& memory,
                                       uint64_t per_thread) {
  std::vector<uint32_t> words;
  Push push(words, compute.classes());
  wait_for_idle(push);
  set_local_memory(push,
                   {.address = memory.va(),
                    .bytes_per_tpc = local_memory_size(gpu.driver->facts(), per_thread).per_tpc,
                    .max_sms = gpu.chip().sm_count_bits});
  return compute.submit(words);
}

Status LocalMemory::restore(Gpu& gpu, HardwareRing& compute) {
  retired_.clear();
  if (memory_) BM_TRY(announce(gpu, compute, memory_, per_thread_));
  return {};
}

void LocalMemory::reset() {
  retired_.clear();
  memory_.reset();
}

}  // namespace bm::nv
