// Shared libraries that are no driver: with BM_STUB every symbol is there and answers as the
// toolkit's stub does; without it only those that never had a versioned name.

#include "drivers/cuda/types.h"

using namespace bm::cuda;

// The list names parameters for its readers; nothing here uses them.
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define EXPORTED extern "C" __attribute__((visibility("default"))) CuResult
#define BM_CUDA_OPTIONAL(member, symbol, parameters)
#define BM_CUDA_GRAPH(member, symbol, parameters)

#ifdef BM_STUB
#define BM_CUDA_REQUIRED(member, symbol, parameters) \
  EXPORTED stub_##member parameters __asm__(symbol);
#include "drivers/cuda/functions.inc"
#undef BM_CUDA_REQUIRED
#define BM_CUDA_REQUIRED(member, symbol, parameters) \
  CuResult stub_##member parameters { return kErrorStubLibrary; }
#include "drivers/cuda/functions.inc"
#else
EXPORTED cuInit(unsigned);
CuResult cuInit(unsigned) { return kSuccess; }
#endif
