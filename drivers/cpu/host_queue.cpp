#include "drivers/cpu/host_queue.h"

#include <array>

#include "drivers/cpu/host_addresses.h"

namespace bm::cpu {
namespace {

/// Commands of one ordinary submission: these are translated on the stack.
constexpr size_t kBatch = 16;

KernelEntry entry_of(const Call& call) { return reinterpret_cast<KernelEntry>(call.words[0]); }
const uint64_t* args_of(const Call& call) {
  return reinterpret_cast<const uint64_t*>(call.words[1]);
}

}  // namespace

HostQueue::HostQueue(const Options& options)
    : pool_(options.pool),
      wait_timeout_ms_(options.wait_timeout_ms),
      rules_{.counts_only = options.counts_only,
             .has_pool = options.pool != nullptr,
             .pool_threads = options.pool == nullptr ? 1 : options.pool->threads()} {}

Status HostQueue::submit(std::span<const hal::Command> commands) {
  // Everything is translated before anything runs, so a malformed command leaves no half-done list.
  std::array<Call, kBatch> few;
  std::vector<Call> many;
  if (commands.size() > kBatch) many.resize(commands.size());
  const std::span<Call> calls =
      many.empty() ? std::span(few).first(commands.size()) : std::span(many);
  for (size_t i = 0; i < calls.size(); ++i) calls[i] = BM_TRY(make_call(commands[i], rules_));
  if (rules_.counts_only) submits_.fetch_add(1, std::memory_order_relaxed);
  return execute(calls);
}

Result<std::unique_ptr<hal::Recording>> HostQueue::record(std::span<const hal::Command> commands,
                                                          std::span<const hal::Patch> patches) {
  return BM_TRY(CallRecording::build(commands, patches, rules_));
}

Status HostQueue::replay(hal::Recording& recording, std::span<const uint64_t> values) {
  auto& mine = static_cast<CallRecording&>(recording);
  BM_TRY(mine.patch(values));
  if (rules_.counts_only) replays_.fetch_add(1, std::memory_order_relaxed);
  return execute(mine.calls());
}

Status HostQueue::execute(std::span<const Call> calls) {
  uint64_t counted = 0;
  for (const Call& call : calls) {
    switch (call.kind) {
      case CallKind::kNothing: break;
      case CallKind::kKernel:
        if (call.words[3] == 0)
          entry_of(call)(args_of(call), 0, call.words[2], nullptr);
        else
          pool_->run_inline(entry_of(call), args_of(call), call.words[2], call.words[3]);
        break;
      case CallKind::kPoolKernel:
        pool_->run(entry_of(call), args_of(call), call.words[2], call.words[3]);
        break;
      case CallKind::kCounted: ++counted; break;
      case CallKind::kBarrier: perform(hal::Barrier{}); break;
      case CallKind::kCopy:
        BM_TRY(perform(
            hal::Copy{hal::GpuVa{call.words[0]}, hal::GpuVa{call.words[1]}, call.words[2]}));
        break;
      case CallKind::kWait:
      case CallKind::kSignal:
      case CallKind::kWrite:
      case CallKind::kTimestamp: BM_TRY(execute_word(call)); break;
    }
  }
  if (rules_.counts_only) counted_.fetch_add(counted, std::memory_order_relaxed);
  return {};
}

Status HostQueue::execute_word(const Call& call) const {
  const hal::GpuVa va{call.words[0]};
  if (rules_.counts_only && !is_host_address(va)) return {};
  switch (call.kind) {
    case CallKind::kWait: return perform(hal::Wait{va, call.words[1]}, wait_timeout_ms_);
    case CallKind::kSignal: return perform(hal::Signal{va, call.words[1]});
    case CallKind::kWrite: return perform(hal::Write{va, call.words[1]});
    case CallKind::kTimestamp: return perform(hal::Timestamp{va});
    case CallKind::kNothing:
    case CallKind::kKernel:
    case CallKind::kPoolKernel:
    case CallKind::kCounted:
    case CallKind::kBarrier:
    case CallKind::kCopy: break;
  }
  __builtin_unreachable();
}

QueueCounts HostQueue::counts() const {
  return {.submits = submits_.load(std::memory_order_relaxed),
          .replays = replays_.load(std::memory_order_relaxed),
          .kernels_and_copies = counted_.load(std::memory_order_relaxed)};
}

}  // namespace bm::cpu
