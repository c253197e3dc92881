// Every call of the driver fails once: whatever becomes of the work, nothing crashes, hangs or
// leaks.

#include "tests/unit/cuda/rig.h"

namespace bm::cuda {
namespace {

using namespace test;

/// Some of everything; the first error ends it.
Status work(const std::shared_ptr<Api>& api) {
  const auto device = BM_TRY(open_device_on(api, 0, ""));
  const auto words = BM_TRY(device->allocate({.size = 512, .host_visible = true, .zero = true})),
             video = BM_TRY(device->allocate({.size = 512, .zero = true}));
  std::vector<uint64_t> mine(64);
  const auto wrapped = BM_TRY(device->allocate({.size = 512, .external = mine.data()}));
  const auto add = BM_TRY(device->load(code("add", 1, 2)));
  const auto args = BM_TRY(device->allocate({.size = 64, .host_visible = true}));
  auto* argument = reinterpret_cast<uint64_t*>(args->host());
  argument[0] = address(*words) + 256, argument[1] = 4, argument[2] = 1;
  hal::Queue& queue = device->queue(hal::QueueKind::kCompute);
  const Commands commands = {hal::Wait{at(*words, 0), 0},
                             hal::Dispatch{add.get(), args->va(), {}},
                             hal::Dispatch{add.get(), args->va(), {}},
                             hal::Copy{video->va(), wrapped->va(), 64},
                             hal::Copy{wrapped->va(), video->va(), 64},
                             hal::Timestamp{at(*words, 2)},
                             hal::Signal{at(*words, 0), 1}};
  BM_TRY(queue.submit(commands));
  BM_TRY(wait_for(*device, word(*words, 0), 1));
  const hal::Patch patches[] = {
      {.command = 1, .field = hal::PatchField::kKernarg, .word = 2, .slot = 0},
      {.command = 3, .field = hal::PatchField::kCopyBytes, .slot = 1},
      {.command = 6, .field = hal::PatchField::kSignalValue, .slot = 2}};
  const auto recording = BM_TRY(queue.record(commands, patches));
  for (uint64_t step = 2; step < 5; ++step) {
    const uint64_t values[] = {step, 8 * step, step};
    BM_TRY(queue.replay(*recording, values));
    BM_TRY(wait_for(*device, word(*words, 0), step));
  }
  return device->status();
}

class CudaSweep : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, CudaSweep, testing::Bool(), [](const auto& mode) {
  return mode.param ? "StreamsDoWords" : "HostDoesWords";
});

TEST_P(CudaSweep, AnyCallMayFail) {
  // With the host doing words the number of calls depends on time: enough of them, then.
  constexpr int kMostCalls = 400;
  for (const CuResult error : {kErrorOutOfMemory, kErrorIllegalAddress, CuResult{999}}) {
    int refused = 0, calls = 0;
    for (int n = 1; n <= kMostCalls; ++n) {
      const auto api = usual_api(GetParam());
      fake().fail_in = n;
      fake().fail_code = error;
      const Status status = work(api);
      if (fake().fail_in > 0) break;
      calls = n;
      if (!status) {
        ++refused;
        EXPECT_FALSE(status.error().message.empty());
        EXPECT_NE(code_name(status.error().code), code_name(Code::kTimeout)) << "call " << n;
      }
      EXPECT_EQ(fake().contexts, 0) << "call " << n;
      EXPECT_TRUE(fake().streams.empty()) << "call " << n;
    }
    EXPECT_GT(calls, 50);
    EXPECT_GT(refused, 20) << "most failures are told";
  }
}

}  // namespace
}  // namespace bm::cuda
