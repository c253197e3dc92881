// Host cost of a replayed kernel beside a hand-written loop of the same OpenCL calls.
// usage: cl_replay_bench [kernels [rounds]]

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;

constexpr const char* kText =
    "kernel void tick(global long* out, long n) {\n"
    "  if (get_global_id(0) < n) out[0] = n;\n"
    "}\n";

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// The loop somebody who knows OpenCL would write: one kernel object per launch with its arguments
/// set, the changed one set again, one event at the end.
class HandWritten {
 public:
  HandWritten(const Api& api, const NativeHandles& native, size_t kernels) : api_(api) {
    cl_int error = CL_SUCCESS;
    const auto context = static_cast<cl_context>(native.context);
    auto device = static_cast<cl_device_id>(native.device);
    queue_ = api.clCreateCommandQueue(context, device, 0, &error);
    program_ = api.clCreateProgramWithSource(context, 1, const_cast<const char**>(&text_), nullptr,
                                             &error);
    api.clBuildProgram(program_, 1, &device, "", nullptr, nullptr);
    memory_ = api.clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, nullptr, &error);
    for (size_t i = 0; i < kernels; ++i) {
      kernels_.push_back(api.clCreateKernel(program_, "tick", &error));
      const cl_long n = 1;
      api.clSetKernelArg(kernels_.back(), 0, sizeof memory_, &memory_);
      api.clSetKernelArg(kernels_.back(), 1, sizeof n, &n);
    }
  }
  ~HandWritten() {
    for (cl_kernel kernel : kernels_) api_.clReleaseKernel(kernel);
    api_.clReleaseMemObject(memory_);
    api_.clReleaseProgram(program_);
    api_.clReleaseCommandQueue(queue_);
  }
  /// Host time until everything is enqueued.
  uint64_t round(cl_long n) {
    const size_t size = 64;
    cl_event end = nullptr;
    done_.store(false);
    const uint64_t begin = now_ns();
    api_.clSetKernelArg(kernels_.front(), 1, sizeof n, &n);
    for (const cl_kernel kernel : kernels_)
      api_.clEnqueueNDRangeKernel(queue_, kernel, 1, nullptr, &size, &size, 0, nullptr,
                                  kernel == kernels_.back() ? &end : nullptr);
    api_.clSetEventCallback(
        end, CL_COMPLETE,
        [](cl_event, cl_int, void* done) {
          static_cast<std::atomic<bool>*>(done)->store(true, std::memory_order_release);
        },
        &done_);
    api_.clFlush(queue_);
    const uint64_t took = now_ns() - begin;
    while (!done_.load(std::memory_order_acquire)) std::this_thread::yield();
    api_.clReleaseEvent(end);
    return took;
  }

 private:
  const Api& api_;
  const char* text_ = kText;
  cl_command_queue queue_ = nullptr;
  cl_program program_ = nullptr;
  cl_mem memory_ = nullptr;
  std::vector<cl_kernel> kernels_;
  std::atomic<bool> done_{false};
};

class Ours {
 public:
  Ours(hal::Device& device, size_t kernels)
      : device_(device),
        program_(std::move(*device.load(code(device, "tick", kText, 1, 1)))),
        memory_(allocate(device, {.size = 4096})),
        arguments_(words(device)),
        end_(words(device)) {
    word(*arguments_, 0) = address(*memory_);
    word(*arguments_, 1) = 1;
    std::vector<hal::Command> commands(kernels,
                                       hal::Dispatch{program_.get(), arguments_->va(), {}});
    commands.emplace_back(hal::Signal{end_->va(), 0});
    const hal::Patch patches[] = {
        {.command = 0, .field = hal::PatchField::kKernarg, .word = 1, .slot = 0},
        {.command = static_cast<uint32_t>(kernels),
         .field = hal::PatchField::kSignalValue,
         .slot = 1}};
    recording_ = std::move(*device.queue(hal::QueueKind::kCompute).record(commands, patches));
  }
  uint64_t round(uint64_t n) {
    const uint64_t values[] = {n, ++count_};
    const uint64_t begin = now_ns();
    EXPECT_TRUE(device_.queue(hal::QueueKind::kCompute).replay(*recording_, values));
    const uint64_t took = now_ns() - begin;
    EXPECT_TRUE(wait_for(device_, word(*end_), count_));
    return took;
  }

 private:
  hal::Device& device_;
  std::unique_ptr<hal::Program> program_;
  std::unique_ptr<hal::Buffer> memory_, arguments_, end_;
  std::unique_ptr<hal::Recording> recording_;
  uint64_t count_ = 0;
};

}  // namespace
}  // namespace bm::cl

int main(int argc, char** argv) {
  using namespace bm::cl;
  using namespace bm::cl::test;
  const size_t kernels = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 200;
  const size_t rounds = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 101;
  if (!has_device()) {
    std::puts("no OpenCL device");
    return 0;
  }
  const auto device = open();
  HandWritten by_hand(**load_api(), native_handles(*device), kernels);
  Ours ours(*device, kernels);
  std::vector<uint64_t> a, b;
  for (size_t i = 0; i < rounds; ++i) {  // in turns, so that both meet the same machine
    a.push_back(by_hand.round(static_cast<int64_t>(i)));
    b.push_back(ours.round(i));
  }
  const auto median = [kernels](std::vector<uint64_t>& times) {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    return static_cast<double>(times[times.size() / 2]) / static_cast<double>(kernels);
  };
  const double hand = median(a), mine = median(b);
  std::printf("host cost per kernel: by hand %.0f ns, replay %.0f ns, ratio %.3f\n", hand, mine,
              mine / hand);
  return 0;
}
