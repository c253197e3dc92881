#include "tests/cts/cuda_kernels.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "tests/cts/kernels.h"

namespace bm::cts {
namespace {

// Buffers first, then variables as 64-bit integers; the table in kernels.h says what each does.
constexpr std::string_view kSource = R"cuda(
typedef long long i64;
typedef unsigned long long u64;

__device__ static i64 item() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

#ifdef HAS_saxpy
extern "C" __global__ void saxpy(float* out, const float* x, const float* y, i64 n, i64 a) {
  const i64 i = item();
  if (i < n) out[i] = __fadd_rn(__fmul_rn(__int_as_float((int)a), x[i]), y[i]);
}
#endif

#ifdef HAS_iota
extern "C" __global__ void iota(i64* out, i64 n, i64 start) {
  const i64 i = item();
  if (i < n) out[i] = start + i;
}
#endif

#ifdef HAS_look_up
// A table in constant memory and one in global memory: relocations of both kinds.
__constant__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};

extern "C" __global__ void look_up(int* out, const int* in, i64 n) {
  const i64 i = item();
  if (i < n) out[i] = ((i & 1) ? squares[in[i] & 7] : primes[in[i] & 7]) + 1000;
}
#endif

#ifdef HAS_sines
extern "C" __global__ void sines(float* out, const float* in, i64 n) {
  const i64 i = item();
  if (i < n) out[i] = sinf(in[i]);
}
#endif

#ifdef HAS_move
extern "C" __global__ void move(unsigned char* out, const unsigned char* in, i64 bytes) {
  for (i64 i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = in[i];
}
#endif

#ifdef HAS_increment
extern "C" __global__ void increment(float* x, i64 n) {
  const i64 i = item();
  if (i < n) x[i] += 1.0f;
}
#endif

#ifdef HAS_fold
extern "C" __global__ void fold(u64* out, const u64* in, i64 by) {
  const i64 i = item();
  out[i] = out[i] * 3 + in[i] + (u64)by;
}
#endif

#ifdef HAS_mark
extern "C" __global__ void mark(unsigned* counts) {
  counts[blockIdx.x + (u64)gridDim.x * (blockIdx.y + (u64)gridDim.y * blockIdx.z)] += 1;
}
#endif
)cuda";

}  // namespace

Result<hal::CodeObject> cuda_kernel(std::string_view name, const hal::Device& device) {
  // A model that executes PTX takes one kernel in a text; a cubin holds them all, as a module does.
  const bool is_ptx = settings().nv_code == "ptx";
  std::string source;
  for (const KernelRow& row : kKernelTable)
    if (!is_ptx || row.name == name) source += fmt::format("#define HAS_{}\n", row.name);
  source += kSource;
  // Compiling takes longer than most cases.
  static std::mutex mutex;
  static std::map<std::string, std::vector<std::byte>> images;
  const std::string key = device.arch().name + (is_ptx ? " ptx of " + std::string(name) : "");
  const std::lock_guard lock(mutex);
  if (!images.contains(key))
    images[key] = BM_TRY(compiler::nvrtc_compile(source, device.arch().name, is_ptx));
  return make_code(name, device, images[key]);
}

}  // namespace bm::cts
