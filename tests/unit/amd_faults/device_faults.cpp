// Kernels and copies that go wrong, and engines that stand still.

#include <cstring>

#include "tests/unit/amd_faults/bench.h"

namespace bm::amd::faults {
namespace {

using hal::QueueKind;
using planted::kOwnBytes;

constexpr uint64_t kNowhere = 0x7ead'0000'0000;

std::string fault_at(uint64_t address) { return fmt::format("memory fault at {:#x}", address); }

Status reads_unmapped(Bench& bench) {
  bench.also = {fault_at(kNowhere), "no allocation is near"};
  return bench.launch("reader", kNowhere);
}

Status writes_unmapped(Bench& bench) {
  bench.also = {fault_at(kNowhere)};
  return bench.launch("writer", kNowhere);
}

Status adds_unmapped(Bench& bench) {
  bench.also = {fault_at(kNowhere)};
  return bench.launch("adder", kNowhere);
}

Status writes_past_end(Bench& bench) {
  // What the launch needs comes first, so that nothing follows the allocation.
  BM_TRY(bench.load("writer"));
  BM_TRY(bench.allocate(64, true));
  hal::Buffer* const memory = BM_TRY(bench.allocate(kOwnBytes));
  const uint64_t va = hal::raw(memory->va());
  const uint64_t at = va + kOwnBytes + 8192;
  bench.also = {fault_at(at),
                fmt::format("8192 bytes past the end of a live allocation of {} bytes at {:#x}",
                            kOwnBytes, va)};
  return bench.launch("writer", at);
}

Status reads_freed(Bench& bench) {
  BM_TRY(bench.load("reader"));
  BM_TRY(bench.allocate(64, true));
  auto memory = BM_TRY(bench.hal().allocate({.size = kOwnBytes}));
  const uint64_t va = hal::raw(memory->va());
  memory.reset();
  bench.also = {fault_at(va),
                fmt::format("inside a freed allocation of {} bytes at {:#x}", kOwnBytes, va)};
  return bench.launch("reader", va + 64);
}

/// Memory of another GPU that was never mapped here.
Status reads_other_gpu(Bench& bench) {
  auto other = BM_TRY(bench.open_unit(1));
  auto memory = BM_TRY(other->hal().allocate({.size = kOwnBytes}));
  bench.also = {fault_at(hal::raw(memory->va()))};
  const Status told = bench.launch("reader", hal::raw(memory->va()));
  memory.reset();
  if (!other->hal().status()) return fail(Code::kInternal, "the other GPU was blamed");
  return told;
}

Status jumps_away(Bench& bench) {
  bench.also = {"memory fault at 0x"};
  return bench.launch("jumper", 0);
}

Status misaligned(Bench& bench) {
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  return bench.launch("crooked", hal::raw(memory->va()));
}

Status traps(Bench& bench) { return bench.launch("trapper", 0); }
Status nonsense(Bench& bench) { return bench.launch("nonsense", 0); }
Status leaves_lds(Bench& bench) { return bench.launch("sharer", 0); }

/// The second of two kernels fails, and the first is not blamed.
Status second_kernel(Bench& bench) {
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  BM_TRY(bench.launch("writer", hal::raw(memory->va())));
  bench.also = {fault_at(kNowhere)};
  return bench.launch("reader", kNowhere);
}

Status later_fault(Bench& bench) {
  bench.also = {fault_at(kNowhere)};
  const Status first = bench.launch("writer", kNowhere);
  const Status second = bench.copy(QueueKind::kCopy, kNowhere, kNowhere + 4096, 4096);
  if (first || second || second.error().message != first.error().message)
    return fail(Code::kInternal, "the second fault told something else");
  return first;
}

Status copies_from_unmapped(Bench& bench) {
  hal::Buffer* const to = BM_TRY(bench.allocate(4096));
  bench.also = {fault_at(kNowhere),
                fmt::format("copy of 4096 bytes from {:#x} to {:#x} touches {:#x}", kNowhere,
                            hal::raw(to->va()), kNowhere)};
  return bench.copy(QueueKind::kCopy, hal::raw(to->va()), kNowhere, 4096);
}

Status copies_to_unmapped(Bench& bench) {
  hal::Buffer* const from = BM_TRY(bench.allocate(4096));
  bench.also = {fault_at(kNowhere), fmt::format("to {:#x} touches {:#x}", kNowhere, kNowhere)};
  return bench.copy(QueueKind::kCompute, kNowhere, hal::raw(from->va()), 4096);
}

Status spins(Bench& bench) { return bench.launch("spinner", 0); }

Status hangs(Bench& bench) {
  bench.knobs().is_hung = true;
  hal::Buffer* const word = BM_TRY(bench.allocate(64, true));
  return bench.launch("writer", hal::raw(word->va()));
}

Status stalls(Bench& bench) {
  BM_TRY(bench.works());
  bench.knobs().is_stalled = true;
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  return bench.launch("writer", hal::raw(memory->va()));
}

Status copies_stall(Bench& bench) {
  BM_TRY(bench.works());
  bench.knobs().is_copy_stalled = true;
  hal::Buffer* const memory = BM_TRY(bench.allocate(8192));
  const uint64_t va = hal::raw(memory->va());
  return bench.copy(QueueKind::kCopy, va, va + 4096, 4096);
}

/// A copy of the compute queue runs on a copy engine that stands.
Status handed_over_copies_stall(Bench& bench) {
  BM_TRY(bench.works());
  bench.knobs().is_copy_stalled = true;
  hal::Buffer* const memory = BM_TRY(bench.allocate(8192));
  const uint64_t va = hal::raw(memory->va());
  return bench.copy(QueueKind::kCompute, va, va + 4096, 4096);
}

Status withholds_signal(Bench& bench) {
  BM_TRY(bench.works());
  bench.knobs().withheld_signal = 0;
  return bench.run(QueueKind::kCompute, {});
}

Status opens_and_runs(Bench& bench) {
  BM_TRY(bench.open());
  return bench.works();
}

/// No copy is needed first, so that it is the compute queue that nobody hears.
Status rings_the_wrong_bell(Bench& bench) {
  BM_TRY(bench.open());
  return bench.run(QueueKind::kCompute, {});
}

Status falls_off_the_bus(Bench& bench) {
  BM_TRY(bench.works());
  hal::Buffer* const argument = BM_TRY(bench.allocate(64, true));
  const hal::Program* const writer = BM_TRY(bench.load("writer"));
  bench.knobs().is_lost = true;
  return bench.run(QueueKind::kCompute, {hal::Dispatch{writer, argument->va(), {}}});
}

Status is_reset(Bench& bench) {
  BM_TRY(bench.works());
  bench.knobs().is_stalled = true;
  const runtime::Point point = BM_TRY(bench.device().stream().submit(QueueKind::kCompute, {}));
  bench.system().raise_reset(0, true);
  return bench.device().stream().wait(point);
}

}  // namespace

std::vector<Planted> device_faults() {
  using Options = sim::amd::Options;
  const auto on = [](Options machine, Planted row) {
    row.machine = std::move(machine);
    return row;
  };
  const auto exception = [](Planted row) {
    row.code = Code::kDeviceLost;
    return row;
  };
  const std::string waited = fmt::format("no progress for {} ms", planted::kWaitMs);
  constexpr const char* kWaits = "may wait";
  constexpr const char* kIllegal = "illegal instruction in a wave";
  constexpr const char* kViolation = "memory violation in a wave";
  std::vector<Planted> all = {
      Planted::fault("KernelReadsUnmapped", reads_unmapped, {"last kernels: reader (dispatch 1)"}),
      Planted::fault("KernelWritesUnmapped", writes_unmapped, {"write", "last kernels: writer"}),
      Planted::fault("KernelAddsToUnmapped", adds_unmapped, {"last kernels: adder"}),
      Planted::fault("KernelWritesPastTheEnd", writes_past_end,
                     {"last kernels: writer (dispatch 1)", "check sizes and indices"}),
      Planted::fault("KernelReadsFreedMemory", reads_freed, {"last kernels: reader"}),
      on({.gpus = 2},
         Planted::fault("KernelReadsAnotherGpu", reads_other_gpu, {"last kernels: reader"})),
      Planted::fault("KernelJumpsAway", jumps_away, {"last kernels: jumper"}),
      exception(
          Planted::fault("KernelIsMisaligned", misaligned, {kViolation, "last kernels: crooked"})),
      exception(
          Planted::fault("KernelLeavesLds", leaves_lds, {kViolation, "last kernels: sharer"})),
      exception(Planted::fault("KernelIsNonsense", nonsense, {kIllegal, "last kernels: nonsense"})),
      exception(
          Planted::fault("KernelTraps", traps, {"hang or exception", "last kernels: trapper"})),
      on({.resets_on_exception = false},
         Planted::hang("NonsenseThatOnlyHalts", nonsense,
                       {waited, kIllegal, "last kernels: nonsense"}, kWaits)),
      Planted::fault("TheSecondKernelFails", second_kernel,
                     {"last kernels: writer, reader (dispatch 2)"}),
      Planted::fault("ALaterFaultChangesNothing", later_fault, {"last kernels: writer"}),
      Planted::fault("CopyFromUnmapped", copies_from_unmapped, {"copy ring"}),
      Planted::fault("CopyToUnmapped", copies_to_unmapped, {"copy ring"}),
      Planted::fault("CopyPastTheEnd", planted::copies_past_end<Bench>, {"copy ring"}),
      Planted::refused("CopyBeyondAllAddresses", planted::copies_beyond_addresses<Bench>,
                       Code::kInvalidArgument, {"Copy of 4096 bytes", "to 0x1000000000000000"}),
      Planted::hang("KernelSpins", spins, {waited, "last kernels: spinner (dispatch 1)"}, kWaits),
      Planted::hang("EngineHangs", hangs, {waited, "last kernels: writer (dispatch 1)"}, kWaits),
      Planted::hang(
          "ComputeQueueStalls", stalls,
          {waited, "last kernels: numbers, step, writer (dispatch 3)", "nothing new was read"},
          kWaits),
      Planted::hang("CopyEngineStalls", copies_stall, {waited, "copy ring", "nothing new was read"},
                    kWaits),
      Planted::hang("HandedOverCopyStalls", handed_over_copies_stall,
                    {waited, "copy ring", "nothing was ever read"}, kWaits),
      Planted::hang("SignalIsWithheld", withholds_signal, {waited, "waited for value"},
                    "nothing new was read"),
      Planted::hang("WaitNeverComes", planted::wait_never_comes<Bench>,
                    {waited, "waited for value"}, "nothing new was read"),
      on({.has_lost_doorbell = true},
         Planted::hang("DoorbellReachesNobody", rings_the_wrong_bell,
                       {waited, "compute ring", "its doorbell may not reach it"}, kWaits)),
      on({.is_stalled = true},
         Planted::hang("QueuesNeverStart", opens_and_runs,
                       {"copy ring", "its doorbell may not reach it"}, kWaits)),
      Planted{.name = "GpuFallsOffTheBus",
              .plant = falls_off_the_bus,
              .code = Code::kDeviceLost,
              .says = {"reset the whole GPU", "last kernels: numbers, step, writer",
                       "start the program again"},
              .is_sticky = true,
              .is_repairable = false},
      Planted{.name = "GpuIsReset",
              .plant = is_reset,
              .code = Code::kDeviceLost,
              .says = {"GPU reset 1 begins: the compute ring hung", "last kernels: numbers, step",
                       "start the program again"},
              .is_sticky = true}};
  Options old{.tells_resets = false};
  Planted untold = all.back();
  untold.name = "GpuIsResetAndNothingIsTold";
  untold.machine = std::move(old);
  all.push_back(std::move(untold));
  for (Planted& row : all)
    // The driver's own wait while it loads code: below the runtime, which would give it up.
    if (row.plant == opens_and_runs) row.is_sticky = false;
  for (Planted& row : all)
    if (row.plant == opens_and_runs || row.plant == rings_the_wrong_bell) row.needs_device = false;
  return all;
}

}  // namespace bm::amd::faults
