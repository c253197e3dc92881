// A program of its own that uses the real system: run by sim-amd, which serves the nodes from
// another process. Without it the tests are skipped.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "runtime/base/env.h"
#include "runtime/hal/device.h"
#include "runtime/hal/waiting.h"

namespace bm::amd {
namespace {

using namespace std::chrono_literals;
using hal::raw;

class AmdRemote : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/kfd", F_OK) == 0) GTEST_SKIP() << "a real amdgpu driver is here";
    if (std::getenv("SIM_AMD_CHIP") == nullptr) GTEST_SKIP() << "not run by sim-amd";
    chip = std::getenv("SIM_AMD_CHIP");
    device = open(0);
    if (device == nullptr) return;
    memory = allocate(*device, {.size = 65536, .host_visible = true, .zero = true});
  }
  static std::unique_ptr<hal::Device> open(uint32_t index) {
    auto kernel = kfd::open_gpu(real_system(), {.index = index});
    EXPECT_TRUE(kernel) << kernel.error().message;
    if (!kernel) return nullptr;
    auto made = make_device(std::move(*kernel), {.slab_bytes = 8 << 20});
    EXPECT_TRUE(made) << made.error().message;
    return made ? std::move(*made) : nullptr;
  }
  static std::unique_ptr<hal::Buffer> allocate(hal::Device& device, const hal::BufferDesc& desc) {
    auto buffer = device.allocate(desc);
    EXPECT_TRUE(buffer) << buffer.error().message;
    return buffer ? std::move(*buffer) : nullptr;
  }
  std::unique_ptr<hal::Program> load(const char* kernel) {
    hal::CodeObject code;
    code.entry = kernel;
    code.arch = chip;
    code.num_buffers = code.num_vars = 1;
    code.block = {64, 1, 1};
    std::ifstream file("tests/unit/amd/data/" + chip + ".o", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    code.image.assign(bytes.begin(), bytes.end());
    auto program = device->load(code);
    EXPECT_TRUE(program) << program.error().message;
    return program ? std::move(*program) : nullptr;
  }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(memory->host()); }
  hal::GpuVa va(uint64_t word) { return hal::offset(memory->va(), word * 8); }
  uint64_t word(uint64_t index) { return std::atomic_ref<uint64_t>(words()[index]).load(); }
  /// Submits and waits: false when the device failed or nothing came.
  bool run(hal::QueueKind kind, std::vector<hal::Command> commands) {
    commands.push_back(hal::Signal{va(0), ++value});
    const Status submitted = device->queue(kind).submit(commands);
    EXPECT_TRUE(submitted) << submitted.error().message;
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (word(0) < value) {
      if (!device->status() || std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(50us);
    }
    return true;
  }
  /// out[i] = n + 3 i for 64 elements a group.
  bool scale(uint64_t out, uint64_t n, uint32_t groups) {
    const auto program = load("scale");
    if (program == nullptr) return false;
    words()[8] = out;
    words()[9] = n;
    return run(hal::QueueKind::kCompute, {hal::Dispatch{program.get(), va(8), {groups, 1, 1}}});
  }

  std::string chip;
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Buffer> memory;
  uint64_t value = 0;
};

TEST_F(AmdRemote, CopiesReachVideoMemoryAndComeBack) {
  const auto video = allocate(*device, {.size = 1 << 20});
  for (uint64_t i = 0; i < 512; ++i) words()[1024 + i] = i * i;
  for (const auto kind : {hal::QueueKind::kCompute, hal::QueueKind::kCopy}) {
    std::memset(&words()[4096], 0, 4096);
    ASSERT_TRUE(run(kind, {hal::Copy{hal::offset(video->va(), 8192), va(1024), 4096},
                           hal::Copy{va(4096), hal::offset(video->va(), 8192), 4096}}));
    for (uint64_t i = 0; i < 512; ++i) ASSERT_EQ(words()[4096 + i], i * i);
  }
}

TEST_F(AmdRemote, KernelsOfRealCodeRun) {
  ASSERT_TRUE(scale(raw(va(1024)), 7, 20));
  for (uint64_t i = 0; i < 20 * 64; ++i) ASSERT_EQ(words()[1024 + i], 7 + 3 * i) << i;
}

TEST_F(AmdRemote, MemoryOfThisProcessIsReadAndWritten) {
  std::vector<uint64_t> mine(20'000);
  for (uint64_t i = 0; i < mine.size(); ++i) mine[i] = 3 * i;
  auto wrapped = allocate(*device, {.size = (mine.size() - 1) * 8, .external = mine.data() + 1});
  const auto video = allocate(*device, {.size = wrapped->size()});
  ASSERT_TRUE(run(hal::QueueKind::kCopy, {hal::Copy{video->va(), wrapped->va(), video->size()}}));
  std::fill(mine.begin() + 1, mine.end(), 1);
  mine[0] = 77;
  ASSERT_TRUE(
      run(hal::QueueKind::kCompute, {hal::Copy{wrapped->va(), video->va(), video->size() - 8}}));
  EXPECT_EQ(mine[0], 77u) << "the page is shared with what is not registered";
  for (uint64_t i = 1; i + 1 < mine.size(); ++i) ASSERT_EQ(mine[i], 3 * i);
  EXPECT_EQ(mine.back(), 1u);
  ASSERT_TRUE(scale(raw(hal::offset(wrapped->va(), 800)), 11, 3));
  for (uint64_t i = 0; i < 3 * 64; ++i) ASSERT_EQ(mine[101 + i], 11 + 3 * i) << i;
}

TEST_F(AmdRemote, WaitsOnRegisteredMemoryEnd) {
  alignas(4096) static std::array<uint64_t, 512> page{};
  page.fill(0);
  auto wrapped = allocate(*device, {.size = sizeof page, .external = page.data()});
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    std::atomic_ref<uint64_t>(page[5]).store(9);
  });
  EXPECT_TRUE(run(hal::QueueKind::kCompute, {hal::Wait{hal::offset(wrapped->va(), 40), 9}}));
  later.join();
}

TEST_F(AmdRemote, SleepersAreWokenAndOthersCallMeanwhile) {
  auto& waiting = dynamic_cast<hal::Waiting&>(*device);
  const hal::Command list[] = {hal::Wait{va(1), 1}, hal::Signal{va(0), ++value}};
  ASSERT_TRUE(device->queue(hal::QueueKind::kCompute).submit(list));
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    // A call of another thread while the first one is blocked in the driver.
    EXPECT_NE(allocate(*device, {.size = 64 << 20}), nullptr);
    std::atomic_ref<uint64_t>(words()[1]).store(1);
  });
  const auto start = std::chrono::steady_clock::now();
  while (word(0) < value && std::chrono::steady_clock::now() < start + 20s)
    waiting.sleep_until_event(10'000'000'000);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 9s) << "nobody woke it";
  later.join();
}

TEST_F(AmdRemote, GpusCopyFromEachOther) {
  const auto count = kfd::count_gpus(real_system());
  ASSERT_TRUE(count);
  if (*count < 2) GTEST_SKIP() << "one GPU";
  const auto other = open(1);
  const auto far = allocate(*other, {.size = 1 << 20});
  const auto near = allocate(*device, {.size = 1 << 20});
  ASSERT_TRUE(device->map(*far));
  words()[1024] = 1234;
  ASSERT_TRUE(run(hal::QueueKind::kCopy,
                  {hal::Copy{near->va(), va(1024), 64}, hal::Copy{far->va(), near->va(), 64},
                   hal::Copy{va(2048), far->va(), 64}}));
  EXPECT_EQ(words()[2048], 1234u);
}

// Left out unless asked for: the device of the process is spent then.
TEST_F(AmdRemote, AFaultNamesItsKernel) {
  if (std::getenv("SIM_AMD_FAULT") == nullptr) GTEST_SKIP() << "not asked for";
  ASSERT_FALSE(scale(0x7777'0000'0000, 7, 1));
  const Status status = device->status();
  ASSERT_FALSE(status);
  for (const char* text : {"memory fault at 0x77770000", "scale", "VM fault of process"})
    EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
}

}  // namespace
}  // namespace bm::amd
