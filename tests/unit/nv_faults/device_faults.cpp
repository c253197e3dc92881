// Kernels and copies that go wrong, and engines that stand still.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/patience.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

using hal::QueueKind;
using planted::kOwnBytes;

constexpr uint64_t kNowhere = 0xdead'0000'0000;

constexpr KernelText kReader = {"reader",
                                "  ld.global.u64 %d2, [%d1];\n  st.global.u64 [%d1], %d2;"};
constexpr KernelText kWriter = {"writer", "  st.global.u64 [%d1], %d1;"};
constexpr KernelText kAdder = {"adder", "  atom.global.add.u64 %d2, [%d1], 1;"};
constexpr KernelText kSpinner = {"spinner", "again:\n  bra again;"};
constexpr KernelText kTrapper = {"trapper", "  trap;"};

/// "… of unmapped address 0x…": how the message names an access.
std::string access(std::string_view kind, uint64_t address) {
  return fmt::format("{} of unmapped address {:#x}", kind, address);
}

Status reads_unmapped(Bench& bench) {
  bench.also = {access("read", kNowhere), "no allocation is near"};
  return bench.launch(kReader, kNowhere);
}

Status writes_unmapped(Bench& bench) {
  bench.also = {access("write", kNowhere)};
  return bench.launch(kWriter, kNowhere);
}

Status adds_unmapped(Bench& bench) {
  bench.also = {access("atomic", kNowhere)};
  return bench.launch(kAdder, kNowhere);
}

Status writes_past_end(Bench& bench) {
  hal::Buffer* const memory = BM_TRY(bench.allocate(kOwnBytes));
  const uint64_t va = hal::raw(memory->va());
  const uint64_t at = va + kOwnBytes + 4096;
  bench.also = {access("write", at),
                fmt::format("4096 bytes past the end of a live allocation of {} bytes at {:#x}",
                            kOwnBytes, va)};
  return bench.launch(kWriter, at);
}

Status reads_before_begin(Bench& bench) {
  hal::Buffer* const memory = BM_TRY(bench.allocate(kOwnBytes));
  const uint64_t va = hal::raw(memory->va()), at = va - 8;
  bench.also = {
      access("read", at),
      fmt::format("8 bytes before a live allocation of {} bytes at {:#x}", kOwnBytes, va)};
  return bench.launch(kReader, at);
}

Status reads_freed(Bench& bench) {
  auto memory = BM_TRY(bench.hal().allocate({.size = kOwnBytes}));
  const uint64_t va = hal::raw(memory->va());
  memory.reset();
  bench.also = {access("read", va + 64),
                fmt::format("inside a freed allocation of {} bytes at {:#x}", kOwnBytes, va)};
  return bench.launch(kReader, va + 64);
}

Status misaligned(Bench& bench) {
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  return bench.launch(kReader, hal::raw(memory->va()) + 4);
}

Status traps(Bench& bench) { return bench.launch(kTrapper, 0); }

Status not_ptx(Bench& bench) {
  constexpr KernelText kNonsense = {"nonsense", "  frobnicate.u64 %d1, %d1;"};
  return bench.launch(kNonsense, 0);
}

Status shared_out_of_range(Bench& bench) {
  constexpr KernelText kShared = {"sharer",
                                  "  .shared .align 8 .b8 room[64];\n"
                                  "  mov.u32 %r1, room;\n"
                                  "  st.shared.u64 [%r1+65536], %d1;",
                                  {.x = 32},
                                  64};
  return bench.launch(kShared, 0);
}

Status barrier_deadlock(Bench& bench) {
  constexpr KernelText kWaiter = {"waiter", "  bar.sync 1, 128;"};
  return bench.launch(kWaiter, 0);
}

/// The second of two kernels fails; its program counter tells them apart.
Status second_kernel(Bench& bench) {
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  BM_TRY(bench.launch(kWriter, hal::raw(memory->va())));
  bench.also = {access("read", kNowhere)};
  return bench.launch(kReader, kNowhere);
}

/// Without the debugger object the driver still knows code and kernel.
Status without_details(Bench& bench) {
  bench.system().kernel().plan(
      {.call = "RM_ALLOC:83de", .status = sim::nv::RmStatus::kNotSupported, .times = 1000});
  BM_TRY(bench.open());
  return bench.launch(kReader, kNowhere);
}

Status later_fault(Bench& bench) {
  bench.also = {access("write", kNowhere)};
  const Status first = bench.launch(kWriter, kNowhere);
  const Status second = bench.copy(QueueKind::kCopy, kNowhere, kNowhere + 4096, 4096);
  if (first || second || second.error().message != first.error().message)
    return fail(Code::kInternal, "the second fault told something else");
  return first;
}

Status copies_from_unmapped(Bench& bench) {
  hal::Buffer* const to = BM_TRY(bench.allocate(4096));
  bench.also = {fmt::format("copy of 4096 bytes from {:#x} to {:#x} touches {:#x}", kNowhere,
                            hal::raw(to->va()), kNowhere)};
  return bench.copy(QueueKind::kCopy, hal::raw(to->va()), kNowhere, 4096);
}

Status copies_to_unmapped(Bench& bench) {
  hal::Buffer* const from = BM_TRY(bench.allocate(4096));
  bench.also = {fmt::format("to {:#x} touches {:#x}", kNowhere, kNowhere)};
  return bench.copy(QueueKind::kCopy, kNowhere, hal::raw(from->va()), 4096);
}

Status spins(Bench& bench) { return bench.launch(kSpinner, 0); }

Status hangs(Bench& bench) {
  bench.knobs().is_hung = true;
  hal::Buffer* const word = BM_TRY(bench.allocate(64, true));
  std::memset(word->host(), 0, 64);
  // A wait that was met is not to blame.
  BM_TRY(bench.device().stream().submit(QueueKind::kCompute,
                                        std::vector<hal::Command>{hal::Wait{word->va(), 0}}));
  return bench.launch(kWriter, hal::raw(word->va()));
}

Status stalls(Bench& bench) {
  BM_TRY(bench.works());
  bench.knobs().is_stalled = true;
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  return bench.launch(kWriter, hal::raw(memory->va()));
}

/// A submission's fence comes after the signal that was waited for: until no release comes any
/// more.
void let_fences_come(Bench& bench) {
  const auto& releases = bench.system().kernel().gpu(0).counts().releases;
  for (uint64_t seen = ~uint64_t{0}; seen != releases;) {
    seen = releases;
    std::this_thread::sleep_for(test::patience(std::chrono::milliseconds(20)));
  }
}

Status withholds_release(Bench& bench) {
  BM_TRY(bench.works());
  let_fences_come(bench);
  bench.knobs().withheld_release = 0;
  return bench.run(QueueKind::kCompute, {});
}

Status falls_off_the_bus(Bench& bench) {
  BM_TRY(bench.works());
  hal::Buffer* const memory = BM_TRY(bench.allocate(64));
  bench.knobs().is_lost = true;
  return bench.launch(kWriter, hal::raw(memory->va()));
}

/// What the message says of the compute ring: entries put and taken.
std::pair<unsigned, unsigned> ring_in(const std::string& message) {
  const size_t at = message.find("compute ring: ");
  unsigned put = 0, taken = 0;
  EXPECT_TRUE(at != message.npos &&
              std::sscanf(message.c_str() + at, "compute ring: %u entries put, %u or more taken",
                          &put, &taken) == 2);
  return {put, taken};
}
bool is_fetched(const std::string& message) {
  const auto [put, taken] = ring_in(message);
  return put == taken;
}
bool is_behind(const std::string& message) { return !is_fetched(message); }

constexpr const char* kWaits = "may wait";
constexpr const char* kMmu = "channel error 31 (MMU fault)";
constexpr const char* kException = "channel error 13 (graphics engine exception)";

}  // namespace

std::vector<Planted> device_faults() {
  const std::string waited = fmt::format("no progress for {} ms", kWaitMs);
  std::vector<Planted> all = {
      Planted::fault("KernelReadsUnmapped", reads_unmapped, {kMmu, "in kernel 'reader'"}),
      Planted::fault("KernelWritesUnmapped", writes_unmapped, {kMmu, "in kernel 'writer'"}),
      Planted::fault("KernelAddsToUnmapped", adds_unmapped, {kMmu, "in kernel 'adder'"}),
      Planted::fault("KernelWritesPastTheEnd", writes_past_end, {kMmu, "in kernel 'writer'"}),
      Planted::fault("KernelReadsBeforeTheBegin", reads_before_begin, {kMmu, "in kernel 'reader'"}),
      Planted::fault("KernelReadsFreedMemory", reads_freed, {kMmu, "in kernel 'reader'"}),
      Planted::fault("KernelIsMisaligned", misaligned,
                     {kException, "misaligned address", "in kernel 'reader'"}),
      Planted::fault("KernelTraps", traps, {kException, "SM 0: ", "in kernel 'trapper'"}),
      Planted::fault("KernelIsNonsense", not_ptx,
                     {kException, "illegal instruction", "in kernel 'nonsense'"}),
      Planted::fault("KernelLeavesSharedMemory", shared_out_of_range,
                     {kException, "address out of range", "in kernel 'sharer'"}),
      Planted::fault("KernelWaitsAtABarrier", barrier_deadlock, {kException, "in kernel 'waiter'"}),
      Planted::fault("TheSecondKernelFails", second_kernel,
                     {kMmu, "in kernel 'reader'", "last kernels: writer, reader"}),
      Planted::fault("FaultWithoutDetails", without_details, {kMmu, "last kernels: reader"}),
      Planted::fault("ALaterFaultChangesNothing", later_fault, {kMmu, "in kernel 'writer'"}),
      Planted::fault("CopyFromUnmapped", copies_from_unmapped, {kMmu, "copy ring"}),
      Planted::fault("CopyToUnmapped", copies_to_unmapped, {kMmu, "copy ring"}),
      Planted::fault("CopyPastTheEnd", planted::copies_past_end<Bench>, {kMmu, "copy ring"}),
      Planted::refused("CopyBeyondAllAddresses", planted::copies_beyond_addresses<Bench>,
                       Code::kInvalidArgument,
                       {"Copy of 4096 bytes", "to 0x1000000000000000", "addresses end at"}),
      Planted::hang("KernelSpins", spins, {waited, "last kernels: spinner"}, kWaits),
      Planted::hang("EngineHangs", hangs, {waited, "last kernels: writer"}, kWaits),
      Planted::hang("EngineStalls", stalls, {waited, "last kernels: numbers, writer"}, kWaits,
                    is_behind),
      Planted::hang("ReleaseIsWithheld", withholds_release, {waited, "waited for value"}, kWaits,
                    is_fetched),
      Planted::hang("WaitNeverComes", planted::wait_never_comes<Bench>,
                    {waited, "waited for value"}, ""),
      Planted{.name = "GpuFallsOffTheBus",
              .plant = falls_off_the_bus,
              .code = Code::kDeviceLost,
              .says = {"channel error 79 (GPU has fallen off the bus)", "restart",
                       "last kernels: numbers"},
              .is_sticky = true,
              .is_repairable = false}};
  for (Planted& row : all)
    if (row.plant == without_details) row.needs_device = false;
  return all;
}

}  // namespace bm::nv::faults
