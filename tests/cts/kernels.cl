// Kernels of the conformance suite in OpenCL C; the table in kernels.h. Buffers first, then
// variables as long.

#define BLOCK 64

// out, x, y, n, bits of a: out[i] = a * x[i] + y[i]
kernel void saxpy(global float* out, global const float* x, global const float* y, long n, long a) {
  const long i = get_global_id(0);
  if (i < n) out[i] = as_float((int)a) * x[i] + y[i];
}

// out, n, start: out[i] = start + i
kernel void iota(global long* out, long n, long start) {
  const long i = get_global_id(0);
  if (i < n) out[i] = start + i;
}

constant int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
constant int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};

// out, in, n: out[i] = table[i % 2][in[i] % 8] + 1000
kernel void look_up(global int* out, global const int* in, long n) {
  const long i = get_global_id(0);
  if (i < n) out[i] = ((i & 1) ? squares : primes)[in[i] & 7] + 1000;
}

// out, in, n: out[i] = sin(in[i])
kernel void sines(global float* out, global const float* in, long n) {
  const long i = get_global_id(0);
  if (i < n) out[i] = sin(in[i]);
}

// out, in, bytes: one block copies everything
kernel void move(global uchar* out, global const uchar* in, long bytes) {
  for (long i = get_local_id(0); i < bytes; i += get_local_size(0)) out[i] = in[i];
}

// x, n: x[i] += 1, in order
kernel void increment(global float* x, long n) {
  const long i = get_global_id(0);
  if (i < n) x[i] += 1.0f;
}

// out, in, by: out[i] = out[i] * 3 + in[i] + by, over the whole grid: any other order shows
kernel void fold(global ulong* out, global const ulong* in, long by) {
  const size_t i = get_global_id(0);
  out[i] = out[i] * 3 + in[i] + (ulong)by;
}

// counts: each block adds 1 to its own count; blocks of one thread
kernel void mark(global uint* counts) {
  const size_t block = get_global_id(0) +
                       get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
  counts[block] += 1;
}
