// Order, faults, replay as only OpenCL has them; tests/cts has the rest. The counting and failing
// functions stand in for the real ones.

#include <algorithm>
#include <ctime>
#include <functional>
#include <mutex>
#include <utility>

#include "runtime/base/stuck_call.h"
#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;
using hal::QueueKind;

/// What the functions below have seen; tests run one at a time.
struct Seen {
  std::atomic<int> user_events{0}, barriers{0}, arguments{0}, profiling_queues{0}, markers{0};
};
Seen& seen() {
  static Seen counts;
  return counts;
}
void forget() {
  Seen& s = seen();
  for (auto* count : {&s.user_events, &s.barriers, &s.arguments, &s.profiling_queues, &s.markers})
    *count = 0;
}

const Api& real() { return **load_api(); }

std::shared_ptr<Api> counting_api() {
  forget();
  const auto api = real_api();
  api->clCreateUserEvent = [](cl_context context, cl_int* error) {
    ++seen().user_events;
    return real().clCreateUserEvent(context, error);
  };
  api->clEnqueueBarrierWithWaitList = [](cl_command_queue queue, cl_uint count,
                                         const cl_event* events, cl_event* event) {
    ++seen().barriers;
    return real().clEnqueueBarrierWithWaitList(queue, count, events, event);
  };
  api->clEnqueueMarkerWithWaitList = [](cl_command_queue queue, cl_uint count,
                                        const cl_event* events, cl_event* event) {
    ++seen().markers;
    return real().clEnqueueMarkerWithWaitList(queue, count, events, event);
  };
  api->clSetKernelArg = [](cl_kernel kernel, cl_uint index, size_t bytes, const void* value) {
    ++seen().arguments;
    return real().clSetKernelArg(kernel, index, bytes, value);
  };
  if (api->clSetKernelArgSVMPointer != nullptr)
    api->clSetKernelArgSVMPointer = [](cl_kernel kernel, cl_uint index, const void* value) {
      ++seen().arguments;
      return real().clSetKernelArgSVMPointer(kernel, index, value);
    };
  api->clCreateCommandQueue = [](cl_context context, cl_device_id device,
                                 cl_command_queue_properties properties, cl_int* error) {
    if (properties & CL_QUEUE_PROFILING_ENABLE) ++seen().profiling_queues;
    return real().clCreateCommandQueue(context, device, properties, error);
  };
  return api;
}

TEST(OpenClQueue, QueuesOfADeviceWaitForEachOthersEvents) {
  BM_NEEDS_OPENCL();
  const auto device = open_on(counting_api());
  const auto signals = words(*device), x = visible(*device, 64);
  word(*x, 0) = 5;
  EXPECT_OK(device->queue(QueueKind::kCompute)
                .submit(std::vector<hal::Command>{hal::Wait{at(*signals, 0), 1},
                                                  hal::Copy{at(*x, 1), at(*x, 0), 8},
                                                  hal::Signal{at(*signals, 1), 1}}));
  EXPECT_EQ(seen().user_events, 1) << "for the host's signal";
  EXPECT_OK(device->queue(QueueKind::kCopy)
                .submit(std::vector<hal::Command>{hal::Wait{at(*signals, 1), 1},
                                                  hal::Copy{at(*x, 2), at(*x, 1), 8},
                                                  hal::Signal{at(*signals, 2), 1}}));
  EXPECT_EQ(seen().user_events, 1) << "the other queue's event serves";
  EXPECT_EQ(seen().barriers, 2);
  word(*signals, 0).store(1, std::memory_order_release);
  EXPECT_OK(wait_for(*device, word(*signals, 2), 1));
  EXPECT_EQ(word(*x, 2), 5u);
}

TEST(OpenClQueue, WaitForItsOwnEarlierSignalCostsNothing) {
  BM_NEEDS_OPENCL();
  const auto device = open_on(counting_api());
  const auto signals = words(*device);
  EXPECT_OK(device->queue(QueueKind::kCompute)
                .submit(std::vector<hal::Command>{
                    hal::Wait{at(*signals, 0), 1}, hal::Signal{at(*signals, 1), 7},
                    hal::Wait{at(*signals, 1), 7}, hal::Signal{at(*signals, 2), 1}}));
  EXPECT_EQ(seen().barriers, 1);
  word(*signals, 0).store(1, std::memory_order_release);
  EXPECT_OK(wait_for(*device, word(*signals, 2), 1));
}

TEST(OpenClQueue, SignalThatWasTakenBackIsWaitedForAnew) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto signals = words(*device);
  EXPECT_OK(run(*device, {hal::Signal{at(*signals, 0), 9}}));
  EXPECT_EQ(word(*signals, 0), 9u);
  word(*signals, 0) = 0;  // as timelines do when they begin to count anew
  EXPECT_OK(device->queue(QueueKind::kCopy)
                .submit(std::vector<hal::Command>{hal::Wait{at(*signals, 0), 3},
                                                  hal::Signal{at(*signals, 1), 1}}));
  EXPECT_OK(run(*device, {}, QueueKind::kCompute));
  EXPECT_EQ(word(*signals, 1), 0u);
  word(*signals, 0).store(3, std::memory_order_release);
  EXPECT_OK(wait_for(*device, word(*signals, 1), 1));
}

TEST(OpenClQueue, SignalsOfAWordNeverGoBack) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto signals = words(*device);
  constexpr uint64_t kLast = 3000;  // more than are in flight at once
  std::atomic<bool> is_ordered{true};
  std::thread watcher([&] {
    for (uint64_t last = 0; last < kLast;) {
      const uint64_t now = word(*signals).load(std::memory_order_acquire);
      if (now < last) is_ordered = false;
      if (!device->status()) return;
      last = std::max(last, now);
    }
  });
  std::vector<hal::Command> commands;
  for (uint64_t i = 1; i <= kLast; ++i) commands.emplace_back(hal::Signal{signals->va(), i});
  EXPECT_OK(device->queue(QueueKind::kCompute).submit(commands));
  EXPECT_OK(wait_for(*device, word(*signals), kLast));
  watcher.join();
  EXPECT_TRUE(is_ordered);
}

/// The first callback asked for comes as late as the driver likes: after all others.
struct LateCallback {
  std::mutex mutex;
  bool is_taken = false;
  std::function<void()> call;
};
LateCallback& late() {
  static LateCallback callback;
  return callback;
}

TEST(OpenClQueue, LateCallbackDoesNotTakeASignalBack) {
  BM_NEEDS_OPENCL();
  late().is_taken = false;
  late().call = {};
  const auto api = real_api();
  api->clSetEventCallback = [](cl_event event, cl_int type,
                               void(CL_CALLBACK * notify)(cl_event, cl_int, void*),
                               void* user) -> cl_int {
    LateCallback& mine = late();
    {
      const std::lock_guard lock(mine.mutex);
      if (std::exchange(mine.is_taken, true))
        return real().clSetEventCallback(event, type, notify, user);
      mine.call = [=] { notify(event, CL_COMPLETE, user); };
    }
    return CL_SUCCESS;
  };
  const auto device = open_on(api);
  const auto signals = words(*device);
  // A timeline: each submission waits for the one before, and signals the next value.
  EXPECT_OK(device->queue(QueueKind::kCopy)
                .submit(std::vector<hal::Command>{hal::Signal{at(*signals, 0), 1}}));
  EXPECT_OK(device->queue(QueueKind::kCompute)
                .submit(std::vector<hal::Command>{hal::Wait{at(*signals, 0), 1},
                                                  hal::Signal{at(*signals, 0), 2}}));
  EXPECT_OK(device->queue(QueueKind::kCompute)
                .submit(std::vector<hal::Command>{hal::Signal{at(*signals, 0), 3}}));
  // The driver is through with all three; only who tells us of the first is late.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(word(*signals, 0), 0u) << "later signals come after the first";
  late().call();
  EXPECT_OK(wait_for(*device, word(*signals, 0), 3));
  EXPECT_EQ(word(*signals, 0), 3u);
}

TEST(OpenClQueue, StuckDeviceCanBeClosedWithEverythingOnIt) {
  BM_NEEDS_OPENCL();
  const ScopedSetting timeout("BM_WAIT_TIMEOUT_MS", "30");
  for (const char* mode : kSvmModes) {
    const auto device = open(mode);
    const auto program = device->load(add_code(*device));
    ASSERT_TRUE(program);
    const auto x = visible(*device, 512), y = allocate(*device, {.size = 512}),
               arguments = words(*device), signals = words(*device);
    word(*arguments, 0) = address(*x);
    word(*arguments, 1) = 64;
    word(*arguments, 2) = 1;
    const hal::Command add = hal::Dispatch{program->get(), arguments->va(), {}};
    EXPECT_OK(run(*device, {add}));
    EXPECT_OK(device->queue(QueueKind::kCompute)
                  .submit(std::vector<hal::Command>{
                      hal::Wait{at(*signals, 0), 1}, add, hal::Copy{y->va(), x->va(), 512},
                      hal::Timestamp{at(*signals, 2)}, hal::Signal{at(*signals, 1), 1}}));
    EXPECT_EQ(wait_for(*device, word(*signals, 1), 1).error().code, Code::kTimeout);
    EXPECT_EQ(word(*x), 1u) << mode;
  }
}

TEST(OpenClQueue, FullQueueBlocksAndGivesUp) {
  BM_NEEDS_OPENCL();
  const ScopedSetting timeout("BM_WAIT_TIMEOUT_MS", "50");
  const auto device = open();
  const auto signals = words(*device);
  EXPECT_OK(device->queue(QueueKind::kCompute)
                .submit(std::vector<hal::Command>{hal::Wait{at(*signals, 0), 1}}));
  std::vector<hal::Command> many(2000, hal::Signal{at(*signals, 1), 1});
  const auto status = device->queue(QueueKind::kCompute).submit(many);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kTimeout);
  word(*signals, 0).store(1, std::memory_order_release);
}

TEST(OpenClQueue, OutOfResourcesIsALostDevice) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clEnqueueNDRangeKernel = [](cl_command_queue, cl_kernel, cl_uint, const size_t*,
                                   const size_t*, const size_t*, cl_uint, const cl_event*,
                                   cl_event*) { return cl_int{CL_OUT_OF_RESOURCES}; };
  const auto device = open_on(api);
  const auto program = device->load(add_code(*device));
  ASSERT_TRUE(program);
  const auto x = visible(*device, 512), arguments = words(*device);
  word(*arguments, 0) = address(*x);
  const auto status = run(*device, {hal::Dispatch{program->get(), arguments->va(), {}}});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDeviceLost);
  EXPECT_NE(status.error().message.find("CL_OUT_OF_RESOURCES"), std::string::npos);
  EXPECT_EQ(device->status().error().code, Code::kDeviceLost);
  EXPECT_EQ(device->queue(QueueKind::kCopy).submit({}).error().code, Code::kDeviceLost) << "sticky";
}

/// What the handler of stuck calls was told, and what lets the planted call return.
struct Stuck {
  std::atomic<int> told{0};
  std::atomic<bool> may_return{false};
  std::string why;
};
Stuck& stuck() {
  static Stuck state;
  return state;
}

TEST(OpenClQueue, ACallThatNeverReturnsIsToldWithinTheLimit) {
  BM_NEEDS_OPENCL();
  stuck().told = 0;
  stuck().may_return = false;
  const ScopedSetting limit("BM_WAIT_TIMEOUT_MS", "200");
  const auto api = real_api();
  api->clFlush = [](cl_command_queue) {
    stuck().may_return.wait(false);
    return cl_int{CL_SUCCESS};
  };
  const auto device = open_on(api);
  set_stuck_call_handler([](std::string_view why) {
    stuck().why = why;
    stuck().told = 1;
  });
  std::thread submitter([&] { (void)device->queue(QueueKind::kCompute).submit({}); });
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (stuck().told == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  set_stuck_call_handler(nullptr);
  EXPECT_NE(stuck().why.find("has not returned for"), std::string::npos) << stuck().why;
  EXPECT_EQ(device->status().error().code, Code::kTimeout);
  stuck().may_return = true;
  stuck().may_return.notify_all();
  submitter.join();
}

/// PoCL compiles where work is handed over.
TEST(OpenClQueue, ACallThatComputesIsGivenMoreTime) {
  BM_NEEDS_OPENCL();
  const ScopedSetting limit("BM_WAIT_TIMEOUT_MS", "200");
  const auto api = real_api();
  api->clFlush = [](cl_command_queue queue) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
    while (std::chrono::steady_clock::now() < end) {}
    return real().clFlush(queue);
  };
  const auto device = open_on(api);
  EXPECT_OK(device->queue(QueueKind::kCompute).submit({}));
  EXPECT_OK(device->status());
}

TEST(OpenClQueue, FailedAllocationIsNotALostDevice) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clCreateBuffer = [](cl_context, cl_mem_flags, size_t, void*, cl_int* error) {
    *error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    return cl_mem{};
  };
  const ScopedSetting svm("BM_CL_SVM", "0");
  const auto device = open_on(api);
  EXPECT_EQ(device->allocate({.size = 4096}).error().code, Code::kOutOfMemory);
  EXPECT_OK(device->status());
}

// ---- Replay

/// Ten kernels on one buffer, then a signal. Slots: buffer, amount, timeline.
struct Replayed {
  Replayed(hal::Device& the_device, hal::Buffer& x) : device(the_device), end(words(device)) {
    auto loaded = device.load(add_code(device));
    EXPECT_TRUE(loaded);
    program = std::move(*loaded);
    arguments = words(device);
    word(*arguments, 0) = address(x);
    word(*arguments, 1) = 64;
    word(*arguments, 2) = 1;
    std::vector<hal::Command> commands(10, hal::Dispatch{program.get(), arguments->va(), {}});
    commands.emplace_back(hal::Signal{end->va(), 0});
    std::vector<hal::Patch> patches;
    for (uint32_t i = 0; i < 10; ++i) {
      patches.push_back({.command = i, .field = hal::PatchField::kKernarg, .word = 0, .slot = 0});
      patches.push_back({.command = i, .field = hal::PatchField::kKernarg, .word = 2, .slot = 1});
    }
    patches.push_back({.command = 10, .field = hal::PatchField::kSignalValue, .slot = 2});
    auto made = device.queue(QueueKind::kCompute).record(commands, patches);
    EXPECT_TRUE(made) << made.error().message;
    recording = std::move(*made);
  }
  Status replay(hal::Buffer& x, uint64_t amount) {
    const uint64_t values[] = {address(x), amount, ++count};
    BM_TRY(device.queue(QueueKind::kCompute).replay(*recording, values));
    return wait_for(device, word(*end), count);
  }
  hal::Device& device;
  std::unique_ptr<hal::Buffer> end, arguments;
  std::unique_ptr<hal::Program> program;
  std::unique_ptr<hal::Recording> recording;
  uint64_t count = 0;
};

TEST(OpenClReplay, SetsOnlyArgumentsThatChanged) {
  BM_NEEDS_OPENCL();
  const auto device = open_on(counting_api());
  const auto x = visible(*device, 512), y = visible(*device, 512);
  Replayed replayed(*device, *x);
  EXPECT_OK(replayed.replay(*x, 1));
  forget();
  EXPECT_OK(replayed.replay(*x, 1));
  EXPECT_EQ(seen().arguments, 0);
  EXPECT_EQ(seen().markers, 0) << "the last kernel's event serves the signal";
  EXPECT_OK(replayed.replay(*y, 1));
  EXPECT_EQ(seen().arguments, 10);
  EXPECT_OK(replayed.replay(*y, 3));
  EXPECT_EQ(seen().arguments, 20);
  EXPECT_EQ(word(*x, 5), 20u);
  EXPECT_EQ(word(*y, 63), 40u);
}

TEST(OpenClReplay, EagerLaunchesDoNotDisturbRecordings) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto x = visible(*device, 512), y = visible(*device, 512), arguments = words(*device);
  Replayed replayed(*device, *x);
  EXPECT_OK(replayed.replay(*x, 1));
  word(*arguments, 0) = address(*y);
  word(*arguments, 1) = 64;
  word(*arguments, 2) = 100;
  EXPECT_OK(run(*device, {hal::Dispatch{replayed.program.get(), arguments->va(), {}}}));
  EXPECT_OK(replayed.replay(*x, 1));
  EXPECT_EQ(word(*x), 20u);
  EXPECT_EQ(word(*y), 100u);
}

TEST(OpenClReplay, AddressThatBelongsToANewBufferIsResolvedAnew) {
  BM_NEEDS_OPENCL();
  const auto device = open("0");
  // The caller's memory keeps its address while the buffer around it is another.
  std::vector<uint64_t> memory(64), other(64);
  const auto wrap = [&](std::vector<uint64_t>& v) {
    return allocate(*device, {.size = 512, .host_visible = true, .external = v.data()});
  };
  auto x = wrap(memory);
  Replayed replayed(*device, *x);
  EXPECT_OK(replayed.replay(*x, 1));
  x.reset();
  const auto another = wrap(other);
  x = wrap(memory);
  EXPECT_OK(replayed.replay(*x, 1));
  EXPECT_EQ(memory[63], 20u);
  EXPECT_EQ(other[63], 0u);
}

TEST(OpenClReplay, TwoSlotsOfOnePlaceAreRefused) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto x = visible(*device, 64);
  const hal::Command commands[] = {hal::Copy{x->va(), x->va(), 8}};
  const hal::Patch patches[] = {{.field = hal::PatchField::kCopyBytes, .slot = 0},
                                {.field = hal::PatchField::kCopyBytes, .slot = 1}};
  const auto recording = device->queue(QueueKind::kCompute).record(commands, patches);
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().code, Code::kInvalidArgument);
}

// ---- Clock

TEST(OpenClClock, TimestampsAreHostTimeAndOnlyThenCostProfiling) {
  BM_NEEDS_OPENCL();
  const auto device = open_on(counting_api());
  const auto stamps = words(*device), x = visible(*device, 1 << 20);
  EXPECT_OK(run(*device, {hal::Copy{x->va(), hal::offset(x->va(), 1 << 19), 1 << 19}}));
  EXPECT_EQ(seen().profiling_queues, 0);
  const auto now_ns = [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  };
  const uint64_t before = now_ns();
  for (int i = 0; i < 2; ++i)
    EXPECT_OK(run(*device, {hal::Timestamp{at(*stamps, 0)},
                            hal::Copy{x->va(), hal::offset(x->va(), 1 << 19), 1 << 19},
                            hal::Timestamp{at(*stamps, 1)}}));
  const uint64_t after = now_ns();
  EXPECT_EQ(seen().profiling_queues, 1);
  EXPECT_LT(word(*stamps, 0), word(*stamps, 1));
  // A second of slack: the offset is a median of round trips on a busy machine.
  constexpr uint64_t kSlack = 1'000'000'000;
  EXPECT_GE(word(*stamps, 0) + kSlack, before);
  EXPECT_LE(word(*stamps, 1), after + kSlack);
}

TEST(OpenClClock, DriverWithoutTimesGetsTheHostsClock) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clGetEventProfilingInfo = [](cl_event, cl_profiling_info, size_t, void*, size_t*) {
    return cl_int{CL_PROFILING_INFO_NOT_AVAILABLE};
  };
  const auto device = open_on(api);
  const auto stamps = words(*device);
  EXPECT_OK(run(*device, {hal::Timestamp{at(*stamps, 0)}, hal::Timestamp{at(*stamps, 1)}}));
  EXPECT_GT(word(*stamps, 0), 0u);
  EXPECT_LE(word(*stamps, 0), word(*stamps, 1));
}

}  // namespace
}  // namespace bm::cl
