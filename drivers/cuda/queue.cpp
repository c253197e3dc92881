#include "drivers/cuda/queue.h"

#include <cstring>
#include <thread>

#include "drivers/cuda/progress_thread.h"

namespace bm::cuda {
namespace {

/// Steps a standing queue keeps.
constexpr size_t kMostStanding = 1024;
// A driver blocks for ever when a stream that waits has about 1024 launches behind it; submit()
// may not. So this many commands at most are in flight.
constexpr uint32_t kMarkEvery = 64, kMostMarks = 8;
/// How often waits here look whether the device has become bad.
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

QueueShared::~QueueShared() = default;

/// One action may stand behind another queue's, and both may store to one word. The other may have
/// been asked about before it was complete and this one after: only when asking all of them again
/// brings nothing new is everything known that the known ones stand behind.
Status QueueShared::retire() {
  for (bool is_news = true; is_news;) {
    is_news = false;
    for (CudaQueue* queue : queues) is_news |= BM_TRY(queue->completions().look());
  }
  BM_TRY(context->health.status());
  for (;;) {
    Completions* first = nullptr;
    for (CudaQueue* queue : queues) {
      Completions& next = queue->completions();
      if (next.next_complete() != UINT64_MAX &&
          (first == nullptr || next.next_complete() < first->next_complete()))
        first = &next;
    }
    if (first == nullptr) return {};
    BM_TRY(first->perform_next());
    ++performed;
  }
}

CudaQueue::CudaQueue(QueueShared& shared, CuStream stream)
    : shared_(shared),
      context_(*shared.context),
      api_(context_.api),
      stream_(stream),
      completions_(context_, shared.clock),
      standing_(kMostStanding) {
  context_.add_stream(stream_);
}

CudaQueue::~CudaQueue() {
  context_.remove_stream(stream_);
  api_.cuStreamDestroy(stream_);
}

Result<std::unique_ptr<CudaQueue>> CudaQueue::create(QueueShared& shared) {
  const Context& context = *shared.context;
  CuStream stream = nullptr;
  // Not ordered with the default stream, which other users of the context may have filled.
  BM_TRY(context.done(context.api.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate"));
  std::unique_ptr<CudaQueue> queue(new CudaQueue(shared, stream));
  shared.queues.push_back(queue.get());
  return queue;
}

// ---- Lists

Status CudaQueue::submit(std::span<const hal::Command> commands) {
  const std::lock_guard mine(submitters_);
  BM_TRY(context_.health.status());
  // Everything is translated before anything runs, so a malformed command leaves no half-done list.
  BM_TRY(translate(commands, *shared_.memory, scratch_));
  const Current current(context_);
  std::unique_lock lock(shared_.mutex);
  for (const Step& step : scratch_) BM_TRY(enqueue(lock, step));
  if (has_work_left()) shared_.progress->wake();
  return {};
}

Result<std::unique_ptr<hal::Recording>> CudaQueue::record(std::span<const hal::Command> commands,
                                                          std::span<const hal::Patch> patches) {
  BM_TRY(context_.health.status());
  const Current current(context_);
  const std::lock_guard lock(shared_.mutex);
  return BM_TRY(CudaRecording::build(commands, patches, *shared_.memory, stream_));
}

Status CudaQueue::replay(hal::Recording& recording, std::span<const uint64_t> values) {
  const std::lock_guard mine(submitters_);
  BM_TRY(context_.health.status());
  const Current current(context_);
  std::unique_lock lock(shared_.mutex);
  auto& list = static_cast<CudaRecording&>(recording);
  BM_TRY(list.patch(values, *shared_.memory));
  for (const CudaRecording::Part& part : list.parts()) {
    if (part.graph != nullptr && BM_TRY(part.graph->update())) {
      Step step;
      step.kind = StepKind::kGraph;
      step.graph = part.graph.get();
      BM_TRY(enqueue(lock, step));
    } else {
      for (const Step& step : list.steps(part)) BM_TRY(enqueue(lock, step));
    }
  }
  if (has_work_left()) shared_.progress->wake();
  return {};
}

/// Runs the step, or keeps it when the queue stands.
Status CudaQueue::enqueue(std::unique_lock<std::mutex>& lock, const Step& step) {
  if (step.kind == StepKind::kNothing) return {};
  if (num_standing_ == 0 && BM_TRY(run(step))) return {};
  if (num_standing_ == kMostStanding) BM_TRY(wait_for_room(lock));
  standing_[(first_standing_ + num_standing_++) % kMostStanding] = step;
  return {};
}

Status CudaQueue::wait_for_room(std::unique_lock<std::mutex>& lock) {
  uint64_t seen = progress_ + shared_.performed;
  Clock_::time_point deadline = Clock_::now() + shared_.timeout;
  for (;;) {
    advance();
    BM_TRY(context_.health.status());
    if (num_standing_ < kMostStanding) return {};
    if (progress_ + shared_.performed != seen) {
      seen = progress_ + shared_.performed;
      deadline = Clock_::now() + shared_.timeout;
    }
    // TIMEOUT: BM_WAIT_TIMEOUT_MS without progress, the bound of every wait for a device.
    if (Clock_::now() >= deadline)
      return fail(Code::kTimeout, "{} commands wait, none completed for {} ms", num_standing_,
                  shared_.timeout.count());
    shared_.progress->wake();
    shared_.moved.wait_for(lock, kLook);
  }
}

bool CudaQueue::advance() {
  const uint64_t before = progress_ + shared_.performed;
  Status status = shared_.retire();
  while (status && num_standing_ != 0) {
    const Step& step = standing_[first_standing_];
    const Result<bool> done = run(step);
    if (!done) {
      status = tl::unexpected(done.error());
    } else if (!*done) {
      if (step.kind == StepKind::kWait) check_patience(step);
      break;
    } else {
      first_standing_ = (first_standing_ + 1) % kMostStanding;
      --num_standing_;
      ++progress_;
      is_waiting_ = false;
    }
  }
  // Nobody is there to be told, and what follows must not run without it.
  if (!status) context_.health.fail(std::move(status.error()));
  return progress_ + shared_.performed != before;
}

/// The clock runs while the word stands still and nothing before the wait is running.
void CudaQueue::check_patience(const Step& step) {
  const uint64_t now_value = step.dst.host == nullptr ? 0 : step.word().load();
  const Clock_::time_point now = Clock_::now();
  const auto restart = [&] {
    is_waiting_ = true;
    seen_ = now_value;
    deadline_ = now + shared_.timeout;
  };
  if (!is_waiting_ || now_value != seen_) return restart();
  if (now < deadline_) return;
  if (!completions_.is_empty() || !is_stream_idle()) return restart();
  // TIMEOUT: BM_WAIT_TIMEOUT_MS without progress of the word while the queue stands at the wait.
  context_.health.fail(
      {Code::kTimeout,
       fmt::format("signal at {:#x}: waited {} ms for value {}, it is {}", step.words[0],
                   shared_.timeout.count(), step.words[1], now_value)});
}

// ---- Steps

Result<bool> CudaQueue::run(const Step& step) {
  switch (step.kind) {
    case StepKind::kNothing: return true;
    case StepKind::kLaunch: return launch(step);
    case StepKind::kGraph: return launch_graph(step);
    case StepKind::kCopy: return copy(step);
    case StepKind::kWait: return wait(step);
    case StepKind::kSignal: return signal(step);
    case StepKind::kWrite: return write(step);
    case StepKind::kTimestamp: {
      Action action;
      action.kind = Action::Kind::kTimestamp;
      action.word = reinterpret_cast<uint64_t*>(step.dst.host);
      return push(action);
    }
  }
  __builtin_unreachable();
}

/// Before anything goes to the stream.
Result<bool> CudaQueue::has_room() {
  if (++unmarked_ < kMarkEvery) [[likely]]
    return true;
  if (completions_.marks() >= kMostMarks) {
    BM_TRY(shared_.retire());
    if (completions_.marks() >= kMostMarks) return false;
  }
  if (!BM_TRY(push({}))) return false;
  unmarked_ = 0;
  return true;
}

Result<bool> CudaQueue::push(const Action& action) {
  if (completions_.is_full()) BM_TRY(shared_.retire());
  return completions_.push(action, stream_, ++shared_.pushed);
}

Result<bool> CudaQueue::launch(const Step& step) {
  if (step.is_empty_grid()) return true;
  if (!BM_TRY(has_room())) return false;
  const hal::Dim3 block = step.program->code().block;
  size_t bytes = step.program->argument_words() * sizeof(uint64_t);
  void* packed[] = {kParamPointer, step.arguments, kParamSize, &bytes, kParamEnd};
  void** const extra = bytes == 0 ? nullptr : packed;
  const uint32_t shared = step.program->launch_shared_bytes();
  CuResult error = kSuccess;
  if (step.program->waits_for_grid()) {
    const LaunchAttribute early{.id = kProgrammaticSerialization, .value = 1};
    const LaunchConfig config{step.grid.x, step.grid.y, step.grid.z, block.x, block.y,
                              block.z,     shared,      stream_,     &early,  1};
    error = api_.cuLaunchKernelEx(&config, step.program->function(), nullptr, extra);
  } else {
    error = api_.cuLaunchKernel(step.program->function(), step.grid.x, step.grid.y, step.grid.z,
                                block.x, block.y, block.z, shared, stream_, nullptr, extra);
  }
  if (error == kSuccess) [[likely]]
    return true;
  BM_TRY(context_.failed(error, fmt::format("kernel '{}'", step.program->code().entry)));
  return true;
}

Result<bool> CudaQueue::launch_graph(const Step& step) {
  if (!BM_TRY(has_room())) return false;
  BM_TRY(step.graph->launch(stream_));
  return true;
}

Result<bool> CudaQueue::copy(const Step& step) {
  const uint64_t bytes = step.words[2];
  if (bytes == 0) return true;
  const Place &dst = step.dst, &src = step.src;
  if (!dst.is_device_reachable() || !src.is_device_reachable()) return copy_by_host(step);
  if (!BM_TRY(has_room())) return false;
  if (dst.space == Space::kDevice && src.space == Space::kShared) {
    BM_TRY(context_.done(api_.cuMemcpyHtoDAsync(dst.va, src.host, bytes, stream_),
                         "cuMemcpyHtoDAsync"));
  } else if (dst.space == Space::kShared && src.space == Space::kDevice) {
    BM_TRY(copy_to_host(step));
  } else {
    BM_TRY(
        context_.done(api_.cuMemcpyDtoDAsync(dst.va, src.va, bytes, stream_), "cuMemcpyDtoDAsync"));
  }
  return true;
}

Status CudaQueue::copy_to_host(const Step& step) {
  const uint64_t bytes = step.words[2];
  if (api_.cuMemcpyDtoHAsync != nullptr)
    return context_.done(api_.cuMemcpyDtoHAsync(step.dst.host, step.src.va, bytes, stream_),
                         "cuMemcpyDtoHAsync");
  BM_TRY(context_.done(api_.cuStreamSynchronize(stream_), "cuStreamSynchronize"));
  return context_.done(api_.cuMemcpyDtoH(step.dst.host, step.src.va, bytes), "cuMemcpyDtoH");
}

/// One side is memory the GPU does not reach. The driver would make the caller wait for everything
/// before; so the queue stands until it is done.
Result<bool> CudaQueue::copy_by_host(const Step& step) {
  BM_TRY(shared_.retire());
  if (!completions_.is_empty() || !is_stream_idle()) return false;
  const uint64_t bytes = step.words[2];
  const Place &dst = step.dst, &src = step.src;
  if (dst.host != nullptr && src.host != nullptr) {
    std::memmove(dst.host, src.host, bytes);
    return true;
  }
  // The host's side must not be touched any more when this returns: synchronize what may be staged.
  BM_TRY(dst.space == Space::kDevice
             ? context_.done(api_.cuMemcpyHtoDAsync(dst.va, src.host, bytes, stream_),
                             "cuMemcpyHtoDAsync")
             : copy_to_host(step));
  BM_TRY(context_.done(api_.cuStreamSynchronize(stream_), "copy of host memory"));
  return true;
}

bool CudaQueue::is_stream_idle() const { return api_.cuStreamQuery(stream_) != kErrorNotReady; }

// ---- Words

Result<bool> CudaQueue::wait(const Step& step) {
  const uint64_t wanted = step.words[1];
  const bool has_host = step.dst.host != nullptr;
  if (has_host && step.word().load(std::memory_order_acquire) >= wanted) return true;
  if (context_.info.has_mem_ops && step.dst.is_device_reachable()) {
    if (!BM_TRY(has_room())) return false;
    BM_TRY(
        context_.done(api_.cuStreamWaitValue64(stream_, step.dst.va, wanted, kWaitGreaterOrEqual),
                      "cuStreamWaitValue64"));
    return true;
  }
  // A store of one of our own queues is known by its event; any other word is looked at.
  const auto* word = reinterpret_cast<const uint64_t*>(step.dst.host);
  if (completions_.has_store(word, wanted)) return true;
  for (const CudaQueue* queue : shared_.queues) {
    const CuEvent event = queue->completions_.find_store(word, wanted);
    if (event == nullptr) continue;
    if (!BM_TRY(has_room())) return false;
    BM_TRY(context_.done(api_.cuStreamWaitEvent(stream_, event, 0), "cuStreamWaitEvent"));
    return true;
  }
  return false;
}

Result<bool> CudaQueue::signal(const Step& step) {
  if (completions_.has_actions()) BM_TRY(shared_.retire());
  const bool by_stream = context_.info.has_mem_ops && step.dst.is_device_reachable();
  // Signals must not overtake a timestamp or signal that the host has yet to store.
  if (by_stream && (!completions_.has_actions() || step.dst.host == nullptr)) {
    if (!BM_TRY(has_room())) return false;
    BM_TRY(
        context_.done(api_.cuStreamWriteValue64(stream_, step.dst.va, step.words[1], kWriteDefault),
                      "cuStreamWriteValue64"));
    return true;
  }
  Action action;
  action.kind = Action::Kind::kStore;
  action.word = reinterpret_cast<uint64_t*>(step.dst.host);
  action.value = step.words[1];
  return push(action);
}

Result<bool> CudaQueue::write(const Step& step) {
  const uint64_t value = step.words[1];
  if (!step.dst.is_device_reachable()) {
    Action action;
    action.kind = Action::Kind::kStore;
    action.word = reinterpret_cast<uint64_t*>(step.dst.host);
    action.value = value;
    return push(action);
  }
  if (!BM_TRY(has_room())) return false;
  if (context_.info.has_mem_ops) {
    BM_TRY(context_.done(api_.cuStreamWriteValue64(stream_, step.dst.va, value, kWriteDefault),
                         "cuStreamWriteValue64"));
    return true;
  }
  if (api_.cuMemsetD32Async == nullptr)
    return fail(Code::kUnsupported, "this driver has no call that writes a word");
  BM_TRY(context_.done(api_.cuMemsetD32Async(step.dst.va, static_cast<uint32_t>(value), 1, stream_),
                       "cuMemsetD32Async"));
  BM_TRY(context_.done(
      api_.cuMemsetD32Async(step.dst.va + 4, static_cast<uint32_t>(value >> 32), 1, stream_),
      "cuMemsetD32Async"));
  return true;
}

// ---- Ends

Status CudaQueue::check_stream() const {
  const CuResult state = api_.cuStreamQuery(stream_);
  if (state == kSuccess || state == kErrorNotReady) [[likely]]
    return {};
  return context_.failed(state, "work in flight");
}

bool CudaQueue::drain() {
  const Clock_::time_point deadline = Clock_::now() + shared_.timeout;
  for (;;) {
    {
      const std::lock_guard lock(shared_.mutex);
      // Kernels and buffers are gone before their device: what stands here has lost its own.
      num_standing_ = 0;
      advance();
      const bool is_done = completions_.is_empty() || context_.health.is_bad();
      if (is_done && is_stream_idle()) return true;
      // Lost: what still runs may run for ever.
      if (context_.health.is_bad()) return false;
    }
    // TIMEOUT: BM_WAIT_TIMEOUT_MS, the bound of every wait for a device.
    if (Clock_::now() >= deadline) return false;
    std::this_thread::yield();
  }
}

}  // namespace bm::cuda
