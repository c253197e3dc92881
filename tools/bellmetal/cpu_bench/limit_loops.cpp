#include "tools/bellmetal/cpu_bench/limit_loops.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bm::cli {
namespace {

/// Streams read at once: prefetchers follow several, and one alone does not fill the memory's
/// bandwidth.
[[maybe_unused]] constexpr size_t kStreams = 4;

/// Keeps a value alive without storing it.
template <class T>
void keep(T& value) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(value));
#else
  asm volatile("" : "+w"(value));
#endif
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void keep512(__m512& v) { asm volatile("" : "+v"(v)); }

__attribute__((target("avx512f"))) void read512(const float* from, size_t count) {
  __m512 sums[kStreams * 2] = {};
  const size_t part = count / kStreams / 32 * 32;
  for (size_t i = 0; i < part; i += 32)
#pragma GCC unroll 4
    for (size_t s = 0; s < kStreams; ++s) {
      const float* at = from + s * part + i;
      sums[2 * s] = _mm512_add_ps(sums[2 * s], _mm512_load_ps(at));
      sums[2 * s + 1] = _mm512_add_ps(sums[2 * s + 1], _mm512_load_ps(at + 16));
    }
  for (size_t i = kStreams * part; i < count; i += 16)
    sums[0] = _mm512_add_ps(sums[0], _mm512_load_ps(from + i));
  for (__m512& s : sums) keep512(s);
}
__attribute__((target("avx512f"))) void copy512(float* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; i += 16) _mm512_store_ps(to + i, _mm512_load_ps(from + i));
}
__attribute__((target("avx512f"))) void stream512(float* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; i += 16) _mm512_stream_ps(to + i, _mm512_load_ps(from + i));
  _mm_sfence();
}
__attribute__((target("avx512f"))) void fma512(size_t rounds) {
  __m512 sums[24] = {};
  for (__m512& s : sums) keep512(s);  // equal sums would be computed once
  __m512 a = _mm512_set1_ps(0.5F), b = _mm512_set1_ps(0.25F);
  for (size_t i = 0; i < rounds; ++i) {
    keep512(a);
    keep512(b);
#pragma GCC unroll 24
    for (size_t j = 0; j < 24; ++j) sums[j] = _mm512_fmadd_ps(a, b, sums[j]);
  }
  for (__m512& s : sums) keep512(s);
}

__attribute__((target("avx2,fma"))) void keep256(__m256& v) { asm volatile("" : "+x"(v)); }

__attribute__((target("avx2,fma"))) void read256(const float* from, size_t count) {
  __m256 sums[kStreams * 2] = {};
  const size_t part = count / kStreams / 16 * 16;
  for (size_t i = 0; i < part; i += 16)
#pragma GCC unroll 4
    for (size_t s = 0; s < kStreams; ++s) {
      const float* at = from + s * part + i;
      sums[2 * s] = _mm256_add_ps(sums[2 * s], _mm256_load_ps(at));
      sums[2 * s + 1] = _mm256_add_ps(sums[2 * s + 1], _mm256_load_ps(at + 8));
    }
  for (size_t i = kStreams * part; i < count; i += 8)
    sums[0] = _mm256_add_ps(sums[0], _mm256_load_ps(from + i));
  for (__m256& s : sums) keep256(s);
}
__attribute__((target("avx2,fma"))) void copy256(float* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; i += 8) _mm256_store_ps(to + i, _mm256_load_ps(from + i));
}
__attribute__((target("avx2,fma"))) void stream256(float* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
  _mm_sfence();
}
__attribute__((target("avx2,fma"))) void fma256(size_t rounds) {
  __m256 sums[12] = {};
  for (__m256& s : sums) keep256(s);
  __m256 a = _mm256_set1_ps(0.5F), b = _mm256_set1_ps(0.25F);
  for (size_t i = 0; i < rounds; ++i) {
    keep256(a);
    keep256(b);
#pragma GCC unroll 12
    for (size_t j = 0; j < 12; ++j) sums[j] = _mm256_fmadd_ps(a, b, sums[j]);
  }
  for (__m256& s : sums) keep256(s);
}

#endif

void read_plain(const float* from, size_t count) {
  float sums[16] = {};
  for (size_t i = 0; i < count; i += 16)
    for (size_t j = 0; j < 16; ++j) sums[j] += from[i + j];
  for (float& s : sums) keep(s);
}
void copy_plain(float* to, const float* from, size_t count) {
  std::memcpy(to, from, count * sizeof(float));
}
void fma_plain(size_t rounds) {
  float sums[32] = {};
  for (float& s : sums) keep(s);
  float a = 0.5F, b = 0.25F;
  for (size_t i = 0; i < rounds; ++i) {
    keep(a);
    keep(b);
    for (float& s : sums) s += a * b;
  }
  for (float& s : sums) keep(s);
}

}  // namespace

const LimitLoops& limit_loops() {
  static constexpr LimitLoops kPlain = {"plain", read_plain, copy_plain, copy_plain, fma_plain, 64};
#if defined(__x86_64__)
  static constexpr LimitLoops kWide = {"avx512f", read512, copy512, stream512, fma512, 24 * 32};
  static constexpr LimitLoops kMiddle = {"avx2", read256, copy256, stream256, fma256, 12 * 16};
  if (__builtin_cpu_supports("avx512f")) return kWide;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kMiddle;
#endif
  return kPlain;
}

}  // namespace bm::cli
