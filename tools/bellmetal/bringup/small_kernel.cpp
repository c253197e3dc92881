#include "tools/bellmetal/bringup/small_kernel.h"

#include <span>
#include <vector>

#include "drivers/transport/clock.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/pm4/compute.h"
#include "runtime/base/bits.h"

namespace bm::cli {
namespace {

using amd::MemoryDomain;
using amd::RegisterSet;

// v_mov_b32 v0, 0; v_mov_b32 v1, kStored; global_store_b32 v0, v1, s[0:1]; s_endpgm. Encoded by
// LLVM 19's assembler; the store is all that the two generations spell differently.
constexpr uint32_t kStored = 0xb0071e55;
constexpr uint32_t kCodeGfx11[] = {0x7e000280, 0x7e0202ff, kStored,
                                   0xdc6a0000, 0x00000100, 0xbfb00000};
constexpr uint32_t kCodeGfx12[] = {0x7e000280, 0x7e0202ff, kStored,   0xee068000,
                                   0x00800000, 0x00000000, 0xbfb00000};

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFenceAt =
    64;  // behind the word that the kernel stores, in a cache line of its own
constexpr uint64_t kFence = 0x5afe;
// TIMEOUT: a kernel of four instructions takes microseconds; two seconds for cards behind a socket.
constexpr uint64_t kTimeoutUs = 2'000'000;

struct KernelCode {
  std::span<const uint32_t> words;
  uint32_t rsrc2 = 0;  ///< two user registers: the address of the result
};
Result<KernelCode> code_for(const amd::ChipRow& chip) {
  switch (chip.registers) {
    case RegisterSet::kGc11:
      return KernelCode{kCodeGfx11, amd::kGc1100ComputePgmRsrc2UserSgpr.put(2)};
    case RegisterSet::kGc12:
      return KernelCode{kCodeGfx12, amd::kGc1200ComputePgmRsrc2UserSgpr.put(2)};
    case RegisterSet::kGc9_4_3:
    case RegisterSet::kGc10_3: break;
  }
  return fail(Code::kUnsupported, "no small kernel is here for {}", chip.name);
}

}  // namespace

Result<KernelRun> run_small_kernel(amd::DriverInterface& gpu) {
  const amd::GpuFacts& facts = gpu.facts();
  const KernelCode code = BM_TRY(code_for(*facts.chip));
  const amd::MemoryRequest page{.size = kPage, .domain = MemoryDomain::kSystemUncached};
  const auto program = BM_TRY(gpu.allocate(page));
  const auto result = BM_TRY(gpu.allocate(page));
  const auto ring = BM_TRY(gpu.allocate(page));
  const auto queue = BM_TRY(gpu.create_queue({.ring = ring.get()}));

  std::vector<uint32_t> words;
  amd::pm4::Writer writer(words, facts.chip->caches);
  amd::pm4::Launch launch{.entry = program->va, .rsrc2 = code.rsrc2, .num_user_data = 2};
  launch.user_data = {lo32(result->va), hi32(result->va)};
  launch.threads = {32, 1, 1};
  amd::pm4::launch(writer, facts.registers, facts.chip->registers, launch);
  writer.put(amd::pm4::ReleaseMem{.caches = amd::pm4::cache_actions(facts.chip->caches).release,
                                  .address = result->va + kFenceAt,
                                  .value = kFence});
  program->view.copy_in(0, code.words);
  result->view.fill(0, kPage, std::byte{0});
  ring->view.copy_in(0, words);
  for (const auto* memory : {program.get(), result.get(), ring.get()}) memory->view.publish();

  Clock& clock = real_clock();
  const uint64_t begun = clock.now_us();
  queue->write_pointer.store_release(0, uint64_t{words.size()});
  queue->write_pointer.publish();
  queue->doorbell.ring(words.size());
  for (;;) {
    const uint64_t seen = result->view.load_acquire<uint64_t>(kFenceAt);
    const uint64_t now = clock.now_us();
    const auto stored = result->view.load_acquire<uint32_t>(0);
    if (seen == kFence && stored == kStored) return KernelRun{stored, now - begun};
    if (const auto fault = gpu.take_fault())
      return fail(Code::kDeviceLost, "the first kernel faulted: {}", fault->log);
    if (now - begun > kTimeoutUs)
      return fail(Code::kTimeout,
                  "the first kernel stored {:#x} and its fence holds {:#x} after {} ms ({:#x} and "
                  "{:#x} were to come; {} of {} dwords of the ring were read): `bellmetal gpu "
                  "autopsy` says where the card stands",
                  stored, seen, (now - begun) / 1000, kStored, kFence,
                  queue->read_pointer.load_acquire<uint64_t>(0), words.size());
    clock.sleep_us(50);
  }
}

}  // namespace bm::cli
