// The runtime on an OpenCL device: copies between devices, graphs over CPU and OpenCL.

#include <numeric>

#include "runtime/allocator.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/graph.h"
#include "runtime/program_cache.h"
#include "runtime/stream.h"
#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;
using runtime::Arg;
using runtime::Buffer;
using runtime::Call;

constexpr uint64_t kCount = 300'000, kBytes = kCount * 8;  // more than one staging slot

std::unique_ptr<runtime::Device> open_runtime(const char* svm) {
  auto device = runtime::make_device(open(svm), "CL", "OPENCL");
  EXPECT_TRUE(device) << device.error().message;
  return device ? std::move(*device) : nullptr;
}

std::unique_ptr<runtime::Device> open_cpu() {
  for (const hal::DriverInfo& driver : hal::builtin_drivers())
    if (std::string_view(driver.name) == "CPU")
      return std::move(*runtime::make_device(std::move(*driver.open("", 0, "")), "CPU", "LLVM"));
  return nullptr;
}

Buffer make(runtime::Device& device, uint64_t bytes = kBytes) {
  auto buffer = runtime::allocate(device, {.size = bytes});
  EXPECT_TRUE(buffer) << buffer.error().message;
  return buffer ? *buffer : Buffer{};
}

std::span<std::byte> bytes_of(std::vector<uint64_t>& v) {
  return std::as_writable_bytes(std::span(v));
}

Call add_call(runtime::Device& device, const Buffer& x, int32_t slot = -1) {
  const auto program = runtime::load_program(device, add_code(device.hal()));
  EXPECT_TRUE(program);
  Call call;
  call.name = "add";
  call.what = runtime::KernelCall{.program = *program, .device = &device, .vars = {0, 1}};
  call.args = {Arg{.buffer = x, .slot = slot, .is_written = true}};
  return call;
}
Call copy_call(const Buffer& dst, const Buffer& src) {
  Call call;
  call.name = "copy";
  call.what = runtime::CopyCall{};
  call.args = {Arg{.buffer = dst, .is_written = true, .is_read = false}, Arg{.buffer = src}};
  return call;
}

TEST(OpenClRuntime, CopiesBetweenHostAndDevices) {
  BM_NEEDS_OPENCL();
  const auto cpu = open_cpu();
  for (const char* mode : kSvmModes) {
    const auto cl = open_runtime(mode), peer = open_runtime(mode);
    std::vector<uint64_t> in(kCount), out(kCount);
    std::iota(in.begin(), in.end(), 1);
    const Buffer a = make(*cl), b = make(*cl), c = make(*cpu), d = make(*cl), e = make(*peer),
                 f = make(*cl);
    EXPECT_OK(runtime::copy_in(a, bytes_of(in)));
    EXPECT_OK(runtime::copy(b, a));
    EXPECT_OK(runtime::copy(c, b));
    EXPECT_OK(runtime::copy(d, c));
    EXPECT_OK(runtime::copy(e, d));
    EXPECT_OK(runtime::copy(f, e));
    EXPECT_OK(runtime::copy_out(bytes_of(out), f));
    EXPECT_EQ(in, out) << mode;
  }
}

TEST(OpenClRuntime, EagerKernelsFollowCopies) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto cl = open_runtime(mode);
    std::vector<uint64_t> in(kCount), out(kCount);
    const Buffer x = make(*cl);
    Call call = add_call(*cl, x);
    auto program = std::get<runtime::KernelCall>(call.what).program;
    for (uint64_t round = 1; round <= 20; ++round) {
      std::fill(in.begin(), in.end(), round);
      EXPECT_OK(runtime::copy_in(x, bytes_of(in)));
      const int64_t vars[] = {64, 1000};
      EXPECT_OK(runtime::execute(call, vars));
      EXPECT_OK(runtime::copy_out(bytes_of(out), x));
      EXPECT_EQ(out[63], round + 1000) << mode;
      EXPECT_EQ(out[64], round) << mode;
    }
  }
}

TEST(OpenClRuntime, GraphSpansCpuAndOpenCl) {
  BM_NEEDS_OPENCL();
  const auto cpu = open_cpu();
  for (const char* mode : kSvmModes) {
    const auto cl = open_runtime(mode);
    const Buffer x = make(*cl, 512), y = make(*cl, 512);
    auto middle = runtime::allocate(*cpu, {.size = 512});
    ASSERT_TRUE(middle);
    std::vector<uint64_t> zero(64), out(64);
    EXPECT_OK(runtime::copy_in(x, bytes_of(zero)));
    // x += by; CPU memory = x; y = CPU memory; y += by.
    auto graph = runtime::make_graph(
        {add_call(*cl, x), copy_call(*middle, x), copy_call(y, *middle), add_call(*cl, y)}, 0, 2);
    ASSERT_TRUE(graph) << mode << ": " << graph.error().message;
    for (int64_t round = 1; round <= 50; ++round) {
      const int64_t vars[] = {64, round};
      EXPECT_OK((*graph)->replay({}, vars));
      EXPECT_OK((*graph)->wait());
      EXPECT_OK(runtime::copy_out(bytes_of(out), y));
      EXPECT_EQ(out[63], static_cast<uint64_t>(round * (round + 1) / 2 + round)) << mode;
    }
  }
}

TEST(OpenClRuntime, GraphInputsMayChange) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto cl = open_runtime(mode);
    std::vector<uint64_t> data(64), out(64);
    Buffer inputs[] = {make(*cl, 512), make(*cl, 512)};
    for (const Buffer& input : inputs) EXPECT_OK(runtime::copy_in(input, bytes_of(data)));
    auto graph = runtime::make_graph({add_call(*cl, inputs[0], 0)}, 1, 2);
    ASSERT_TRUE(graph) << graph.error().message;
    for (int round = 0; round < 30; ++round) {
      const int64_t vars[] = {64, 2};
      EXPECT_OK((*graph)->replay(std::span(&inputs[round % 3 == 0 ? 1 : 0], 1), vars));
    }
    EXPECT_OK((*graph)->wait());
    EXPECT_OK(runtime::copy_out(bytes_of(out), inputs[0]));
    EXPECT_EQ(out[63], 40u) << mode;
    EXPECT_OK(runtime::copy_out(bytes_of(out), inputs[1]));
    EXPECT_EQ(out[63], 20u) << mode;
  }
}

TEST(OpenClRuntime, ClockIsTheHosts) {
  BM_NEEDS_OPENCL();
  const auto cl = open_runtime("2");
  const auto map = runtime::calibrate_clock(*cl);
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_EQ(map->ticks_per_second, 1'000'000'000u);
}

}  // namespace
}  // namespace bm::cl
