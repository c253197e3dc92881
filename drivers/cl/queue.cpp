#include "drivers/cl/queue.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "runtime/base/out_of_memory.h"

namespace bm::cl {
namespace {

/// Commands without any action are bounded too.
constexpr size_t kMostUnmarked = Completions::kCapacity;
/// Signals one queue remembers with their events. The oldest is forgotten; waiting for it then goes
/// by its word.
constexpr size_t kMostProduced = 64;
constexpr int kClockProbes = 9;

int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

ClQueue::ClQueue(QueueShared& shared, OwnedQueue queue)
    : shared_(shared),
      api_(shared.context->api),
      memory_(*shared.memory),
      queue_(std::move(queue)),
      completions_(api_, shared.health, shared.tasks, shared.completions, shared.wait_timeout_ms) {
  produced_.reserve(kMostProduced);
}

Result<std::unique_ptr<ClQueue>> ClQueue::create(QueueShared& shared) {
  const Context& context = *shared.context;
  cl_int error = CL_SUCCESS;
  OwnedQueue queue(context.api, context.api.clCreateCommandQueue(context.handle,
                                                                 context.unit.device, 0, &error));
  BM_TRY(check(error, "clCreateCommandQueue"));
  std::unique_ptr<ClQueue> made(new ClQueue(shared, std::move(queue)));
  shared.queues.push_back(made.get());
  return made;
}

Status ClQueue::submit(std::span<const hal::Command> commands) {
  const std::lock_guard lock(shared_.mutex);
  BM_TRY(shared_.health.status());
  // Everything is translated before anything runs, so a malformed command leaves no half-done list.
  BM_TRY(translate(commands, memory_, scratch_));
  return execute(scratch_, false);
}

Result<std::unique_ptr<hal::Recording>> ClQueue::record(std::span<const hal::Command> commands,
                                                        std::span<const hal::Patch> patches) {
  const std::lock_guard lock(shared_.mutex);
  BM_TRY(shared_.health.status());
  return BM_TRY(ClRecording::build(commands, patches, memory_));
}

Status ClQueue::replay(hal::Recording& recording, std::span<const uint64_t> values) {
  const std::lock_guard lock(shared_.mutex);
  if (shared_.health.is_bad()) BM_TRY(shared_.health.status());
  auto& mine = static_cast<ClRecording&>(recording);
  BM_TRY(mine.patch(values, memory_));
  return execute(mine.list(), true);
}

Status ClQueue::execute(StepList& list, bool is_recorded) {
  const HostTasks::Submission submission(shared_.tasks);
  for (const Step& step : list.steps) BM_TRY(execute_step(step, list, is_recorded));
  BM_TRY(close_views());
  if (unmarked_ > kMostUnmarked) {
    const cl_event event = BM_TRY(mark());
    BM_TRY(completions_.push({}, event));
    unmarked_ = 0;
  }
  // Callbacks, and other queues' waits for our events, only come for flushed commands.
  return done(api_.clFlush(queue_.get()), "clFlush");
}

Status ClQueue::execute_step(const Step& step, StepList& list, bool is_recorded) {
  switch (step.kind) {
    case StepKind::kNothing: return {};
    case StepKind::kDispatch: {
      Launch& launch = list.launches[step.launch];
      if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0) return {};
      if (!is_recorded) BM_TRY(bind_arguments(launch, memory_));
      return dispatch(step, launch);
    }
    case StepKind::kCopy: return copy(step);
    case StepKind::kWait: return wait(step);
    case StepKind::kSignal: return signal(step);
    case StepKind::kWrite: return write(step);
    case StepKind::kTimestamp: return timestamp(step);
  }
  __builtin_unreachable();
}

// ---- Work

Status ClQueue::dispatch(const Step& step, Launch& launch) {
  if (launch.has_views) BM_TRY(open_views(launch));
  const hal::Dim3 block = launch.program->code().block;
  const std::array<size_t, 3> local{block.x, block.y, block.z};
  const std::array<size_t, 3> global{launch.grid[0] * block.x, launch.grid[1] * block.y,
                                     launch.grid[2] * block.z};
  const cl_uint dims = global[2] > 1 ? 3 : global[1] > 1 ? 2 : 1;
  const EndsOutOfMemory ends("OpenCL launch");  // may compile, as in ClProgram::build()
  const cl_int error =
      api_.clEnqueueNDRangeKernel(queue_.get(), launch.kernel(), dims, nullptr, global.data(),
                                  local.data(), 0, nullptr, event_for(step));
  if (error == CL_SUCCESS) [[likely]]
    return {};
  return done(error, launch.program->code().entry.c_str());
}

/// Gives host memory that a kernel will touch to the device.
Status ClQueue::open_views(const Launch& launch) {
  for (Region* region : launch.views) {
    if (region == nullptr || !region->is_mapped) continue;
    void* pointer = region->host();
    if (!region->was_mapped) {
      // Whatever the device made of the memory before is old: it is all to be read at the unmap.
      cl_int error = CL_SUCCESS;
      pointer = api_.clEnqueueMapBuffer(queue_.get(), region->mem(), CL_FALSE,
                                        CL_MAP_WRITE_INVALIDATE_REGION, 0, region->size(), 0,
                                        nullptr, nullptr, &error);
      BM_TRY(done(error, "clEnqueueMapBuffer"));
      region->was_mapped = true;
    }
    BM_TRY(done(
        api_.clEnqueueUnmapMemObject(queue_.get(), region->mem(), pointer, 0, nullptr, nullptr),
        "clEnqueueUnmapMemObject"));
    region->is_mapped = false;
    open_views_.push_back(region);
  }
  return {};
}

/// Gives it back to the host. Memory made around a host pointer is mapped at that pointer.
Status ClQueue::close_views() {
  for (Region* region : open_views_) {
    cl_int error = CL_SUCCESS;
    api_.clEnqueueMapBuffer(queue_.get(), region->mem(), CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0,
                            region->size(), 0, nullptr, nullptr, &error);
    BM_TRY(done(error, "clEnqueueMapBuffer"));
    region->is_mapped = true;
    last_event_ = {};
  }
  open_views_.clear();
  return {};
}

Status ClQueue::copy(const Step& step) {
  const uint64_t bytes = step.words[2];
  if (bytes == 0) return {};
  BM_TRY(close_views());
  if (step.dst.space == Space::kMem || step.src.space == Space::kMem) return copy_buffer(step);
  if (step.dst.space == Space::kHost && step.src.space == Space::kHost) return copy_on_host(step);
  return done(api_.clEnqueueSVMMemcpy(queue_.get(), CL_FALSE, step.dst.pointer, step.src.pointer,
                                      bytes, 0, nullptr, event_for(step)),
              "clEnqueueSVMMemcpy");
}

/// One side or both are a cl_mem.
Status ClQueue::copy_buffer(const Step& step) {
  const Place &dst = step.dst, &src = step.src;
  const uint64_t bytes = step.words[2];
  if (dst.space == Space::kMem && src.space == Space::kMem)
    return done(
        api_.clEnqueueCopyBuffer(queue_.get(), src.region->mem(), dst.region->mem(), src.offset,
                                 dst.offset, bytes, 0, nullptr, event_for(step)),
        "clEnqueueCopyBuffer");
  const bool is_write = dst.space == Space::kMem;
  const Place& other = is_write ? src : dst;
  // Coarse-grained memory is the host's only while mapped.
  const bool must_map = other.space == Space::kSvm && !other.region->is_fine();
  if (must_map)
    BM_TRY(done(api_.clEnqueueSVMMap(queue_.get(), CL_FALSE, is_write ? CL_MAP_READ : CL_MAP_WRITE,
                                     other.pointer, bytes, 0, nullptr, nullptr),
                "clEnqueueSVMMap"));
  cl_event* event = event_for(step);
  BM_TRY(is_write ? done(api_.clEnqueueWriteBuffer(queue_.get(), dst.region->mem(), CL_FALSE,
                                                   dst.offset, bytes, src.pointer, 0, nullptr,
                                                   must_map ? nullptr : event),
                         "clEnqueueWriteBuffer")
                  : done(api_.clEnqueueReadBuffer(queue_.get(), src.region->mem(), CL_FALSE,
                                                  src.offset, bytes, dst.pointer, 0, nullptr,
                                                  must_map ? nullptr : event),
                         "clEnqueueReadBuffer"));
  if (!must_map) return {};
  return done(api_.clEnqueueSVMUnmap(queue_.get(), other.pointer, 0, nullptr, event),
              "clEnqueueSVMUnmap");
}

Status ClQueue::copy_on_host(const Step& step) {
  HostTask task;
  task.kind = HostTask::Kind::kCopy;
  task.dst = step.dst.pointer;
  task.src = step.src.pointer;
  task.bytes = step.words[2];
  return host_task(task, true);
}

Status ClQueue::write(const Step& step) {
  BM_TRY(close_views());
  const uint64_t& value = step.words[1];
  switch (step.dst.space) {
    case Space::kSvm:
      return done(api_.clEnqueueSVMMemFill(queue_.get(), step.dst.pointer, &value, sizeof value,
                                           sizeof value, 0, nullptr, event_for(step)),
                  "clEnqueueSVMMemFill");
    case Space::kMem:
      return done(
          api_.clEnqueueFillBuffer(queue_.get(), step.dst.region->mem(), &value, sizeof value,
                                   step.dst.offset, sizeof value, 0, nullptr, event_for(step)),
          "clEnqueueFillBuffer");
    case Space::kHost: break;
  }
  HostTask task;
  task.kind = HostTask::Kind::kStore;
  task.word = static_cast<uint64_t*>(step.dst.pointer);
  task.value = value;
  return host_task(task, true);
}

/// Holds later commands back until the host has done `task`. `is_ordered`: the task itself begins
/// after everything so far.
Status ClQueue::host_task(HostTask task, bool is_ordered) {
  cl_int error = CL_SUCCESS;
  OwnedEvent user(api_, api_.clCreateUserEvent(shared_.context->handle, &error));
  BM_TRY(done(error, "clCreateUserEvent"));
  BM_TRY(done(api_.clRetainEvent(user.get()), "clRetainEvent"));
  task.done = user.get();  // the retained reference
  task.queue = &completions_;
  task.after = completions_.pushed();
  if (is_ordered) {
    Action action;
    action.kind = Action::Kind::kTask;
    action.task = task;
    const cl_event event = BM_TRY(mark());
    BM_TRY(completions_.push(action, event));
  } else {
    shared_.tasks.post(task);
  }
  return barrier(user.get());
}

// ---- Order

Status ClQueue::wait(const Step& step) {
  const uint64_t wanted = step.words[1];
  const std::atomic_ref word(*step.host);
  if (word.load(std::memory_order_acquire) >= wanted) return {};
  for (ClQueue* queue : shared_.queues) {
    const Produced* produced = queue->find_produced(step.host, wanted);
    if (produced == nullptr) continue;
    if (queue->completions_.retired() > produced->sequence) {
      // It has been stored. If it is not there any more, the host began to count anew.
      if (word.load(std::memory_order_acquire) >= wanted) return {};
      continue;
    }
    if (queue == this) return {};
    completions_.stand_behind(queue->completions_, produced->sequence);
    return barrier(produced->event.get());
  }
  HostTask task;
  task.kind = HostTask::Kind::kWait;
  task.word = step.host;
  task.value = wanted;
  return host_task(task, false);
}

Status ClQueue::signal(const Step& step) {
  BM_TRY(close_views());
  Action action;
  action.kind = Action::Kind::kStore;
  action.word = step.host;
  action.value = step.words[1];
  const cl_event event = BM_TRY(mark());
  BM_TRY(completions_.push(action, event));
  unmarked_ = 0;
  note_produced(step.host, action.value, event);
  return {};
}

Status ClQueue::timestamp(const Step& step) {
  BM_TRY(close_views());
  if (!is_profiling_) BM_TRY(enable_profiling());
  Action action;
  action.kind = Action::Kind::kTimestamp;
  action.word = step.host;
  action.clock_offset_ns = clock_offset_ns_;
  const cl_event event = BM_TRY(mark());
  return completions_.push(action, event);
}

Result<cl_event> ClQueue::mark() {
  if (!last_event_) {
    cl_event event = nullptr;
    BM_TRY(done(api_.clEnqueueMarkerWithWaitList(queue_.get(), 0, nullptr, &event),
                "clEnqueueMarkerWithWaitList"));
    last_event_ = OwnedEvent(api_, event);
  }
  return last_event_.get();
}

Status ClQueue::barrier(cl_event event) {
  last_event_ = {};
  return done(api_.clEnqueueBarrierWithWaitList(queue_.get(), 1, &event, nullptr),
              "clEnqueueBarrierWithWaitList");
}

void ClQueue::note_produced(const uint64_t* word, uint64_t value, cl_event event) {
  api_.clRetainEvent(event);
  Produced fresh{word, value, OwnedEvent(api_, event), completions_.pushed() - 1};
  if (produced_.size() == kMostProduced) produced_.erase(produced_.begin());
  produced_.push_back(std::move(fresh));
}

/// The latest signal of exactly this value. A larger one would satisfy the wait too, but may itself
/// stand behind the waiter: with several queues signalling one word nobody here knows which is the
/// first that will do, so without an exact match the word is watched.
const ClQueue::Produced* ClQueue::find_produced(const uint64_t* word, uint64_t wanted) const {
  const auto found = std::find_if(
      produced_.rbegin(), produced_.rend(),
      [&](const Produced& produced) { return produced.word == word && produced.value == wanted; });
  return found == produced_.rend() ? nullptr : &*found;
}

// ---- Clock

/// Replaces the command queue by one that keeps times, behind everything in the old one. Not from
/// the start: some drivers run one command at a time then.
Status ClQueue::enable_profiling() {
  const Context& context = *shared_.context;
  cl_int error = CL_SUCCESS;
  OwnedQueue timed(api_, api_.clCreateCommandQueue(context.handle, context.unit.device,
                                                   CL_QUEUE_PROFILING_ENABLE, &error));
  BM_TRY(done(error, "clCreateCommandQueue"));
  clock_offset_ns_ = BM_TRY(measure_clock_offset(timed.get()));
  const cl_event end = BM_TRY(mark());
  BM_TRY(done(api_.clFlush(queue_.get()), "clFlush"));
  BM_TRY(done(api_.clEnqueueBarrierWithWaitList(timed.get(), 1, &end, nullptr),
              "clEnqueueBarrierWithWaitList"));
  last_event_ = {};
  queue_ = std::move(timed);
  is_profiling_ = true;
  return {};
}

/// Steady clock minus the clock of events: median of round trips.
Result<int64_t> ClQueue::measure_clock_offset(cl_command_queue queue) const {
  std::array<int64_t, kClockProbes> offsets{};
  for (int64_t& offset : offsets) {
    const int64_t before = steady_ns();
    cl_event event = nullptr;
    BM_TRY(check(api_.clEnqueueMarkerWithWaitList(queue, 0, nullptr, &event), "clock probe"));
    const OwnedEvent owned(api_, event);
    BM_TRY(check(api_.clWaitForEvents(1, &event), "clock probe"));
    const int64_t middle = before + (steady_ns() - before) / 2;
    cl_ulong ended = 0;
    const cl_int error = api_.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof ended,
                                                      &ended, nullptr);
    if (error != CL_SUCCESS) return int64_t{0};  // Completions takes the host's clock then
    offset = middle - static_cast<int64_t>(ended);
  }
  std::nth_element(offsets.begin(), offsets.begin() + kClockProbes / 2, offsets.end());
  return offsets[kClockProbes / 2];
}

/// Where the next command puts its event, or null. What came before is no longer last.
cl_event* ClQueue::event_for(const Step& step) {
  ++unmarked_;
  last_event_ = {};
  return step.is_observed ? last_event_.receive(api_) : nullptr;
}

/// A device that is lost stays so.
Status ClQueue::done(cl_int error, const char* what) {
  if (error == CL_SUCCESS) [[likely]]
    return {};
  Status failed = check(error, what);
  if (failed.error().code == Code::kDeviceLost) shared_.health.fail(failed.error());
  return failed;
}

}  // namespace bm::cl
