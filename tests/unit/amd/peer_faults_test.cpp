// One of several GPUs that work together fails: whoever waits for it is told why, everything is
// given back, and the others and the next process work.

#include <array>
#include <cerrno>
#include <chrono>

#include "runtime/base/env.h"
#include "runtime/stream.h"
#include "tests/unit/amd/peers_rig.h"

namespace bm::amd {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class AmdPeerFaults : public AmdPeers {
 protected:
  uint32_t last() const { return GetParam().gpus - 1; }
  /// Round all GPUs once, with a kernel that fails before the copy of GPU `bad`.
  Status run_graph(uint32_t bad, const char* kernel) {
    std::vector<runtime::Call> calls;
    for (uint32_t gpu = 0; gpu <= last(); ++gpu) {
      if (gpu == bad) calls.push_back(launch(gpu, BM_TRY(load(*devices_[gpu], kernel))));
      calls.push_back(step(gpu));
      calls.push_back(copy((gpu + 1) % GetParam().gpus, gpu));
    }
    graph_ = BM_TRY(runtime::make_graph(std::move(calls), 0, 0));
    return graph_->replay({}, {});
  }
  /// Every way to wait ends soon, with the same cause. Returns it.
  Error expect_first_cause(uint32_t bad) {
    const auto begin = Clock::now();
    // The last one in the chain first: nobody has asked the failed one yet.
    std::vector<Error> told;
    for (uint32_t i = 1; i <= GetParam().gpus; ++i) {
      const uint32_t gpu = (bad + i) % GetParam().gpus;
      const runtime::Point point = devices_[gpu]->stream().timeline().last_point();
      const Status waited = devices_[gpu]->stream().wait(point);
      // The work goes from the first to the last and back to the first.
      if (gpu != 0 && gpu < bad) {
        EXPECT_TRUE(waited) << "GPU " << gpu << " waits for nobody who failed";
        continue;
      }
      EXPECT_FALSE(waited) << "GPU " << gpu;
      if (!waited) told.push_back(waited.error());
      uint64_t value = 0;
      const auto bytes = std::as_writable_bytes(std::span(&value, 1));
      EXPECT_FALSE(runtime::copy_out(bytes, buffers_[gpu])) << "GPU " << gpu;
    }
    if (graph_ != nullptr) {
      const Status waited = graph_->wait();
      EXPECT_FALSE(waited);
      if (!waited) told.push_back(waited.error());
    }
    EXPECT_LT(Clock::now() - begin, kWait / 2) << "a wait ran out";
    if (told.empty()) return {};
    for (const Error& error : told) EXPECT_EQ(error.message, told.front().message);
    const Status cause = devices_[bad]->hal().status();
    EXPECT_FALSE(cause);
    if (!cause) {
      EXPECT_TRUE(told.front().message.ends_with("; cause: " + cause.error().message))
          << told.front().message << "\n"
          << cause.error().message;
      EXPECT_TRUE(told.front().message.starts_with(devices_[bad]->name() + ": device lost, "))
          << told.front().message;
    }
    return told.front();
  }
  void close_all(bool in_order) {
    const auto begin = Clock::now();
    graph_.reset();
    close(in_order);
    EXPECT_LT(Clock::now() - begin, kWait / 2) << "closing waited for what never comes";
    expect_nothing_left();
  }
  void expect_gpu_works(uint32_t gpu) {
    auto device = open_gpu(gpu);
    ASSERT_TRUE(device) << device.error().message;
    const auto program = load(**device, "step");
    ASSERT_TRUE(program) << program.error().message;
    auto buffer = runtime::allocate(**device, {.size = 8}).value();
    uint64_t value = 5;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    ASSERT_TRUE(runtime::copy_in(buffer, bytes));
    runtime::KernelCall kernel;
    kernel.program = *program;
    kernel.device = device->get();
    ASSERT_TRUE(runtime::execute({.name = "step",
                                  .what = std::move(kernel),
                                  .args = {{.buffer = buffer, .is_written = true}}},
                                 {}));
    const Status read = runtime::copy_out(bytes, buffer);
    EXPECT_TRUE(read) << read.error().message;
    EXPECT_EQ(value, 16u);
  }
  void expect_refused(uint32_t gpu, const char* cause) {
    const auto device = open_gpu(gpu);
    ASSERT_FALSE(device) << "the kernel driver lets no queue run there";
    EXPECT_EQ(device.error().code, Code::kDeviceLost) << device.error().message;
    for (const char* text : {cause, "start the program again"})
      EXPECT_NE(device.error().message.find(text), std::string::npos) << device.error().message;
  }
  void expect_next_process_works() {
    system_ = system_->next_process();
    const Status opened = open_devices();
    ASSERT_TRUE(opened) << opened.error().message;
    set(0, 7);
    for (uint32_t gpu = 0; gpu <= last(); ++gpu) {
      std::vector<runtime::Call> calls;
      calls.push_back(step(gpu));
      calls.push_back(copy((gpu + 1) % GetParam().gpus, gpu));
      const auto graph = runtime::make_graph(std::move(calls), 0, 0);
      ASSERT_TRUE(graph) << graph.error().message;
      ASSERT_TRUE((*graph)->replay({}, {}));
      ASSERT_TRUE((*graph)->wait());
    }
    uint64_t want = 7;
    for (uint32_t gpu = 0; gpu <= last(); ++gpu) want = want * 3 + 1;
    EXPECT_EQ(number(0), want);
    close();
    expect_nothing_left();
  }
  void TearDown() override {
    graph_.reset();
    AmdPeers::TearDown();
  }

  static constexpr auto kWait = 20s;
  const ScopedSetting wait_{"BM_WAIT_TIMEOUT_MS", "20000"};
  const ScopedSetting quiet_{"BM_LOG", "amd=0"};
  std::unique_ptr<runtime::Graph> graph_;
};

INSTANTIATE_TEST_SUITE_P(Modes, AmdPeerFaults,
                         testing::Values(Mode{"gfx1100", PacketMode::kPm4, 2},
                                         Mode{"gfx1100", PacketMode::kAql, 2},
                                         Mode{"gfx1201", PacketMode::kPm4, 3}));

TEST_P(AmdPeerFaults, AFaultOfTheProducerEndsEveryWaitWithItsCause) {
  for (const bool in_order : {false, true}) {
    open();
    const Status ran = run_graph(0, "jumper");
    ASSERT_TRUE(ran) << ran.error().message;
    const Error cause = expect_first_cause(0);
    EXPECT_EQ(cause.code, Code::kDeviceFault) << cause.message;
    EXPECT_NE(cause.message.find("memory fault at"), std::string::npos) << cause.message;
    close_all(in_order);
    expect_refused(0, "memory fault at");
    for (uint32_t gpu = 1; gpu <= last(); ++gpu) expect_gpu_works(gpu);
    expect_nothing_left();
    expect_next_process_works();
  }
}

TEST_P(AmdPeerFaults, AFaultOfTheOneThatWaitsIsToldToThoseBehindIt) {
  open();
  const Status ran = run_graph(last(), "jumper");
  ASSERT_TRUE(ran) << ran.error().message;
  const Error cause = expect_first_cause(last());
  EXPECT_EQ(cause.code, Code::kDeviceFault) << cause.message;
  close_all(true);
  expect_refused(last(), "memory fault at");
  for (uint32_t gpu = 0; gpu < last(); ++gpu) expect_gpu_works(gpu);
  expect_next_process_works();
}

TEST_P(AmdPeerFaults, AResetOfOneEndsAllGpusOfTheProcess) {
  open();
  const Status ran = run_graph(0, "nonsense");
  ASSERT_TRUE(ran) << ran.error().message;
  for (uint32_t gpu = 0; gpu <= last(); ++gpu) {
    const Status waited = devices_[gpu]->synchronize();
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code, Code::kDeviceLost) << waited.error().message;
    EXPECT_NE(waited.error().message.find("start the program again"), std::string::npos)
        << waited.error().message;
  }
  close_all(true);
  for (uint32_t gpu = 0; gpu <= last(); ++gpu) expect_refused(gpu, "was reset");
  expect_next_process_works();
}

TEST_P(AmdPeerFaults, AnEngineThatWasResetIsOpenedAgain) {
  open();
  system_->knobs().is_stalled = true;
  const Status ran = run_graph(0, "step");
  ASSERT_TRUE(ran) << ran.error().message;
  system_->raise_reset(0, false);
  const Error cause = expect_first_cause(0);
  EXPECT_NE(cause.message.find("open the device again"), std::string::npos) << cause.message;
  close_all(false);
  system_->knobs().is_stalled = false;
  for (uint32_t gpu = 0; gpu <= last(); ++gpu) expect_gpu_works(gpu);
  expect_nothing_left();
}

TEST_P(AmdPeerFaults, ClosingTheOneThatFailedHarmsNobodyWhoWaitsForIt) {
  open();
  const auto word = devices_[0]->hal().allocate({.size = 64, .host_visible = true, .zero = true});
  ASSERT_TRUE(word);
  runtime::Point point;
  for (uint32_t gpu = 0; gpu <= last(); ++gpu) {
    const hal::Command never = hal::Wait{(*word)->va(), 1};
    const std::span<const hal::Command> commands(&never, gpu == 0 ? 1 : 0);
    const runtime::Point before[] = {point};
    auto submitted = devices_[gpu]->stream().submit_after(hal::QueueKind::kCompute, commands,
                                                          std::span(before, gpu == 0 ? 0 : 1));
    ASSERT_TRUE(submitted) << submitted.error().message;
    point = *submitted;
  }
  system_->raise_memory_fault(0, 0xdead000, true);
  const Error cause = expect_first_cause(0);
  EXPECT_NE(cause.message.find("memory fault at 0xdead000"), std::string::npos) << cause.message;
  steps_.clear();
  buffers_.clear();
  devices_[0].reset();  // the others' queues still poll its signal
  for (uint32_t gpu = 1; gpu <= last(); ++gpu)
    EXPECT_TRUE(devices_[gpu]->hal().status()) << "its queue was led astray";
  close(true);
  for (uint32_t gpu = 1; gpu <= last(); ++gpu) expect_gpu_works(gpu);
}

TEST_P(AmdPeerFaults, EveryCallOfSettingPeersUpFailsOnce) {
  const auto set_up = [&]() -> Status {
    std::vector<runtime::Call> calls;
    for (uint32_t gpu = 0; gpu <= last(); ++gpu) {
      calls.push_back(step(gpu));
      calls.push_back(copy((gpu + 1) % GetParam().gpus, gpu));
    }
    graph_ = BM_TRY(runtime::make_graph(std::move(calls), 0, 0));
    BM_TRY(graph_->replay({}, {}));
    return graph_->wait();
  };
  open();
  const uint64_t before = system_->calls();
  const Status made = set_up();
  ASSERT_TRUE(made) << made.error().message;
  const auto calls = static_cast<int>(system_->calls() - before);
  EXPECT_GE(calls, static_cast<int>(GetParam().gpus)) << "nothing was mapped for peers";
  close_all(false);
  int failures = 0;
  for (int call = 0; call < calls; ++call) {
    const int error = std::array{ENOMEM, EINVAL, EIO}[static_cast<size_t>(call) % 3];
    SCOPED_TRACE(fmt::format("call {}, {}", call, errno_text(error)));
    open();
    system_->options().failing_error = error;
    system_->options().failing_call = call;
    failures += set_up() ? 0 : 1;
    system_->options().failing_call = -1;
    close_all(call % 2 == 0);
    for (uint32_t gpu = 0; gpu <= last(); ++gpu) expect_gpu_works(gpu);
    expect_nothing_left();
  }
  EXPECT_GT(failures, 0);
}

}  // namespace
}  // namespace bm::amd
