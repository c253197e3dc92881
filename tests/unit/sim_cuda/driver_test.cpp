// Devices, memory, modules, launches and their refusals.
#include "tests/unit/sim_cuda/fake.h"

namespace bm::sim::cuda::test {
namespace {

TEST(FakeCuda, InitialisationFailsAsAsked) {
  for (const int code : {34, 100, 803, 999}) {
    const Fake cuda(Environment{{"FAKE_CUDA_INIT", std::to_string(code)}});
    int version = 0, count = 0;
    EXPECT_EQ(cuda("cuInit", 0u), code);
    EXPECT_EQ(cuda("cuDeviceGetCount", &count), 3);
    EXPECT_EQ(cuda("cuDriverGetVersion", &version), 0);
    EXPECT_EQ(version, 13000);
  }
  const Fake none(Environment{{"FAKE_CUDA_DEVICES", "0"}});
  EXPECT_EQ(none("cuInit", 0u), 100);
  const Fake cuda;
  EXPECT_EQ(cuda("cuInit", 1u), 1);
  const char* name = nullptr;
  EXPECT_EQ(cuda("cuGetErrorName", 700, &name), 0);
  EXPECT_STREQ(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuda("cuGetErrorString", 12345, &name), 1);
}

TEST(FakeCuda, DevicesHaveTheFactsOfTheirChip) {
  const Fake cuda(Environment{
      {"FAKE_CUDA_SM", "86"}, {"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_MEMORY", "1048576"}});
  ASSERT_EQ(cuda("cuInit", 0u), 0);
  int value = 0, device = -1;
  EXPECT_EQ(cuda("cuDeviceGet", &device, 1), 0);
  EXPECT_EQ(cuda("cuDeviceGet", &device, 2), 101);
  const auto attribute = [&](int id) {
    EXPECT_EQ(cuda("cuDeviceGetAttribute", &value, id, 1), 0);
    return value;
  };
  EXPECT_EQ(attribute(75), 8);
  EXPECT_EQ(attribute(76), 6);
  EXPECT_EQ(attribute(97), 101376);
  EXPECT_EQ(attribute(1), 1024);
  EXPECT_EQ(cuda("cuDeviceGetAttribute", &value, 9999, 1), 1);
  cuda.start();
  uint64_t p = 0;
  EXPECT_EQ(cuda("cuMemAlloc_v2", &p, size_t{2097152}), 2);
  EXPECT_EQ(cuda("cuMemAlloc_v2", &p, size_t{0}), 1);
  EXPECT_EQ(cuda("cuMemAlloc_v2", &p, size_t{1000000}), 0);
  size_t free = 0, total = 0;
  EXPECT_EQ(cuda("cuMemGetInfo_v2", &free, &total), 0);
  EXPECT_EQ(free, 48576u);
  EXPECT_EQ(cuda("cuMemFree_v2", p + 8), 1);
  EXPECT_EQ(cuda("cuMemFree_v2", p), 0);
  EXPECT_EQ(cuda("cuMemFree_v2", p), 1);
}

TEST(FakeCuda, KernelsRunWithBothFormsOfArguments) {
  const Fake cuda;
  cuda.start();
  void* f = cuda.function(kText, "scale");
  std::vector<uint64_t> in(256);
  for (size_t i = 0; i < in.size(); ++i) in[i] = i;
  uint64_t a = cuda.allocate(2048), b = cuda.allocate(2048), value = 7;
  EXPECT_EQ(cuda("cuMemcpyHtoD_v2", a, static_cast<const void*>(in.data()), size_t{2048}), 0);
  EXPECT_EQ(cuda.launch(f, 4, 64, {b, a, value}), 0);
  auto out = cuda.read(b, 256);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i * 3 + 7);
  void* params[] = {&a, &b, &value};
  EXPECT_EQ(cuda("cuLaunchKernel", f, 4u, 1u, 1u, 64u, 1u, 1u, 0u, static_cast<void*>(nullptr),
                 static_cast<void**>(params), static_cast<void**>(nullptr)),
            0);
  out = cuda.read(a, 256);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], (i * 3 + 7) * 3 + 7);
  size_t offset = 0, bytes = 0;
  EXPECT_EQ(cuda("cuFuncGetParamInfo", f, size_t{2}, &offset, &bytes), 0);
  EXPECT_EQ(offset, 16u);
  EXPECT_EQ(bytes, 8u);
  EXPECT_EQ(cuda("cuFuncGetParamInfo", f, size_t{3}, &offset, &bytes), 1);
}

TEST(FakeCuda, LaunchesOutsideTheLimitsAreRefused) {
  const Fake cuda;
  cuda.start();
  void *f = cuda.function(kText, "scale"), *small = cuda.function(kText, "increment");
  const uint64_t p = cuda.allocate(8192);
  EXPECT_EQ(cuda.launch(f, 0, 32, {p, p, 0}), 1);
  EXPECT_EQ(cuda.launch(f, 1, 1025, {p, p, 0}), 1);
  EXPECT_EQ(cuda.launch(small, 1, 65, {p}), 1);
  EXPECT_EQ(cuda.launch(f, 1, 32, {p, p}), 1) << "arguments missing";
  EXPECT_EQ(cuda.launch(f, 1, 32, {p, p, 0}, nullptr, 60000), 1)
      << "dynamic shared memory not opted into";
  EXPECT_EQ(cuda("cuFuncSetAttribute", f, 8, 60000), 0);
  EXPECT_EQ(cuda.launch(f, 1, 32, {p, p, 0}, nullptr, 60000), 0);
  EXPECT_EQ(cuda("cuFuncSetAttribute", f, 8, 300000), 1);
  EXPECT_EQ(cuda.launch(f, 1, 32, {p, p, 0}, reinterpret_cast<void*>(0x1234560)), 400);
  EXPECT_EQ(cuda.launch(reinterpret_cast<void*>(0x1234560), 1, 32, {p, p, 0}), 400);
  EXPECT_EQ(cuda("cuLaunchKernel", f, 1u, 65536u, 1u, 1u, 1u, 1u, 0u, static_cast<void*>(nullptr),
                 static_cast<void**>(nullptr), static_cast<void**>(nullptr)),
            1);
  EXPECT_EQ(cuda("cuCtxSynchronize"), 0);
}

TEST(FakeCuda, LaunchAttributesOutsideTheirListOrGenerationAreRefused) {
  struct Attribute {
    unsigned id, padding;
    int value[16];
  };
  struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    const Attribute* attributes;
    unsigned count;
  };
  for (const unsigned sm : {80u, 90u}) {
    const Fake cuda(Environment{{"FAKE_CUDA_SM", std::to_string(sm)}});
    cuda.start();
    void* f = cuda.function(kText, "increment");
    uint64_t p = cuda.allocate(64 * 8);
    const uint64_t before = cuda.read(p, 1)[0];
    void* params[] = {&p};
    const auto launch = [&](unsigned id, int value, int more = 1) {
      const Attribute attribute{id, 0, {value, more, more}};
      const Config config{{1, 1, 1}, {64, 1, 1}, 0, nullptr, &attribute, 1};
      return cuda("cuLaunchKernelEx", static_cast<const void*>(&config), f,
                  static_cast<void**>(params), static_cast<void**>(nullptr));
    };
    EXPECT_EQ(launch(0, 1), 0) << "ignored";
    EXPECT_EQ(launch(6, 1), sm >= 90 ? 0 : 1) << "programmatic launch";
    EXPECT_EQ(launch(6, 0), 0) << "not asked for";
    EXPECT_EQ(launch(4, 1), sm >= 90 ? 0 : 1) << "clusters of one";
    for (const unsigned id : {3u, 13u, 15u, 17u, 0x7fffffffu}) EXPECT_EQ(launch(id, 1), 1) << id;
    const Config none{{1, 1, 1}, {64, 1, 1}, 0, nullptr, nullptr, 1};
    EXPECT_EQ(cuda("cuLaunchKernelEx", static_cast<const void*>(&none), f,
                   static_cast<void**>(params), static_cast<void**>(nullptr)),
              1);
    EXPECT_EQ(cuda("cuCtxSynchronize"), 0);
    EXPECT_EQ(cuda.read(p, 1)[0] - before, sm >= 90 ? 4u : 2u) << "times it ran";
  }
}

TEST(FakeCuda, FaultsAreStickyUntilTheContextIsGone) {
  const Fake cuda;
  void* context = cuda.start();
  void* f = cuda.function(kText, "scale");
  const uint64_t p = cuda.allocate(64);
  EXPECT_EQ(cuda.launch(f, 1, 9, {p, p, 0}), 0) << "launches are asynchronous";
  EXPECT_EQ(cuda("cuCtxSynchronize"), 700);
  EXPECT_NE(cuda.last_fault().find("thread 8,0,0"), std::string::npos) << cuda.last_fault();
  uint64_t other = 0;
  EXPECT_EQ(cuda("cuMemAlloc_v2", &other, size_t{64}), 700);
  EXPECT_EQ(cuda.launch(f, 1, 1, {p, p, 0}), 700);
  EXPECT_EQ(cuda("cuDevicePrimaryCtxRelease_v2", 0), 0);
  EXPECT_EQ(cuda("cuMemAlloc_v2", &other, size_t{64}), 709);
  (void)context;
  cuda.start();
  void* again = cuda.function(kText, "increment");
  EXPECT_EQ(cuda.launch(again, 1, 1, {cuda.allocate(64)}), 0);
  EXPECT_EQ(cuda("cuCtxSynchronize"), 0);
  // Misaligned addresses have a code of their own.
  EXPECT_EQ(cuda.launch(again, 1, 1, {cuda.allocate(64) + 4}), 0);
  EXPECT_EQ(cuda("cuCtxSynchronize"), 716);
}

TEST(FakeCuda, ModulesAreRefusedWithTheRealCodes) {
  const Fake cuda(Environment{{"FAKE_CUDA_VERSION", "12040"}, {"FAKE_CUDA_SM", "80"}});
  cuda.start();
  const auto load = [&](std::string text) {
    void* module = nullptr;
    return cuda("cuModuleLoadData", &module, static_cast<const void*>(text.c_str()));
  };
  const auto module = [](const std::string& version, const std::string& target,
                         const std::string& code) {
    return ".version " + version + "\n.target " + target + "\n.address_size 64\n.entry k() { " +
           code + " ret; }";
  };
  EXPECT_EQ(load(module("8.4", "sm_80", "")), 0);
  EXPECT_EQ(load(module("8.5", "sm_80", "")), 222);
  EXPECT_EQ(load(module("8.4", "sm_90", "")), 218);
  EXPECT_EQ(load(module("8.4", "sm_80", "nonsense.u32 %r1;")), 218);
  EXPECT_EQ(load("not PTX at all"), 200);
  std::string cubin("\177ELF");
  cubin.resize(64);
  EXPECT_EQ(load(cubin), 200);
  char log[256] = "";
  int options[] = {5, 6};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  void* out = nullptr;
  const std::string bad = module("8.4", "sm_80", "add.u32 %r1, %r2;");
  EXPECT_EQ(
      cuda("cuModuleLoadDataEx", &out, static_cast<const void*>(bad.c_str()), 2u, options, values),
      218);
  EXPECT_NE(std::string(log).find("line 4"), std::string::npos) << log;
  void *good = nullptr, *f = nullptr;
  EXPECT_EQ(cuda("cuModuleLoadData", &good, static_cast<const void*>(kText.c_str())), 0);
  EXPECT_EQ(cuda("cuModuleGetFunction", &f, good, "nobody"), 500);
  EXPECT_EQ(cuda("cuModuleUnload", good), 0);
  EXPECT_EQ(cuda("cuModuleUnload", good), 400);
}

TEST(FakeCuda, VariablesOfModulesLiveInDeviceMemory) {
  const Fake cuda;
  cuda.start();
  void *module = nullptr, *f = nullptr;
  ASSERT_EQ(cuda("cuModuleLoadData", &module, static_cast<const void*>(kText.c_str())), 0);
  ASSERT_EQ(cuda("cuModuleGetFunction", &f, module, "increment"), 0);
  uint64_t total = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuda("cuModuleGetGlobal_v2", &total, &bytes, module, "total"), 0);
  EXPECT_EQ(bytes, 8u);
  EXPECT_EQ(cuda.launch(f, 1, 10, {cuda.allocate(512)}), 0);
  EXPECT_EQ(cuda.launch(f, 1, 10, {cuda.allocate(512)}), 0);
  EXPECT_EQ(cuda.read(total, 1)[0], 25u);
}

TEST(FakeCuda, PointersHostMemoryAndPeers) {
  const Fake cuda(Environment{{"FAKE_CUDA_DEVICES", "2"}});
  void *first = cuda.start(), *second = nullptr;
  ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &second, 1), 0);
  const uint64_t device = cuda.allocate(100);
  void* pinned = nullptr;
  EXPECT_EQ(cuda("cuMemHostAlloc", &pinned, size_t{4096}, 3u), 0);
  std::vector<uint64_t> pageable(64, 1);
  unsigned type = 0;
  EXPECT_EQ(cuda("cuPointerGetAttribute", static_cast<void*>(&type), 2, device + 50), 0);
  EXPECT_EQ(type, 2u);
  EXPECT_EQ(cuda("cuPointerGetAttribute", static_cast<void*>(&type), 2,
                 reinterpret_cast<uint64_t>(pinned)),
            0);
  EXPECT_EQ(type, 1u);
  const auto host = reinterpret_cast<uint64_t>(pageable.data());
  EXPECT_EQ(cuda("cuPointerGetAttribute", static_cast<void*>(&type), 2, host), 1);
  void* f = cuda.function(kText, "increment");
  EXPECT_EQ(cuda("cuMemHostRegister_v2", static_cast<void*>(pageable.data()), size_t{512}, 0u), 0);
  EXPECT_EQ(cuda("cuMemHostRegister_v2", static_cast<void*>(pageable.data()), size_t{64}, 0u), 712);
  EXPECT_EQ(cuda.launch(f, 1, 64, {host}), 0);
  EXPECT_EQ(cuda("cuCtxSynchronize"), 0);
  EXPECT_EQ(pageable[63], 2u);
  EXPECT_EQ(cuda("cuMemHostUnregister", static_cast<void*>(pageable.data())), 0);
  EXPECT_EQ(cuda("cuMemHostUnregister", static_cast<void*>(pageable.data())), 713);
  // Another device's memory needs peer access in a kernel.
  EXPECT_EQ(cuda("cuCtxSetCurrent", second), 0);
  const uint64_t far = cuda.allocate(512);
  EXPECT_EQ(cuda("cuCtxSetCurrent", first), 0);
  EXPECT_EQ(cuda("cuCtxEnablePeerAccess", second, 0u), 0);
  EXPECT_EQ(cuda("cuCtxEnablePeerAccess", second, 0u), 704);
  EXPECT_EQ(cuda.launch(f, 1, 1, {far}), 0);
  EXPECT_EQ(cuda("cuCtxSynchronize"), 0);
  EXPECT_EQ(cuda("cuCtxDisablePeerAccess", second), 0);
  EXPECT_EQ(cuda.launch(f, 1, 1, {far}), 0);
  EXPECT_EQ(cuda("cuCtxSynchronize"), 700);
}

TEST(FakeCuda, CopiesOutsideAllocationsAreRefused) {
  const Fake cuda;
  cuda.start();
  const uint64_t p = cuda.allocate(128);
  std::vector<uint64_t> host(32);
  EXPECT_EQ(cuda("cuMemcpyHtoD_v2", p, static_cast<const void*>(host.data()), size_t{129}), 1);
  EXPECT_EQ(cuda("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), p + 64, size_t{65}), 1);
  EXPECT_EQ(cuda("cuMemcpyDtoDAsync_v2", p, uint64_t{4096}, size_t{8}, static_cast<void*>(nullptr)),
            1);
  EXPECT_EQ(cuda("cuMemsetD32_v2", p, 7u, size_t{33}), 1);
  EXPECT_EQ(cuda("cuMemsetD32_v2", p + 2, 7u, size_t{1}), 1);
  EXPECT_EQ(cuda("cuMemsetD32_v2", p, 7u, size_t{32}), 0);
  EXPECT_EQ(cuda.read(p, 1)[0], 0x700000007u);
}

TEST(FakeCuda, TheNthCallFailsAndErrorsOfHardwareAppear) {
  {
    const Fake cuda(Environment{{"FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:2"}});
    cuda.start();
    uint64_t p = 0;
    EXPECT_EQ(cuda("cuMemAlloc_v2", &p, size_t{8}), 0);
    EXPECT_EQ(cuda("cuMemAlloc_v2", &p, size_t{8}), 2);
    EXPECT_EQ(cuda("cuMemAlloc_v2", &p, size_t{8}), 0);
  }
  {
    const Fake cuda(Environment{{"FAKE_CUDA_ECC", "2"}});
    cuda.start();
    void* f = cuda.function(kText, "increment");
    const uint64_t p = cuda.allocate(8);
    EXPECT_EQ(cuda.launch(f, 1, 1, {p}), 0);
    EXPECT_EQ(cuda.launch(f, 1, 1, {p}), 0);
    EXPECT_EQ(cuda("cuCtxSynchronize"), 214);
  }
  const Fake cuda(Environment{{"FAKE_CUDA_HANG", "incre"}});
  cuda.start();
  void* f = cuda.function(kText, "increment");
  void* stream = nullptr;
  EXPECT_EQ(cuda("cuStreamCreate", &stream, 1u), 0);
  EXPECT_EQ(cuda.launch(f, 1, 1, {cuda.allocate(8)}, stream), 0);
  EXPECT_EQ(cuda("cuStreamQuery", stream), 600);
  EXPECT_EQ(cuda("cuDevicePrimaryCtxReset_v2", 0), 0) << "the hung kernel ends with its context";
}

TEST(FakeCuda, NothingIsLeftBehindAndProcAddressFindsVersions) {
  const Fake cuda;
  void* context = cuda.start();
  void* f = nullptr;
  int status = -1;
  EXPECT_EQ(cuda("cuGetProcAddress_v2", "cuMemAlloc", &f, 13000, uint64_t{0}, &status), 0);
  EXPECT_NE(f, nullptr);
  EXPECT_EQ(cuda("cuGetProcAddress_v2", "cuNoSuchThing", &f, 13000, uint64_t{0}, &status), 500);
  EXPECT_EQ(status, 1);
  const uint64_t p = cuda.allocate(8);
  void *event = nullptr, *stream = nullptr;
  EXPECT_EQ(cuda("cuEventCreate", &event, 0u), 0);
  EXPECT_EQ(cuda("cuStreamCreate", &stream, 0u), 0);
  EXPECT_EQ(cuda.live(), 3u);
  EXPECT_EQ(cuda("cuEventDestroy_v2", event), 0);
  EXPECT_EQ(cuda("cuEventDestroy_v2", event), 400);
  EXPECT_EQ(cuda("cuStreamDestroy_v2", stream), 0);
  EXPECT_EQ(cuda("cuMemFree_v2", p), 0);
  EXPECT_EQ(cuda.live(), 0u);
  (void)context;
}

}  // namespace
}  // namespace bm::sim::cuda::test
