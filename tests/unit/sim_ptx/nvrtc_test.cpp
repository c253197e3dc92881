// CUDA C compiled by the NVRTC found here, for several targets, against the same computation on the
// host. Skips where there is no NVRTC.
#include <dlfcn.h>

#include <cstdlib>

#include "tests/unit/sim_ptx/op_case.h"

namespace bm::sim::ptx::test {
namespace {

/// Own prototypes: the build needs no toolkit.
struct Nvrtc {
  int (*create)(void**, const char*, const char*, int, const char* const*,
                const char* const*) = nullptr;
  int (*compile)(void*, int, const char* const*) = nullptr;
  int (*ptx_size)(void*, size_t*) = nullptr;
  int (*ptx)(void*, char*) = nullptr;
  int (*log_size)(void*, size_t*) = nullptr;
  int (*log)(void*, char*) = nullptr;
  int (*destroy)(void**) = nullptr;
  std::string include;

  bool open() {
    const char* path = std::getenv("CUDA_PATH");
    const std::string root = path ? path : "/usr/local/cuda";
    void* handle = nullptr;
    for (const std::string& name : {root + "/lib64/libnvrtc.so", std::string("libnvrtc.so.13"),
                                    std::string("libnvrtc.so.12")})
      if (!handle) handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return false;
    include = "--include-path=" + root + "/include";
    const auto bind = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(handle, name));
      return f != nullptr;
    };
    return bind(create, "nvrtcCreateProgram") && bind(compile, "nvrtcCompileProgram") &&
           bind(ptx_size, "nvrtcGetPTXSize") && bind(ptx, "nvrtcGetPTX") &&
           bind(log_size, "nvrtcGetProgramLogSize") && bind(log, "nvrtcGetProgramLog") &&
           bind(destroy, "nvrtcDestroyProgram");
  }
};

class PtxFromCuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!nvrtc_.open()) GTEST_SKIP() << "no libnvrtc here: set CUDA_PATH to a CUDA toolkit";
  }
  std::shared_ptr<const Module> compile(const std::string& source, const std::string& more = "") {
    void* program = nullptr;
    EXPECT_EQ(nvrtc_.create(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr), 0);
    const std::string arch = std::string("--gpu-architecture=") + GetParam();
    std::vector<const char*> options{arch.c_str(), nvrtc_.include.c_str(), "--std=c++17"};
    if (!more.empty()) options.push_back(more.c_str());
    const int code = nvrtc_.compile(program, static_cast<int>(options.size()), options.data());
    size_t bytes = 0;
    if (code != 0) {
      nvrtc_.log_size(program, &bytes);
      std::string log(bytes, '\0');
      nvrtc_.log(program, log.data());
      ADD_FAILURE() << log;
      return nullptr;
    }
    nvrtc_.ptx_size(program, &bytes);
    std::string text(bytes, '\0');
    nvrtc_.ptx(program, text.data());
    nvrtc_.destroy(&program);
    return parsed(text);
  }
  Nvrtc nvrtc_;
};

TEST_P(PtxFromCuda, ReducesOverBlocksWarpsAndAtomics) {
  const auto module = compile(R"(
extern "C" __global__ void reduce(const float* x, double* total, int* above, int n, float limit) {
  __shared__ float part[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = i < n ? x[i] : 0.0f;
  part[threadIdx.x] = v;
  int count = __syncthreads_count(v > limit);
  for (int o = 128; o >= 32; o >>= 1) {
    if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    v = part[threadIdx.x];
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (threadIdx.x == 0) { atomicAdd(total, (double)v); atomicAdd(above, count); }
  }
})");
  ASSERT_TRUE(module);
  FlatMemory memory;
  std::vector<float> x(1000);
  double want = 0;
  int above = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 37) * 0.25f;
    want += static_cast<double>(x[i]);
    above += x[i] > 4.0f;
  }
  const uint64_t px = memory.put(x), total = memory.put(std::vector<double>(1)),
                 count = memory.put(std::vector<int>(2));
  const uint64_t tail = 1000 | (uint64_t{std::bit_cast<uint32_t>(4.0f)} << 32);
  const Outcome outcome =
      launch(*module, memory, {px, total, count, tail}, {4}, {256},
             {.threads = 2, .checks = {.uninitialised_shared = true, .shared_races = true}});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  EXPECT_NEAR(memory.get<double>(total)[0], want, 1e-3);
  EXPECT_EQ(memory.get<int>(count)[0], above);
}

TEST_P(PtxFromCuda, MathFunctionsAgreeWithTheHosts) {
  const auto module = compile(R"(
extern "C" __global__ void math(const double* x, double* out, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  double d = x[i];
  float f = (float)d;
  double* o = out + i * 20;
  o[0] = sin(d); o[1] = cos(d); o[2] = exp(d * 1e-3); o[3] = log(fabs(d) + 1e-300); o[4] = pow(fabs(d), 0.3);
  o[5] = tanh(d); o[6] = sqrt(fabs(d)); o[7] = cbrt(d); o[8] = fmod(d, 3.7); o[9] = erf(d);
  o[10] = sinf(f); o[11] = cosf(f); o[12] = expf(f * 1e-3f); o[13] = logf(fabsf(f) + 1e-30f); o[14] = powf(fabsf(f), 0.3f);
  o[15] = tanhf(f); o[16] = rsqrtf(fabsf(f) + 1.0f); o[17] = 1.0f / (f + 0.123f); o[18] = floorf(f) + rintf(f); o[19] = erff(f);
})");
  ASSERT_TRUE(module);
  FlatMemory memory;
  std::vector<double> x = {0,    1,    -1,  0.5,        3.14159, -2.71828, 100,
                           1e5,  -1e5, 1e7, 123456.789, 1e15,    1e22,     -3e10,
                           1e-8, 0.7,  47,  200.5,      -0.25,   12345.678};
  const auto n = static_cast<uint32_t>(x.size());
  const uint64_t px = memory.put(x), out = memory.put(std::vector<double>(20 * n));
  const Outcome outcome = launch(*module, memory, {px, out, n}, {1}, {32});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto got = memory.get<double>(out);
  for (uint32_t i = 0; i < n; ++i) {
    const double d = x[i];
    const float f = static_cast<float>(d);
    const double want[20] = {std::sin(d),
                             std::cos(d),
                             std::exp(d * 1e-3),
                             std::log(std::fabs(d) + 1e-300),
                             std::pow(std::fabs(d), 0.3),
                             std::tanh(d),
                             std::sqrt(std::fabs(d)),
                             std::cbrt(d),
                             std::fmod(d, 3.7),
                             std::erf(d),
                             static_cast<double>(std::sin(f)),
                             static_cast<double>(std::cos(f)),
                             static_cast<double>(std::exp(f * 1e-3f)),
                             static_cast<double>(std::log(std::fabs(f) + 1e-30f)),
                             static_cast<double>(std::pow(std::fabs(f), 0.3f)),
                             static_cast<double>(std::tanh(f)),
                             static_cast<double>(1 / std::sqrt(std::fabs(f) + 1)),
                             static_cast<double>(1.0f / (f + 0.123f)),
                             static_cast<double>(std::floor(f) + std::rint(f)),
                             static_cast<double>(std::erf(f))};
    for (uint32_t k = 0; k < 20; ++k) {
      if (std::isinf(want[k]) && got[20 * i + k] == want[k]) continue;
      ASSERT_NEAR(got[20 * i + k], want[k],
                  std::fabs(want[k]) * (k < 10 ? 1e-13 : 4e-6) + (k < 10 ? 1e-13 : 1e-6))
          << "function " << k << " of " << d;
    }
  }
}

TEST_P(PtxFromCuda, IntegersDivideMultiplyAndCountBits) {
  const auto module = compile(R"(
__device__ __noinline__ long long mix(long long a, int b) { return a / (b | 1) + a % (b | 1); }
extern "C" __global__ void ints(const long long* x, long long* out) {
  int i = threadIdx.x;
  long long a = x[i];
  int b = (int)(a >> 7);
  unsigned long long u = (unsigned long long)a;
  int table[8];
  for (int k = 0; k < 8; ++k) table[k] = k * b + (int)a;
  long long s = table[u & 7] + mix(a, b);
  s += b / 7 + (unsigned)b % 13u + u / 1000003ull + u % 77ull + a / (b == 0 ? 1 : b);
  s ^= (long long)__umul64hi(u, u * 31) + __mulhi(b, b * 3) + __popcll(u) + __clz(b) + __ffsll(a) + (long long)__brev((unsigned)b);
  switch (u % 6) {
    case 0: s += 11; break;
    case 1: s -= 5; break;
    case 2: s *= 3; break;
    case 3: s ^= 0x55; break;
    case 4: s = ~s; break;
    default: s >>= 2;
  }
  out[i] = s + __funnelshift_l((unsigned)a, (unsigned)b, 9) + __byte_perm((unsigned)a, (unsigned)b, 0x5431);
})");
  ASSERT_TRUE(module);
  FlatMemory memory;
  std::vector<int64_t> x;
  for (const uint64_t v : patterns(3, 200)) x.push_back(static_cast<int64_t>(v));
  const uint64_t px = memory.put(x), out = memory.put(std::vector<int64_t>(x.size()));
  const Outcome outcome =
      launch(*module, memory, {px, out}, {1}, {static_cast<uint32_t>(x.size())});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto got = memory.get<int64_t>(out);
  __extension__ using Wide = unsigned __int128;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t a = x[i];
    const auto b = static_cast<int32_t>(a >> 7);
    const auto u = static_cast<uint64_t>(a), ub = uint64_t{static_cast<uint32_t>(b)};
    const auto wrap = [](uint64_t v) { return static_cast<int64_t>(v); };
    const int64_t odd = b | 1;
    const auto divide = [](int64_t n, int64_t d) {
      return d == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(n)) : n / d;
    };
    const auto rest = [](int64_t n, int64_t d) { return d == -1 ? 0 : n % d; };
    const auto cell = static_cast<int32_t>(static_cast<uint32_t>((u & 7) * ub + u));
    uint64_t s = static_cast<uint64_t>(int64_t{cell}) + static_cast<uint64_t>(divide(a, odd)) +
                 static_cast<uint64_t>(rest(a, odd));
    // An int and an unsigned make an unsigned, before the rest makes it longer.
    s += static_cast<uint32_t>(static_cast<uint32_t>(b / 7) + static_cast<uint32_t>(b) % 13u);
    s += u / 1000003 + u % 77 + static_cast<uint64_t>(divide(a, b == 0 ? 1 : b));
    const auto high = static_cast<uint64_t>((static_cast<Wide>(u) * (u * 31)) >> 64);
    const auto b3 = static_cast<int32_t>(static_cast<uint32_t>(b) * 3);
    const int64_t mulhi = (int64_t{b} * b3) >> 32;
    const int ffs = a ? __builtin_ctzll(u) + 1 : 0;
    uint32_t reversed = 0;
    for (int k = 0; k < 32; ++k) reversed |= ((ub >> k) & 1 ? 1u : 0u) << (31 - k);
    s ^= high + static_cast<uint64_t>(mulhi) + static_cast<uint64_t>(__builtin_popcountll(u)) +
         static_cast<uint64_t>(b ? __builtin_clz(static_cast<uint32_t>(b)) : 32) +
         static_cast<uint64_t>(ffs) + reversed;
    switch (u % 6) {
      case 0: s += 11; break;
      case 1: s -= 5; break;
      case 2: s *= 3; break;
      case 3: s ^= 0x55; break;
      case 4: s = ~s; break;
      default: s = static_cast<uint64_t>(wrap(s) >> 2);
    }
    const uint64_t both = (ub << 32) | (u & 0xffffffff);
    const auto funnel = static_cast<uint32_t>((both << 9) >> 32);
    const auto permuted =
        static_cast<uint32_t>(((both >> 8) & 0xff) | ((both >> 24) & 0xff) << 8 |
                              ((both >> 32) & 0xff) << 16 | ((both >> 40) & 0xff) << 24);
    s += static_cast<uint64_t>(funnel) + permuted;
    ASSERT_EQ(got[i], wrap(s)) << a;
  }
}

TEST_P(PtxFromCuda, HalvesBfloatsAndSharedTilesMultiply) {
  const auto module = compile(R"(
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern __shared__ float dynamic[];
__constant__ float scale[2] = {0.5f, 2.0f};
extern "C" __global__ void tiles(const __half* a, const __nv_bfloat16* b, float* c, int n) {
  float* at = dynamic; float* bt = dynamic + 256;
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    at[y * 16 + x] = __half2float(a[row * n + k + x]);
    bt[y * 16 + x] = __bfloat162float(b[(k + y) * n + column]);
    __syncthreads();
    for (int j = 0; j < 16; ++j) sum += at[y * 16 + j] * bt[j * 16 + x];
    __syncthreads();
  }
  __half2 pair = __floats2half2_rn(sum, 1.0f);
  pair = __hmul2(pair, __float2half2_rn(scale[0]));
  c[row * n + column] = __low2float(pair) * scale[1];
})");
  ASSERT_TRUE(module);
  constexpr size_t kN = 48;
  FlatMemory memory;
  std::vector<uint16_t> a(kN * kN), b(kN * kN);
  std::mt19937 random(2);
  for (uint16_t& v : a)
    v = static_cast<uint16_t>(kHalf.nearest(static_cast<double>(random() % 64) / 16 - 2));
  for (uint16_t& v : b)
    v = static_cast<uint16_t>(kBrain.nearest(static_cast<double>(random() % 64) / 16 - 2));
  const uint64_t pa = memory.put(a), pb = memory.put(b),
                 pc = memory.put(std::vector<float>(kN * kN));
  const Outcome outcome = launch(
      *module, memory, {pa, pb, pc, kN}, {3, 3}, {16, 16},
      {.dynamic_shared = 2048, .checks = {.uninitialised_shared = true, .shared_races = true}});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto c = memory.get<float>(pc);
  for (size_t i = 0; i < kN; ++i)
    for (size_t j = 0; j < kN; ++j) {
      double want = 0;
      for (size_t k = 0; k < kN; ++k)
        want += kHalf.value(a[i * kN + k]) * kBrain.value(b[k * kN + j]);
      ASSERT_NEAR(static_cast<double>(c[i * kN + j]), want, std::fabs(want) * 1e-3 + 1e-3)
          << i << "," << j;
    }
}

TEST_P(PtxFromCuda, FastMathAndPrintf) {
  const auto module = compile(R"(
struct Pair { float a; double b; };
__device__ int counter;
extern "C" __global__ void fast(float* out, Pair p) {
  int i = threadIdx.x;
  if (i == 3) printf("thread %d\n", i);
  atomicAdd(&counter, 1);
  __syncthreads();
  out[i] = __sinf(p.a * i) + __expf(p.a) / (float)p.b + counter + __fdividef(1.0f, i + 1.0f) + rsqrtf(i + 1.0f) + __saturatef(p.a);
})",
                              "--use_fast_math");
  ASSERT_TRUE(module);
  FlatMemory memory;
  const uint64_t out = memory.put(std::vector<float>(64));
  const Outcome outcome = launch(*module, memory, {out, bits(0.25f), bits(3.0)}, {1}, {64});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto got = memory.get<float>(out);
  for (size_t i = 0; i < 64; ++i) {
    const double n = static_cast<double>(i);
    const double want =
        std::sin(0.25 * n) + std::exp(0.25) / 3 + 64 + 1 / (n + 1) + 1 / std::sqrt(n + 1) + 0.25;
    ASSERT_NEAR(static_cast<double>(got[i]), want, 1e-4) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, PtxFromCuda,
                         testing::Values("compute_75", "compute_80", "compute_90", "compute_100",
                                         "compute_120"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace bm::sim::ptx::test
