// Finding the driver, opening GPUs, loading kernels: what is refused, and in what words.

#include "drivers/cuda/api.h"
#include "drivers/cuda/errors.h"
#include "drivers/transport/system.h"
#include "runtime/base/paired_image.h"
#include "tests/unit/cuda/rig.h"

namespace bm::cuda {
namespace {

using namespace test;

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// ---- The library

TEST(CudaLibrary, AMissingOneNamesThePlaceAndThePackage) {
  const auto api = load_api("/nowhere/libcuda.so.1");
  ASSERT_FALSE(api);
  EXPECT_EQ(code_name(api.error().code), code_name(Code::kNotFound));
  EXPECT_TRUE(has(api.error().message, "/nowhere/libcuda.so.1")) << api.error().message;
  EXPECT_TRUE(has(api.error().message, "libcuda1"));
}

TEST(CudaLibrary, TheToolkitsStubIsNoDriver) {
  const auto api = load_api(BM_CUDA_TEST_STUB);
  ASSERT_FALSE(api);
  EXPECT_EQ(code_name(api.error().code), code_name(Code::kNotFound));
  EXPECT_TRUE(has(api.error().message, "is the toolkit's stub: no NVIDIA driver is installed"))
      << api.error().message;
}

TEST(CudaLibrary, OneThatLacksFunctionsIsRefusedNamingThem) {
  const auto api = load_api(BM_CUDA_TEST_OLD);
  ASSERT_FALSE(api);
  EXPECT_EQ(code_name(api.error().code), code_name(Code::kUnsupported));
  EXPECT_TRUE(has(api.error().message, "cuMemAlloc_v2")) << api.error().message;
  EXPECT_TRUE(has(api.error().message, "cuDevicePrimaryCtxRelease_v2"));
  EXPECT_FALSE(has(api.error().message, "cuGraphCreate")) << "that one is optional";
}

/// A machine whose kernel module has some version.
class Machine final : public System {
 public:
  explicit Machine(std::string version_file) : version_file_(std::move(version_file)) {}
  int read_file(const std::string& path, std::string* out) override {
    if (version_file_.empty() || path != "/proc/driver/nvidia/version") return -2;
    *out = version_file_;
    return 0;
  }

 private:
  const std::string version_file_;
};

TEST(CudaInit, EveryRefusalSaysWhyAndWhatToDo) {
  Machine machine(
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\n"
      "GCC version: 12\n");
  Machine bare("");
  const auto api = fake_api();
  const auto refused = [&](CuResult error, System& system) {
    fake().failures = {{"cuInit", error}};
    const Status status = initialize(*api, system);
    EXPECT_FALSE(status);
    return status ? Error{} : status.error();
  };
  const Error no_device = refused(100, machine);
  EXPECT_EQ(code_name(no_device.code), code_name(Code::kNotFound));
  EXPECT_TRUE(has(no_device.message, "CUDA_VISIBLE_DEVICES")) << no_device.message;
  for (const CuResult mismatch : {803, 999}) {
    const Error error = refused(mismatch, machine);
    EXPECT_EQ(code_name(error.code), code_name(Code::kUnsupported));
    EXPECT_TRUE(has(error.message, "CUDA 13.0, the kernel module is 580.105.08")) << error.message;
  }
  EXPECT_TRUE(has(refused(999, bare).message, "no /proc/driver/nvidia/version"));
  EXPECT_TRUE(has(refused(34, machine).message, "stub"));
  EXPECT_TRUE(has(refused(802, machine).message, "nvidia-fabricmanager"));
  EXPECT_TRUE(has(refused(304, machine).message, "/dev/nvidiactl"));
}

TEST(CudaErrors, HaveTheDriversNameOrOurs) {
  const auto api = fake_api();
  EXPECT_EQ(error_name(*api, 719), "CUDA_ERROR_LAUNCH_FAILED (719)");
  EXPECT_EQ(error_name(*api, 12345), "CUDA error 12345");
  api->cuGetErrorName = [](CuResult, const char** name) -> CuResult {
    *name = "CUDA_ERROR_OF_THE_FUTURE";
    return kSuccess;
  };
  EXPECT_EQ(error_name(*api, 12345), "CUDA_ERROR_OF_THE_FUTURE (12345)");
  for (const CuResult lost : {46, 214, 220, 700, 702, 714, 715, 716, 717, 718, 719})
    EXPECT_TRUE(is_sticky(lost)) << lost;
  for (const CuResult fine : {0, 1, 2, 209, 218, 600, 701, 801}) EXPECT_FALSE(is_sticky(fine));
}

// ---- Opening

TEST(CudaDevice, SaysWhatItIs) {
  const auto device = open_on(fake_api(), 1);
  EXPECT_EQ(device->arch().name, "sm_90");
  EXPECT_EQ(device->arch().vendor, hal::Vendor::kNv);
  EXPECT_EQ(device->arch().units, 132u);
  EXPECT_EQ(device->arch().max_block, 1024u);
  EXPECT_EQ(device->arch().shared_memory_bytes, 48u << 10);
  EXPECT_EQ(device->description(), "Fake H200 (PCI 0000:02:00.0, CUDA 13.0)");
  EXPECT_EQ(device->memory().total, size_t{1} << 30);
}

TEST(CudaDevice, CountingOpensNothing) {
  const auto api = fake_api();
  EXPECT_OK(initialize(*api));
  int count = 0;
  EXPECT_EQ(api->cuDeviceGetCount(&count), kSuccess);
  EXPECT_EQ(fake().count("cuDevicePrimaryCtxRetain"), 0);
  EXPECT_REFUSED(Code::kNotFound, open_device_on(api, 2, ""));
  EXPECT_EQ(fake().count("cuDevicePrimaryCtxRetain"), 0);
}

TEST(CudaDevice, RunsOlderCodeOfItsOwnGenerationOnly) {
  const auto api = fake_api();
  fake().attributes[kCapabilityMajor] = 8;
  fake().attributes[kCapabilityMinor] = 9;
  EXPECT_EQ(open_on(api)->arch().name, "sm_89");
  EXPECT_EQ(open_on(api, 0, "sm_80")->arch().name, "sm_80");
  for (const char* wrong : {"sm_75", "sm_90", "sm_", "sm_80x", "gfx1100"}) {
    const auto device = open_device_on(api, 0, wrong);
    EXPECT_REFUSED(Code::kInvalidArgument, device);
    EXPECT_TRUE(has(device.error().message, "this GPU is sm_89")) << device.error().message;
  }
  EXPECT_EQ(fake().contexts, 0);
}

TEST(CudaDevice, AFailureWhileOpeningLeavesNothing) {
  for (const char* member : {"cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuDeviceGet"}) {
    const auto api = fake_api();
    fake().failures = {{member, kErrorOutOfMemory}};
    EXPECT_REFUSED(Code::kOutOfMemory, open_device_on(api, 0, ""));
    EXPECT_EQ(fake().contexts, 0) << member;
    EXPECT_TRUE(fake().streams.empty());
  }
}

// ---- Kernels

struct CudaPrograms : testing::Test {
  std::string refused(const hal::CodeObject& object, Code wanted) {
    const auto program = device->load(object);
    EXPECT_REFUSED(wanted, program);
    return program ? "" : program.error().message;
  }
  std::shared_ptr<Api> api = usual_api();
  std::unique_ptr<hal::Device> device = open_on(api);
};

TEST_F(CudaPrograms, WhatALaunchCouldBeRefusedForIsRefusedAtLoad) {
  FakeFunction& add = fake().functions["add"];
  add.max_threads = 256;
  EXPECT_TRUE(has(refused(code("add", 1, 2, {512}), Code::kInvalidArgument),
                  "blocks of 512 threads; with its 32 registers a thread at most 256"));
  EXPECT_TRUE(has(refused(code("add", 1, 2, {1, 1, 65}), Code::kInvalidArgument), "1 x 1 x 65"));
  refused(code("add", 1, 2, {0}), Code::kInvalidArgument);
  add.shared_bytes = 49153;
  EXPECT_TRUE(has(refused(code("add", 1, 2), Code::kUnsupported),
                  "needs 49153 bytes of shared memory, the limit is 49152"));
  hal::CodeObject other = code("add", 1, 2);
  other.arch = "sm_80";
  EXPECT_TRUE(
      has(refused(other, Code::kInvalidArgument), "made for 'sm_80', this device is 'sm_90'"));
  EXPECT_TRUE(has(refused(code("nothing", 1, 2), Code::kInvalidArgument), "no kernel 'nothing'"));
  EXPECT_OK(device->status());
  EXPECT_EQ(fake().count("cuModuleUnload"), 6 - 1) << "one was refused before it was loaded";
}

/// More than kernels declare themselves is asked for with the launch.
TEST_F(CudaPrograms, SharedMemoryBeyondTheStaticLimitIsAskedFor) {
  FakeFunction& add = fake().functions["add"];
  add.shared_bytes = 16;
  hal::CodeObject large = code("add", 1, 2);
  large.launch_memory_bytes = 200 << 10;
  ASSERT_TRUE(device->load(large));
  EXPECT_EQ(add.launch_shared_bytes, 200 << 10);
  large.launch_memory_bytes = 228 << 10;
  EXPECT_TRUE(has(refused(large, Code::kUnsupported),
                  "needs 233488 bytes of shared memory, the limit is 232448"));
}

TEST_F(CudaPrograms, ADriverThatTellsTheParametersIsBelieved) {
  api->cuFuncGetParamInfo = [](CuFunction, size_t index, size_t* offset,
                               size_t* bytes) -> CuResult {
    *offset = index * 8;
    *bytes = 8;
    return index < 3 ? kSuccess : kErrorInvalidValue;
  };
  EXPECT_TRUE(device->load(code("add", 1, 2)));
  EXPECT_TRUE(has(refused(code("add", 1, 3), Code::kInvalidArgument),
                  "takes 3 arguments, its code object says 4"));
  EXPECT_TRUE(has(refused(code("add", 1, 0), Code::kInvalidArgument), "takes more than 1"));
}

TEST_F(CudaPrograms, TheCompilersLogIsShown) {
  fake().log = "ptxas line 7: unknown opcode";
  fake().failures = {{"cuModuleLoadDataEx", 218}};
  const std::string message = refused(code("add", 1, 2), Code::kCompile);
  EXPECT_TRUE(has(message, "kernel 'add' (PTX) does not load: CUDA_ERROR_INVALID_PTX (218)"));
  EXPECT_TRUE(has(message, "unknown opcode"));
  fake().failures = {{"cuModuleLoadDataEx", 222}};
  EXPECT_TRUE(has(refused(code("add", 1, 2), Code::kUnsupported), "newer than the driver"));
}

TEST_F(CudaPrograms, ADamagedCubinNeverReachesTheDriver) {
  hal::CodeObject object = code("add", 1, 2);
  object.image.assign(64, std::byte{0});
  constexpr unsigned char kHead[] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
  std::copy(std::begin(kHead), std::end(kHead),
            reinterpret_cast<unsigned char*>(object.image.data()));
  object.image[40] = std::byte{0xff};  // sections far outside
  object.image[58] = std::byte{64}, object.image[60] = std::byte{9};
  EXPECT_FALSE(device->load(object));
  EXPECT_EQ(fake().count("cuModuleLoadDataEx"), 0);
  object.image.clear();
  EXPECT_REFUSED(Code::kInvalidArgument, device->load(object));
}

TEST_F(CudaPrograms, ThePtxBehindACubinIsForDriversThatRefuseTheCubin) {
  std::vector<std::byte> cubin(64);  // a header of an empty file
  const auto set = [&](size_t at, std::initializer_list<int> bytes) {
    for (const int byte : bytes) cubin[at++] = static_cast<std::byte>(byte);
  };
  set(0, {0x7f, 'E', 'L', 'F', 2, 1, 1});
  set(16, {2, 0, 190, 0, 1});
  set(52, {64, 0, 56, 0, 0, 0, 64, 0});
  hal::CodeObject object = code("add", 1, 2);
  object.image = pair_image(cubin, ".version 8.0");
  EXPECT_OK(device->load(object));
  EXPECT_EQ(fake().count("cuModuleLoadDataEx"), 1) << "the cubin will do";
  api->cuModuleLoadDataEx = [](CuModule* module, const void* image, unsigned, int*,
                               void**) -> CuResult {
    ++fake().calls["loads"];
    if (std::string_view(static_cast<const char*>(image)) != ".version 8.0") return kErrorNoBinary;
    *module = reinterpret_cast<CuModule>(uintptr_t{1});
    return kSuccess;
  };
  EXPECT_OK(device->load(object));
  EXPECT_EQ(fake().count("loads"), 2);
  object.image = cubin;
  EXPECT_TRUE(has(refused(object, Code::kCompile), "kernel 'add' (cubin) does not load"));
}

TEST_F(CudaPrograms, AnOldDriverLoadsWithoutALog) {
  api->cuModuleLoadDataEx = nullptr;
  EXPECT_TRUE(device->load(code("add", 1, 2)));
  EXPECT_EQ(fake().count("cuModuleLoadData"), 1);
}

}  // namespace
}  // namespace bm::cuda
