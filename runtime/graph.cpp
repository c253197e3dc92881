// Replay of a sealed graph.

#include "runtime/graph.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/graph_state.h"
#include "runtime/stats.h"

namespace bm::runtime {
namespace {

// Signals restart from zero here: half of what 32-bit comparing hardware can tell apart.
constexpr uint64_t kSignalLimit = uint64_t{1} << 30;

class RecordedGraph final : public Graph {
 public:
  explicit RecordedGraph(std::unique_ptr<GraphState> state)
      : state_(std::move(state)), s_(*state_) {
    for (uint32_t i = 0; i < s_.devices.size(); ++i) lock_order_.push_back(i);
    std::sort(lock_order_.begin(), lock_order_.end(), [&](uint32_t a, uint32_t b) {
      return std::less<>()(&s_.devices[a].device->stream(), &s_.devices[b].device->stream());
    });
    locks_.reserve(s_.devices.size());
    replays_.start(launch(-1));
  }

  ~RecordedGraph() override {
    const std::lock_guard lock(mutex_);
    if (settle_done() && !is_abandoned_) return;
    // What the hardware may still read must not be freed.
    const std::shared_ptr<GraphState> state = std::move(state_);
    for (const GraphDevice& d : state->devices) d.device->keep_until_closed(state);
  }

  Status replay(std::span<const Buffer> inputs, std::span<const int64_t> var_values) override;
  Status wait() override {
    const std::lock_guard lock(mutex_);
    return wait_done();
  }
  size_t num_calls() const override { return s_.num_calls; }

 private:
  Status run(std::span<const Buffer> inputs);
  Status fill_values(std::span<const Buffer> inputs, std::span<const int64_t> var_values);
  Status run_queues(std::span<const Buffer> inputs);
  Status wait_for_foreign_work(std::span<const Buffer> inputs);
  Status wait_foreign(Storage& storage);
  Status submit_queues();
  Status reserve_points();
  void cancel_points(size_t from);
  Status abandon(size_t submitted, Error error);
  Status run_host_steps();
  void note_uses(std::span<const Buffer> inputs);
  Status wait_done();
  Status settle_done();  ///< the same, work that was dropped included

  std::atomic_ref<uint64_t> signal(uint32_t queue_index) const {
    return std::atomic_ref<uint64_t>(
        *reinterpret_cast<uint64_t*>(s_.signals->host() + queue_index * kSignalStride));
  }
  void start_signals();
  void release_signal(size_t queue_index);
  Launch launch(int64_t duration_ns) const {
    return {.kind = Launch::Kind::kGraph,
            .device = s_.device_name,
            .name = s_.name,
            .calls = s_.num_calls,
            .num_args = s_.num_args,
            .flops = s_.flops,
            .bytes = s_.bytes,
            .duration_ns = duration_ns};
  }
  Status wait_signal(const QueueWait& wait) const;
  void report(int64_t begin_ns, int64_t end_ns) const;
  void trace(int64_t begin_ns, int64_t end_ns) const;

  std::unique_ptr<GraphState> state_;
  GraphState& s_;
  LaunchCounter replays_;      // under mutex_
  std::mutex mutex_;           // one run at a time
  bool is_abandoned_ = false;  // a device may still run a part that nobody can wait for
  std::vector<uint32_t> lock_order_;
  std::vector<std::unique_lock<std::mutex>> locks_;
};

Status RecordedGraph::fill_values(std::span<const Buffer> inputs,
                                  std::span<const int64_t> var_values) {
  if (var_values.size() != s_.num_vars) {
    return fail(Code::kInvalidArgument, "{} variables given, the graph takes {}", var_values.size(),
                s_.num_vars);
  }
  BM_TRY(s_.inputs.bind(inputs, s_.values));
  for (uint32_t i = 0; i < s_.num_vars; ++i)
    s_.values[s_.num_inputs + i] = static_cast<uint64_t>(var_values[i]);
  for (const DimSlot& dim : s_.dims) s_.values[dim.slot] = BM_TRY(grid_dim(dim.dim, var_values));
  for (const PeerInput& peer : s_.peer_inputs) {
    const Buffer& input = inputs[peer.input];
    if (peer.device->hal().is_inline()) {
      if (input.host() == nullptr)
        return fail(Code::kUnsupported, "input {} is not visible to {}", peer.input,
                    peer.device->name());
      s_.values[peer.slot] = reinterpret_cast<uintptr_t>(input.host());
    } else {
      s_.values[peer.slot] = hal::raw(BM_TRY(input.storage->va_on(*peer.device))) + input.offset;
    }
  }
  return {};
}

Status RecordedGraph::replay(std::span<const Buffer> inputs, std::span<const int64_t> var_values) {
  const std::lock_guard lock(mutex_);
  BM_TRY(check_not_forked());
  if (!s_.devices.empty()) BM_TRY(settle_done());
  BM_TRY(fill_values(inputs, var_values));
  if (!is_timing()) [[likely]] {
    BM_TRY(run(inputs));
    replays_.add();
    return {};
  }
  const int64_t begin_ns = host_time_ns();
  BM_TRY(run(inputs));
  BM_TRY(wait_done());
  report(begin_ns, host_time_ns());
  return {};
}

Status RecordedGraph::run(std::span<const Buffer> inputs) {
  if (any_queue_device()) [[unlikely]]
    BM_TRY(wait_for_foreign_work(inputs));
  if (!s_.queues.empty()) return run_queues(inputs);
  for (const HostStep& step : s_.host_steps) BM_TRY(step.queue->replay(*step.recording, s_.values));
  return {};
}

/// Work of devices outside the graph on our memory; work of our own devices is waited for on the
/// device.
Status RecordedGraph::wait_for_foreign_work(std::span<const Buffer> inputs) {
  for (const StoragePtr& storage : s_.storages) BM_TRY(wait_foreign(*storage));
  for (const Buffer& input : inputs)
    if (input.has_storage()) BM_TRY(wait_foreign(*input.storage));
  return {};
}

Status RecordedGraph::wait_foreign(Storage& storage) {
  for (const Point& point : storage.uses()) {
    const bool is_ours = std::any_of(
        s_.devices.begin(), s_.devices.end(),
        [&](const GraphDevice& d) { return &d.device->stream().timeline() == point.timeline; });
    if (!is_ours || storage.device().hal().is_inline()) BM_TRY(runtime::wait(point));
  }
  return {};
}

Status RecordedGraph::run_queues(std::span<const Buffer> inputs) {
  start_signals();
  BM_TRY(submit_queues());
  note_uses(inputs);
  Status ran = run_host_steps();
  // Queues that wait for the failed step must not hang: let them run and report the failure.
  if (!ran) release_signal(kHostQueue);
  return ran;
}

void RecordedGraph::start_signals() {
  if (!s_.signals) return;
  // The previous replay is complete, so nobody waits for the old values.
  s_.signal_base += s_.most_signals;
  if (s_.signal_base >= kSignalLimit) {
    for (uint32_t queue_index = 0; queue_index <= s_.queues.size(); ++queue_index)
      signal(queue_index).store(0, std::memory_order_release);
    s_.signal_base = 0;
  }
  s_.values[s_.base_slot] = s_.signal_base;
}

/// Lets everybody through who waits for a queue that will not run.
void RecordedGraph::release_signal(size_t queue_index) {
  if (s_.signals)
    signal(static_cast<uint32_t>(queue_index))
        .store(s_.signal_base + s_.most_signals, std::memory_order_release);
}

/// Under the locks of all devices: takes their next timeline values and fills the slots for them.
Status RecordedGraph::reserve_points() {
  for (size_t i = 0; i < s_.devices.size(); ++i) {
    GraphDevice& d = s_.devices[i];
    Timeline& timeline = d.device->stream().timeline();
    d.previous = timeline.last();
    const auto value = timeline.next();
    if (!value) {
      for (size_t k = 0; k < i; ++k) {
        Timeline& reserved = s_.devices[k].device->stream().timeline();
        reserved.cancel(s_.devices[k].done.value);
        s_.devices[k].done = {};
      }
      return tl::unexpected(value.error());
    }
    d.done = {&timeline, *value};
  }
  for (GraphDevice& d : s_.devices) {
    Timeline& timeline = *d.done.timeline;
    for (const uint32_t source : d.sources)
      timeline.note_source(d.done.value, s_.devices[source].done);
    s_.values[d.done_slot] = timeline.hardware_value(d.done.value);
    d.device->stream().note_work(d.done.value, s_.summary, d.queues);
    if (d.previous_slot == kNoSlot) continue;
    // No command: reached already, and every signal is at least 0.
    uint64_t previous = 0;
    if (const auto wait = timeline.wait_command(d.previous)) previous = wait->value;
    for (const uint32_t waiter : d.waiters) {
      if (const auto wait = timeline.wait_command(d.previous, s_.devices[waiter].done))
        previous = std::max(previous, wait->value);
    }
    s_.values[d.previous_slot] = previous;
  }
  return {};
}

Status RecordedGraph::submit_queues() {
  locks_.clear();
  for (const uint32_t device : lock_order_)
    locks_.push_back(s_.devices[device].device->stream().lock());
  Status status = reserve_points();
  for (size_t queue_index = 0; status && queue_index < s_.queues.size(); ++queue_index) {
    Status submitted =
        s_.queues[queue_index].queue->replay(*s_.queues[queue_index].recording, s_.values);
    if (!submitted) {
      Device& device = *s_.devices[s_.queues[queue_index].device].device;
      status = abandon(queue_index, device.first_cause(std::move(submitted.error())));
    }
  }
  locks_.clear();
  return status;
}

/// Queues before `submitted` run, the rest never will. Devices without a submitted queue are as if
/// nothing happened; the others have work in flight that no Point covers, so their timeline ends.
Status RecordedGraph::abandon(size_t submitted, Error error) {
  release_signal(kHostQueue);
  for (size_t queue_index = submitted; queue_index < s_.queues.size(); ++queue_index)
    release_signal(queue_index + 1);
  for (uint32_t i = 0; i < s_.devices.size(); ++i) {
    GraphDevice& d = s_.devices[i];
    const bool will_signal = d.end_queue <= submitted;
    const bool has_work =
        std::any_of(s_.queues.begin(), s_.queues.begin() + static_cast<ptrdiff_t>(submitted),
                    [&](const RecordedQueue& queue) { return queue.device == i; });
    if (will_signal) continue;
    if (has_work) {
      d.done.timeline->poison(error);
      is_abandoned_ = true;
    } else {
      d.done.timeline->cancel(d.done.value);
    }
    d.done = {};
  }
  return tl::unexpected(std::move(error));
}

Status RecordedGraph::wait_signal(const QueueWait& wait) const {
  constexpr int kSpins = 2000;
  const uint64_t wanted = s_.signal_base + wait.ordinal;
  const int64_t limit_ns = int64_t{settings().wait_timeout_ms} * 1'000'000;
  int64_t progress_ns = -1;
  uint64_t seen = 0;
  for (uint64_t polls = 0;; ++polls) {
    const uint64_t value = signal(wait.queue_index).load(std::memory_order_acquire);
    if (value >= wanted) return {};
    if (polls < kSpins) continue;
    std::this_thread::yield();
    const int64_t now_ns = host_time_ns();
    if (progress_ns < 0 || value != seen)
      progress_ns = now_ns;  // the deadline restarts on progress
    seen = value;
    for (const GraphDevice& d : s_.devices) BM_TRY(d.device->lost());
    if (now_ns - progress_ns > limit_ns) {
      Device& device = *s_.devices[s_.queues[wait.queue_index - 1].device].device;
      return tl::unexpected<Error>(device.first_cause(
          {Code::kTimeout, fmt::format("no progress for {} ms: signal of queue {} is {}, wanted {}",
                                       limit_ns / 1'000'000, wait.queue_index, value, wanted)}));
    }
  }
}

Status RecordedGraph::run_host_steps() {
  for (const HostStep& step : s_.host_steps) {
    for (const QueueWait& wait : step.waits) BM_TRY(wait_signal(wait));
    if (step.recording) BM_TRY(step.queue->replay(*step.recording, s_.values));
    if (step.signal != 0)
      signal(kHostQueue).store(s_.signal_base + step.signal, std::memory_order_release);
  }
  return {};
}

void RecordedGraph::note_uses(std::span<const Buffer> inputs) {
  for (const StorageUse& use : s_.storage_uses)
    use.storage->used_until(s_.devices[use.device].done);
  for (const InputUse& use : s_.input_uses)
    inputs[use.input].storage->used_until(s_.devices[use.device].done);
}

Status RecordedGraph::settle_done() {
  for (const GraphDevice& d : s_.devices) BM_TRY(runtime::settle(d.done));
  return {};
}

Status RecordedGraph::wait_done() {
  for (const GraphDevice& d : s_.devices) BM_TRY(runtime::wait(d.done));
  return {};
}

void RecordedGraph::report(int64_t begin_ns, int64_t end_ns) const {
  update_stats(launch(end_ns - begin_ns));
  if (profiler().is_on()) trace(begin_ns, end_ns);
}

void RecordedGraph::trace(int64_t begin_ns, int64_t end_ns) const {
  profiler().record({.name = s_.name,
                     .row = s_.device_name + ":GRAPH",
                     .category = "graph",
                     .begin_ns = begin_ns,
                     .end_ns = end_ns,
                     .flops = s_.flops,
                     .bytes = s_.bytes});
  std::vector<uint64_t> ids(s_.timestamps.size());
  for (uint64_t& id : ids) id = profiler().next_id();
  for (size_t i = 0; i < ids.size(); ++i) {
    const CallTimestamps& call = s_.timestamps[i];
    const auto ticks = [&](size_t end) {
      return std::atomic_ref<uint64_t>(*(reinterpret_cast<uint64_t*>(call.host) + end))
          .load(std::memory_order_acquire);
    };
    ProfileRange range{.name = call.name,
                       .row = call.row,
                       .category = call.category,
                       .begin_ns = s_.clocks[call.clock].to_host_ns(ticks(0)),
                       .end_ns = s_.clocks[call.clock].to_host_ns(ticks(1)),
                       .flops = call.flops,
                       .bytes = call.bytes,
                       .id = ids[i]};
    for (const uint32_t earlier : call.after) range.after.push_back(ids[earlier]);
    profiler().record(std::move(range));
  }
}

}  // namespace

/// Calls run one by one cost more than a replay: said once a process, not for every capture.
static void warn_of_fallback(const Error& why) {
  static std::atomic<bool> is_said{false};
  if (is_said.exchange(true, std::memory_order_relaxed)) return;
  log("runtime", LogLevel::kWarning,
      "a captured program is no graph, its calls are launched one by one: {} (said once)",
      why.message);
}

Result<std::unique_ptr<Graph>> make_graph(std::vector<Call> calls, uint32_t num_inputs,
                                          uint32_t num_vars,
                                          std::span<const Buffer> capture_inputs) {
  // Where nothing but host functions run there is no graph to miss.
  const bool is_host_only = std::ranges::all_of(
      calls, [](const Call& call) { return std::holds_alternative<HostCall>(call.what); });
  auto state = build_graph(std::move(calls), num_inputs, num_vars, capture_inputs);
  if (!state) {
    if (state.error().code == Code::kUnsupported && !is_host_only) warn_of_fallback(state.error());
    return tl::unexpected<Error>(std::move(state.error()));
  }
  return std::unique_ptr<Graph>(new RecordedGraph(std::move(*state)));
}

}  // namespace bm::runtime
