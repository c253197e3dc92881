// Kinds of memory and what may be done with each.

#include <algorithm>
#include <numeric>

#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;
using hal::ExternalKind;

constexpr uint64_t kCount = 512, kBytes = kCount * 8;

/// One place to copy from or to; `pointer` when nobody registered the memory.
struct Spot {
  const char* name;
  std::unique_ptr<hal::Buffer> buffer;
  std::vector<uint64_t> memory;
  hal::GpuVa va() const { return buffer ? buffer->va() : hal::GpuVa{address(memory.data())}; }
};

std::vector<Spot> spots(hal::Device& device) {
  std::vector<Spot> all(5);
  all[0] = {"device", allocate(device, {.size = kBytes}), {}};
  all[1] = {"visible", visible(device, kBytes), {}};
  all[2] = {"uncached", words(device, kCount), {}};
  all[3] = {"wrapped", nullptr, std::vector<uint64_t>(kCount)};
  all[3].buffer = allocate(device, {.size = kBytes, .external = all[3].memory.data()});
  all[4] = {"foreign", nullptr, std::vector<uint64_t>(kCount)};
  return all;
}

TEST(OpenClMemory, CopiesBetweenAllKinds) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto device = open(mode);
    const auto sources = spots(*device), targets = spots(*device);
    const auto in = visible(*device, kBytes), out = visible(*device, kBytes);
    uint64_t first = 1000;
    for (const Spot& source : sources) {
      for (const Spot& target : targets) {
        first += kCount;
        for (uint64_t i = 0; i < kCount; ++i) word(*in, i) = first + i;
        std::fill_n(out->host(), kBytes, std::byte{0});
        EXPECT_OK(run(*device, {hal::Copy{source.va(), in->va(), kBytes},
                                hal::Copy{hal::offset(target.va(), 8), source.va(), kBytes - 8},
                                hal::Copy{out->va(), target.va(), kBytes}}));
        bool is_right = true;
        for (uint64_t i = 1; i < kCount; ++i) is_right &= word(*out, i) == first + i - 1;
        EXPECT_TRUE(is_right) << mode << ": " << source.name << " to " << target.name;
      }
    }
  }
}

TEST(OpenClMemory, WritesReachAllKinds) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto device = open(mode);
    const auto out = visible(*device, kBytes);
    for (const Spot& target : spots(*device)) {
      EXPECT_OK(run(*device, {hal::Write{hal::offset(target.va(), 16), 0x1122334455667788},
                              hal::Copy{out->va(), target.va(), 24}}));
      EXPECT_EQ(word(*out, 2), 0x1122334455667788u) << mode << ": " << target.name;
    }
  }
}

TEST(OpenClMemory, KernelsReachAllKindsTheDeviceKnows) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto device = open(mode);
    const auto program = device->load(add_code(*device));
    ASSERT_TRUE(program);
    const auto out = visible(*device, kBytes), arguments = words(*device);
    for (const Spot& target : spots(*device)) {
      if (!target.buffer) continue;
      std::fill_n(out->host(), kBytes, std::byte{0});
      EXPECT_OK(run(*device, {hal::Copy{target.va(), out->va(), kBytes}}));
      word(*arguments, 0) = hal::raw(target.va());
      word(*arguments, 1) = kCount;
      word(*arguments, 2) = 7;
      const hal::Command add = hal::Dispatch{program->get(), arguments->va(), {.x = kCount / 64}};
      // Kernel, host, kernel: the view changes hands in between.
      EXPECT_OK(run(*device, {add, add, hal::Copy{out->va(), target.va(), kBytes}}));
      EXPECT_EQ(word(*out, kCount - 1), 14u) << mode << ": " << target.name;
      if (target.buffer->host() != nullptr) word(*target.buffer, 3) = 100;
      EXPECT_OK(run(*device, {add, hal::Copy{out->va(), target.va(), kBytes}}));
      EXPECT_EQ(word(*out, 3), target.buffer->host() != nullptr ? 107u : 21u)
          << mode << ": " << target.name;
    }
  }
}

TEST(OpenClMemory, KernelArgumentThatIsNotOursIsRefused) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(add_code(*device));
  ASSERT_TRUE(program);
  std::vector<uint64_t> foreign(64);
  const auto arguments = words(*device);
  word(*arguments) = address(foreign.data());
  const auto status = run(*device, {hal::Dispatch{program->get(), arguments->va(), {}}});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  EXPECT_OK(device->status());
}

TEST(OpenClMemory, ArgumentsInsideABuffer) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto device = open(mode);
    const auto program = device->load(add_code(*device));
    ASSERT_TRUE(program);
    const auto x = allocate(*device, {.size = kBytes, .zero = true}), arguments = words(*device);
    const auto add_at = [&](uint64_t offset) {
      word(*arguments, 0) = address(*x) + offset;
      word(*arguments, 1) = 4;
      word(*arguments, 2) = 1;
      return run(*device, {hal::Dispatch{program->get(), arguments->va(), {}}});
    };
    EXPECT_OK(add_at(1024));
    EXPECT_OK(add_at(1024));
    const Status unaligned = add_at(8);
    const auto out = visible(*device, kBytes);
    EXPECT_OK(run(*device, {hal::Copy{out->va(), x->va(), kBytes}}));
    EXPECT_EQ(word(*out, 127), 0u);
    EXPECT_EQ(word(*out, 128), 2u);
    EXPECT_EQ(word(*out, 131), 2u);
    EXPECT_EQ(word(*out, 132), 0u);
    if (mode == kSvmModes[0]) {
      ASSERT_FALSE(unaligned);
      EXPECT_EQ(unaligned.error().code, Code::kInvalidArgument);
      EXPECT_NE(unaligned.error().message.find("MEM_BASE_ADDR_ALIGN"), std::string::npos);
    } else {
      EXPECT_OK(unaligned);
      EXPECT_EQ(word(*out, 1), 1u);
    }
  }
}

TEST(OpenClMemory, AddressesAreCheckedWhereTheyAreInvented) {
  BM_NEEDS_OPENCL();
  const auto device = open("0");
  const auto out = visible(*device, 64);
  hal::GpuVa stale{};
  {
    const auto x = allocate(*device, {.size = 4096});
    stale = x->va();
    const auto beyond = run(*device, {hal::Copy{out->va(), hal::offset(x->va(), 4090), 64}});
    ASSERT_FALSE(beyond);
    EXPECT_EQ(beyond.error().code, Code::kInvalidArgument);
  }
  const auto y = allocate(*device, {.size = 4096});
  EXPECT_NE(y->va(), stale);
  const auto status = run(*device, {hal::Copy{out->va(), stale, 64}});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  const auto signal = device->queue(hal::QueueKind::kCompute)
                          .submit(std::vector<hal::Command>{hal::Signal{y->va(), 1}});
  ASSERT_FALSE(signal);
  EXPECT_EQ(signal.error().code, Code::kUnsupported);
}

TEST(OpenClMemory, BuffersMayOutliveTheDevice) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    auto device = open(mode);
    const auto x = allocate(*device, {.size = 4096}), y = visible(*device, 4096);
    device.reset();
    word(*y) = 1;
  }
}

TEST(OpenClMemory, UsedBytesAreCounted) {
  BM_NEEDS_OPENCL();
  const auto device = open("0");
  const uint64_t before = device->memory().used;
  auto x = allocate(*device, {.size = 1 << 20});
  EXPECT_EQ(device->memory().used, before + (1 << 20));
  x.reset();
  EXPECT_EQ(device->memory().used, before);
  const auto too_much = device->allocate({.size = device->memory().total + 1});
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code, Code::kOutOfMemory);
}

// ---- Interoperation

struct OwnMem {
  OwnMem(const Api& the_api, void* context, uint64_t bytes) : api(the_api) {
    cl_int error = CL_SUCCESS;
    mem = api.clCreateBuffer(static_cast<cl_context>(context), CL_MEM_READ_WRITE, bytes, nullptr,
                             &error);
    EXPECT_EQ(error, CL_SUCCESS);
  }
  ~OwnMem() { api.clReleaseMemObject(mem); }
  const Api& api;
  cl_mem mem;
};

TEST(OpenClInterop, MemoryObjectIsSharedNotCopied) {
  BM_NEEDS_OPENCL();
  for (const char* mode : kSvmModes) {
    const auto device = open(mode);
    const auto api = real_api();
    const OwnMem own(*api, native_handles(*device).context, kBytes);
    const auto program = device->load(add_code(*device));
    ASSERT_TRUE(program);
    const auto in = visible(*device, kBytes), out = visible(*device, kBytes),
               arguments = words(*device);
    for (uint64_t i = 0; i < kCount; ++i) word(*in, i) = i;
    {
      const auto wrapped = allocate(
          *device, {.size = kBytes, .external = own.mem, .external_kind = ExternalKind::kClMem});
      ASSERT_TRUE(wrapped);
      word(*arguments, 0) = address(*wrapped);
      word(*arguments, 1) = kCount;
      word(*arguments, 2) = 1000;
      EXPECT_OK(run(*device, {hal::Copy{wrapped->va(), in->va(), kBytes},
                              hal::Dispatch{program->get(), arguments->va(), {.x = kCount / 64}}}));
    }
    // The caller reads its own object, after the wrapper is gone.
    cl_int error = CL_SUCCESS;
    const NativeHandles native = native_handles(*device);
    const cl_command_queue queue =
        api->clCreateCommandQueue(static_cast<cl_context>(native.context),
                                  static_cast<cl_device_id>(native.device), 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    EXPECT_EQ(api->clEnqueueReadBuffer(queue, own.mem, CL_TRUE, 0, kBytes, out->host(), 0, nullptr,
                                       nullptr),
              CL_SUCCESS);
    api->clReleaseCommandQueue(queue);
    EXPECT_EQ(word(*out, 0), 1000u) << mode;
    EXPECT_EQ(word(*out, kCount - 1), 1000 + kCount - 1) << mode;
  }
}

TEST(OpenClInterop, MemoryObjectIsRetained) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto api = real_api();
  std::unique_ptr<hal::Buffer> wrapped;
  {
    const OwnMem own(*api, native_handles(*device).context, kBytes);
    wrapped = allocate(
        *device, {.size = kBytes, .external = own.mem, .external_kind = ExternalKind::kClMem});
  }
  const auto out = visible(*device, 8);
  EXPECT_OK(run(*device, {hal::Write{wrapped->va(), 77}, hal::Copy{out->va(), wrapped->va(), 8}}));
  EXPECT_EQ(word(*out), 77u);
}

TEST(OpenClInterop, MemoryObjectOfAnotherContextIsRefused) {
  BM_NEEDS_OPENCL();
  const auto device = open(), other = open();
  const auto api = real_api();
  const OwnMem own(*api, native_handles(*other).context, kBytes);
  const auto wrap = [&](uint64_t bytes, hal::Device& on, bool host_visible) {
    return on.allocate({.size = bytes,
                        .host_visible = host_visible,
                        .external = own.mem,
                        .external_kind = ExternalKind::kClMem});
  };
  const auto refused = wrap(kBytes, *device, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("context"), std::string::npos);
  EXPECT_EQ(wrap(kBytes + 1, *other, false).error().code, Code::kInvalidArgument);
  EXPECT_EQ(wrap(kBytes, *other, true).error().code, Code::kUnsupported);
  EXPECT_TRUE(wrap(kBytes, *other, false));
}

TEST(OpenClInterop, SharedVirtualMemoryIsWrapped) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto api = real_api();
  if (api->clSVMAlloc == nullptr) GTEST_SKIP() << "no shared virtual memory";
  const auto context = static_cast<cl_context>(native_handles(*device).context);
  void* svm = api->clSVMAlloc(context, CL_MEM_READ_WRITE, kBytes, 0);
  if (svm == nullptr) GTEST_SKIP() << "no shared virtual memory";
  const hal::BufferDesc desc{
      .size = kBytes, .external = svm, .external_kind = ExternalKind::kSvmPointer};
  {
    const auto wrapped = allocate(*device, desc), out = visible(*device, 16);
    EXPECT_EQ(address(*wrapped), address(svm));
    EXPECT_OK(run(*device, {hal::Write{hal::offset(wrapped->va(), 8), 5},
                            hal::Copy{out->va(), wrapped->va(), 16}}));
    EXPECT_EQ(word(*out, 1), 5u);
  }
  api->clSVMFree(context, svm);  // still ours
  EXPECT_EQ(open("0")->allocate(desc).error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace bm::cl
