// Kernels of the conformance suite (the table in kernels.h) for the CPU entry convention
// (runtime/hal/program.h). Compiled to objects with several code models, as a compiler for kernels
// would.

#include <stdint.h>

extern float sinf(float);
extern void* memcpy(void*, const void*, unsigned long);

#define BLOCK 64

static float as_float(uint64_t bits) {
  const uint32_t low = (uint32_t)bits;
  float value;
  __builtin_memcpy(&value, &low, sizeof value);
  return value;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// out, x, y, n, bits of a: out[i] = a * x[i] + y[i]
void saxpy(const uint64_t* args, uint64_t begin, uint64_t end) {
  float* out = (float*)args[0];
  const float *x = (const float*)args[1], *y = (const float*)args[2];
  const float a = as_float(args[4]);
  const int64_t last = smaller((int64_t)end * BLOCK, (int64_t)args[3]);
  for (int64_t i = (int64_t)begin * BLOCK; i < last; ++i) out[i] = a * x[i] + y[i];
}

// out, n, start: out[i] = start + i
void iota(const uint64_t* args, uint64_t begin, uint64_t end) {
  int64_t* out = (int64_t*)args[0];
  const int64_t last = smaller((int64_t)end * BLOCK, (int64_t)args[1]);
  for (int64_t i = (int64_t)begin * BLOCK; i < last; ++i) out[i] = (int64_t)args[2] + i;
}

// Constants, addresses of constants, initialised and zeroed data: every kind of section.
static const int32_t kPrimes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
static const int32_t kSquares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
static const int32_t* const kTables[2] = {kPrimes, kSquares};
int32_t shared_offset = 1000;
int32_t shared_zero;

// out, in, n: out[i] = table[i % 2][in[i] % 8] + 1000
void look_up(const uint64_t* args, uint64_t begin, uint64_t end) {
  int32_t* out = (int32_t*)args[0];
  const int32_t* in = (const int32_t*)args[1];
  const int64_t last = smaller((int64_t)end * BLOCK, (int64_t)args[2]);
  for (int64_t i = (int64_t)begin * BLOCK; i < last; ++i)
    out[i] = kTables[i & 1][in[i] & 7] + shared_offset + shared_zero;
}

// out, in, n: out[i] = sinf(in[i])
void sines(const uint64_t* args, uint64_t begin, uint64_t end) {
  float* out = (float*)args[0];
  const float* in = (const float*)args[1];
  const int64_t last = smaller((int64_t)end * BLOCK, (int64_t)args[2]);
  for (int64_t i = (int64_t)begin * BLOCK; i < last; ++i) out[i] = sinf(in[i]);
}

// out, in, bytes: one block copies everything, through an address taken from the table of functions
typedef void* (*copy_function)(void*, const void*, unsigned long);
copy_function copies[1] = {memcpy};
void move(const uint64_t* args, uint64_t begin, uint64_t end) {
  (void)begin;
  (void)end;
  copies[0]((void*)args[0], (const void*)args[1], args[2]);
}

// x, n: x[i] += 1, in order
void increment(const uint64_t* args, uint64_t begin, uint64_t end) {
  float* x = (float*)args[0];
  const int64_t last = smaller((int64_t)end * BLOCK, (int64_t)args[1]);
  for (int64_t i = (int64_t)begin * BLOCK; i < last; ++i) x[i] += 1.0f;
}

// out, in, by: out[i] = out[i] * 3 + in[i] + by, over the whole grid: any other order shows
void fold(const uint64_t* args, uint64_t begin, uint64_t end) {
  uint64_t* out = (uint64_t*)args[0];
  const uint64_t* in = (const uint64_t*)args[1];
  for (uint64_t i = begin * BLOCK; i < end * BLOCK; ++i) out[i] = out[i] * 3 + in[i] + args[2];
}

// counts: each block adds 1 to its own count
void mark(const uint64_t* args, uint64_t begin, uint64_t end) {
  uint32_t* counts = (uint32_t*)args[0];
  for (uint64_t block = begin; block < end; ++block) counts[block] += 1;
}
