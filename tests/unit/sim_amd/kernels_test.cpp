// Kernels compiled by clang against what the host computes, on random input.

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "runtime/base/half.h"
#include "tests/unit/sim_amd/rig.h"

namespace bm::sim::amd::test {
namespace {

class Kernels : public testing::TestWithParam<const char*> {
 protected:
  /// False: skip.
  bool build(const std::string& source, const std::string& options = "") {
    object_ = compile(source, GetParam(), options);
    return object_.has_value();
  }
  void run_kernel(const std::string& name, Extent3 grid, Extent3 group,
                  const std::vector<uint64_t>& arguments) {
    const auto result = launch(memory_, *object_, name, GetParam(), grid, group, arguments);
    ASSERT_TRUE(result) << result.error().text();
  }
  std::optional<Object> object_;
  FlatMemory memory_;
  std::mt19937_64 random_{7};
};

#define BM_BUILD_OR_SKIP(...) \
  if (!build(__VA_ARGS__)) GTEST_SKIP() << "clang-19 is not installed"

constexpr uint32_t kItems = 256;
constexpr Extent3 kGrid{4, 1, 1}, kGroup{64, 1, 1};
constexpr const char* kIndex =
    "size_t id() { return __builtin_amdgcn_workgroup_id_x() * 64 + "
    "__builtin_amdgcn_workitem_id_x(); }\n";

TEST_P(Kernels, FloatExpressions) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global float* o, global const float* a, global const float* b) {
  size_t i = id();
  float x = a[i], y = b[i], s = 0;
  for (int n = 0; n < 7; ++n) s = __builtin_fmaf(s, x, y) + x * (float)n;
  o[i] = s;
})",
                   "-ffp-contract=off");
  std::vector<float> a(kItems), b(kItems);
  std::uniform_real_distribution<float> u(-2, 2);
  for (uint32_t i = 0; i < kItems; ++i) a[i] = u(random_), b[i] = u(random_);
  const uint64_t o = memory_.allocate(kItems * 4);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a), memory_.put(b)});
  const auto got = memory_.get<float>(o, kItems);
  for (uint32_t i = 0; i < kItems; ++i) {
    float s = 0;
    for (int n = 0; n < 7; ++n) {
      const float t = a[i] * static_cast<float>(n);
      s = std::fma(s, a[i], b[i]) + t;
    }
    EXPECT_EQ(got[i], s) << i;
  }
}

// Any bits, all of them: NaN, infinities, denormals.
TEST_P(Kernels, DivisionAndSquareRootAreExact) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global float* o, global double* p, global float* q, global const float* a, global const float* b,
              global const double* c, global const double* d) {
  size_t i = id();
  o[i] = a[i] / b[i];
  p[i] = c[i] / d[i];
  q[i] = __builtin_sqrtf(a[i]);
})",
                   "-cl-fp32-correctly-rounded-divide-sqrt");
  for (int round = 0; round < 8; ++round) {
    std::vector<float> a(kItems), b(kItems);
    std::vector<double> c(kItems), d(kItems);
    for (uint32_t i = 0; i < kItems; ++i) {
      a[i] = std::bit_cast<float>(static_cast<uint32_t>(random_()));
      b[i] = std::bit_cast<float>(static_cast<uint32_t>(random_()));
      c[i] = std::bit_cast<double>(random_());
      d[i] = std::bit_cast<double>(random_());
      if (i % 3 == 0) {  // near each other, so that quotients are ordinary
        b[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(a[i]) & 0x7f800000u) ^ 0x01923456u);
        d[i] = std::bit_cast<double>((std::bit_cast<uint64_t>(c[i]) & 0x7ff0000000000000u) ^
                                     0x0013123456789abcu);
      }
    }
    FlatMemory fresh;
    memory_ = fresh;
    const uint64_t o = memory_.allocate(kItems * 4), p = memory_.allocate(kItems * 8),
                   q = memory_.allocate(kItems * 4);
    run_kernel("k", kGrid, kGroup,
               {o, p, q, memory_.put(a), memory_.put(b), memory_.put(c), memory_.put(d)});
    const auto f = memory_.get<float>(o, kItems), r = memory_.get<float>(q, kItems);
    const auto g = memory_.get<double>(p, kItems);
    for (uint32_t i = 0; i < kItems; ++i) {
      const float e = a[i] / b[i], h = std::sqrt(a[i]);
      const double x = c[i] / d[i];
      EXPECT_TRUE(f[i] == e || (std::isnan(e) && std::isnan(f[i])))
          << a[i] << " / " << b[i] << ": " << f[i];
      EXPECT_TRUE(r[i] == h || (std::isnan(h) && std::isnan(r[i])))
          << "sqrt " << a[i] << ": " << r[i] << " " << h;
      EXPECT_TRUE(g[i] == x || (std::isnan(x) && std::isnan(g[i])))
          << c[i] << " / " << d[i] << ": " << g[i];
    }
  }
}

TEST_P(Kernels, LongIntegers) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global ulong* o, global const ulong* a, global const ulong* b) {
  size_t i = id();
  ulong x = a[i], y = b[i] | 1;
  o[i] = (x / y) * 31 + (x % y) + (x * y) + (x >> (y & 63)) + (ulong)((long)x / (long)(y | 8)) + (x << (y & 63));
})");
  std::vector<uint64_t> a(kItems), b(kItems);
  for (uint32_t i = 0; i < kItems; ++i) a[i] = random_(), b[i] = random_() >> (i % 50);
  const uint64_t o = memory_.allocate(kItems * 8);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a), memory_.put(b)});
  const auto got = memory_.get<uint64_t>(o, kItems);
  for (uint32_t i = 0; i < kItems; ++i) {
    const uint64_t x = a[i], y = b[i] | 1;
    const uint64_t e =
        (x / y) * 31 + (x % y) + (x * y) + (x >> (y & 63)) +
        static_cast<uint64_t>(static_cast<int64_t>(x) / static_cast<int64_t>(y | 8)) +
        (x << (y & 63));
    EXPECT_EQ(got[i], e) << i;
  }
}

TEST_P(Kernels, Halves) {
  BM_BUILD_OR_SKIP("#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n" + std::string(kIndex) + R"(
kernel void k(global half* o, global const half* a, global const half* b, global float* p) {
  size_t i = id();
  half x = a[i], y = b[i];
  half s = x * y + x;
  s = s - (half)0.5h * y;
  o[i] = s > y ? s : (half)(s + x);
  half2 v = ((global const half2*)a)[i / 2];
  half2 r = v * v + (half2)(1.0h, 2.0h);
  p[i] = (float)r.x + (float)r.y * 3.0f;
})",
                   "-ffp-contract=off");
  std::vector<uint16_t> a(kItems), b(kItems);
  std::uniform_real_distribution<float> u(-4, 4);
  for (uint32_t i = 0; i < kItems; ++i)
    a[i] = f32_to_f16(u(random_)), b[i] = f32_to_f16(u(random_));
  const uint64_t o = memory_.allocate(kItems * 2), p = memory_.allocate(kItems * 4);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a), memory_.put(b), p});
  const auto got = memory_.get<uint16_t>(o, kItems);
  const auto pair = memory_.get<float>(p, kItems);
  const auto r = [](float x) { return f16_to_f32(f32_to_f16(x)); };
  for (uint32_t i = 0; i < kItems; ++i) {
    const float x = f16_to_f32(a[i]), y = f16_to_f32(b[i]);
    float s = r(r(x * y) + x);
    s = r(s - r(0.5f * y));
    EXPECT_EQ(f16_to_f32(got[i]), s > y ? s : r(s + x)) << i;
    const float v0 = f16_to_f32(a[i & ~1u]), v1 = f16_to_f32(a[i | 1]);
    const float second = r(r(v1 * v1) + 2) * 3.0f;
    EXPECT_EQ(pair[i], r(r(v0 * v0) + 1) + second) << i;
  }
}

TEST_P(Kernels, TranscendentalFunctions) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global float* o, global const float* a) {
  size_t i = id();
  float x = a[i];
  o[i * 4 + 0] = __builtin_exp2f(x);
  o[i * 4 + 1] = __builtin_logf(x * x + 0.25f);
  o[i * 4 + 2] = __builtin_amdgcn_sinf(x * 0.15915494f);
  o[i * 4 + 3] = __builtin_expf(x);
})");
  std::vector<float> a(kItems);
  std::uniform_real_distribution<float> u(-9, 9);
  for (float& x : a) x = u(random_);
  const uint64_t o = memory_.allocate(kItems * 16);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a)});
  const auto got = memory_.get<float>(o, kItems * 4);
  for (uint32_t i = 0; i < kItems; ++i) {
    EXPECT_NEAR(got[i * 4] / std::exp2(a[i]), 1, 1e-6);
    EXPECT_NEAR(got[i * 4 + 1], std::log(a[i] * a[i] + 0.25f), 1e-5);
    EXPECT_NEAR(got[i * 4 + 2], std::sin(a[i]), 2e-6);
    EXPECT_NEAR(got[i * 4 + 3] / std::exp(a[i]), 1, 2e-6);
  }
}

TEST_P(Kernels, LdsReductionWithBarriers) {
  BM_BUILD_OR_SKIP(R"(
kernel void k(global uint* o, global const uint* a) {
  local uint s[256];
  size_t l = __builtin_amdgcn_workitem_id_x(), g = __builtin_amdgcn_workgroup_id_x();
  s[l] = a[g * 256 + l];
  for (uint n = 128; n; n >>= 1) {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    if (l < n) s[l] += s[l + n];
  }
  if (l == 0) o[g] = s[0];
})");
  std::vector<uint32_t> a(1024);
  for (auto& x : a) x = static_cast<uint32_t>(random_());
  const uint64_t o = memory_.allocate(16);
  run_kernel("k", {4, 1, 1}, {256, 1, 1}, {o, memory_.put(a)});
  const auto got = memory_.get<uint32_t>(o, 4);
  for (uint32_t g = 0; g < 4; ++g) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 256; ++i) sum += a[g * 256 + i];
    EXPECT_EQ(got[g], sum);
  }
}

/// RDNA2 reaches a stack through a buffer descriptor, which neither driver nor interpreter provide.
class KernelsWithStack : public Kernels {};

TEST_P(KernelsWithStack, AtomicsAndScratch) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global uint* o, global const uint* a, global uint* p) {
  size_t i = id();
  uint local_array[64];
  for (int n = 0; n < 64; ++n) local_array[n] = a[i] * n;
  uint at = a[i] & 63;
  local_array[at] ^= 5;
  p[i] = local_array[a[(i + 1) & 255] & 63] + local_array[at];
  __opencl_atomic_fetch_add((global atomic_uint*)o, a[i], memory_order_relaxed, memory_scope_device);
  __opencl_atomic_fetch_max((global atomic_uint*)o + 1, a[i], memory_order_relaxed, memory_scope_device);
  __opencl_atomic_fetch_xor((global atomic_uint*)o + 2, a[i], memory_order_relaxed, memory_scope_device);
})");
  std::vector<uint32_t> a(kItems);
  for (auto& x : a) x = static_cast<uint32_t>(random_());
  const uint64_t o = memory_.allocate(16), p = memory_.allocate(kItems * 4);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a), p});
  uint32_t sum = 0, most = 0, mixed = 0;
  for (uint32_t x : a) sum += x, most = std::max(most, x), mixed ^= x;
  EXPECT_EQ(memory_.get<uint32_t>(o, 3), (std::vector<uint32_t>{sum, most, mixed}));
  const auto got = memory_.get<uint32_t>(p, kItems);
  for (uint32_t i = 0; i < kItems; ++i) {
    const auto value = [&](uint32_t n) { return n == (a[i] & 63) ? (a[i] * n) ^ 5 : a[i] * n; };
    EXPECT_EQ(got[i], value(a[(i + 1) & 255] & 63) + value(a[i] & 63)) << i;
  }
}

TEST_P(Kernels, WavesOf64) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global float* o, global const float* a, global const uint* n) {
  local float s[64];
  size_t i = id(), l = __builtin_amdgcn_workitem_id_x();
  float x = a[i], y = x;
  for (uint m = 0; m < n[i]; ++m) y = y * 0.5f + x;
  s[l] = y;
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
  o[i] = s[63 - l] / x;
})",
                   "-mwavefrontsize64 -cl-fp32-correctly-rounded-divide-sqrt -ffp-contract=off");
  std::vector<float> a(kItems);
  std::vector<uint32_t> n(kItems);
  std::uniform_real_distribution<float> u(1, 2);
  for (uint32_t i = 0; i < kItems; ++i) a[i] = u(random_), n[i] = i * 7 % 23;
  const uint64_t o = memory_.allocate(kItems * 4);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a), memory_.put(n)});
  const auto got = memory_.get<float>(o, kItems);
  std::vector<float> y = a;
  for (uint32_t i = 0; i < kItems; ++i)
    for (uint32_t m = 0; m < n[i]; ++m) y[i] = y[i] * 0.5f + a[i];
  for (uint32_t i = 0; i < kItems; ++i)
    EXPECT_EQ(got[i], y[(i & ~63u) + 63 - (i & 63)] / a[i]) << i;
}

TEST_P(Kernels, DivergentLoopsAndSubgroups) {
  BM_BUILD_OR_SKIP(std::string(kIndex) + R"(
kernel void k(global uint* o, global const uint* a) {
  size_t i = id();
  uint x = a[i] & 1023, n = 0;
  while (x != 1 && n < 500) { x = x & 1 ? 3 * x + 1 : x / 2; ++n; if (x == 0) break; }
  uint other = __builtin_amdgcn_ds_bpermute(((int)i + 3) * 4, (int)n);
  uint row = __builtin_amdgcn_update_dpp(0, (int)n, 0x111, 0xf, 0xf, true);
  o[i] = n * 100000 + other * 300 + row;
})");
  std::vector<uint32_t> a(kItems);
  for (auto& x : a) x = static_cast<uint32_t>(random_()) | 1;
  const uint64_t o = memory_.allocate(kItems * 4);
  run_kernel("k", kGrid, kGroup, {o, memory_.put(a)});
  const auto got = memory_.get<uint32_t>(o, kItems);
  std::vector<uint32_t> steps(kItems);
  for (uint32_t i = 0; i < kItems; ++i) {
    uint32_t x = a[i] & 1023, n = 0;
    while (x != 1 && n < 500) {
      x = x & 1 ? 3 * x + 1 : x / 2;
      ++n;
      if (x == 0) break;
    }
    steps[i] = n;
  }
  for (uint32_t i = 0; i < kItems; ++i) {
    // RDNA's lanes meet 32 at a time, CDNA's 64.
    const uint32_t lanes = std::string_view(GetParam()) == "gfx942" ? 64 : 32;
    const uint32_t wave = i & ~(lanes - 1);
    const uint32_t row = i % 16 ? steps[i - 1] : 0;
    EXPECT_EQ(got[i], steps[i] * 100000 + steps[wave + (i + 3) % lanes] * 300 + row) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, Kernels,
                         testing::Values("gfx942", "gfx1030", "gfx1100", "gfx1150", "gfx1201"));
INSTANTIATE_TEST_SUITE_P(Chips, KernelsWithStack,
                         testing::Values("gfx942", "gfx1100", "gfx1150", "gfx1201"));

}  // namespace
}  // namespace bm::sim::amd::test
