// Small programs with the CUDA driver API, one thing each, for libnvsnoop.so to record. libcuda is
// loaded at run time; kernels are PTX, which its own compiler translates.
//   nvsnoop_sample CASE…      all: every case in turn

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Names and signatures: NVIDIA CUDA 13.0, cuda.h.
typedef void* Handle;
typedef uint64_t Address;
struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v1
  Handle function;
  unsigned grid[3], block[3], shared_bytes;
  void** parameters;
  void** extra;
};

static struct {
  int (*cuInit)(unsigned);
  int (*cuDeviceGet)(int*, int);
  int (*cuDevicePrimaryCtxRetain)(Handle*, int);
  int (*cuDevicePrimaryCtxRelease_v2)(int);
  int (*cuCtxSetCurrent)(Handle);
  int (*cuStreamCreate)(Handle*, unsigned);
  int (*cuStreamDestroy_v2)(Handle);
  int (*cuStreamSynchronize)(Handle);
  int (*cuMemAlloc_v2)(Address*, size_t);
  int (*cuMemFree_v2)(Address);
  int (*cuMemHostAlloc)(void**, size_t, unsigned);
  int (*cuMemFreeHost)(void*);
  int (*cuMemHostRegister_v2)(void*, size_t, unsigned);
  int (*cuMemHostUnregister)(void*);
  int (*cuMemcpyHtoDAsync_v2)(Address, const void*, size_t, Handle);
  int (*cuMemcpyDtoHAsync_v2)(void*, Address, size_t, Handle);
  int (*cuMemcpyDtoDAsync_v2)(Address, Address, size_t, Handle);
  int (*cuMemsetD32Async)(Address, unsigned, size_t, Handle);
  int (*cuModuleLoadData)(Handle*, const void*);
  int (*cuModuleUnload)(Handle);
  int (*cuModuleGetFunction)(Handle*, Handle, const char*);
  int (*cuFuncSetAttribute)(Handle, int, int);
  int (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, Handle, void**, void**);
  int (*cuEventCreate)(Handle*, unsigned);
  int (*cuEventDestroy_v2)(Handle);
  int (*cuEventRecord)(Handle, Handle);
  int (*cuEventElapsedTime)(float*, Handle, Handle);
  int (*cuGraphCreate)(Handle*, unsigned);
  int (*cuGraphDestroy)(Handle);
  int (*cuGraphAddKernelNode)(Handle*, Handle, const Handle*, size_t, const struct KernelNode*);
  int (*cuGraphInstantiate_v2)(Handle*, Handle, Handle*, char*, size_t);
  int (*cuGraphExecDestroy)(Handle);
  int (*cuGraphExecKernelNodeSetParams)(Handle, Handle, const struct KernelNode*);
  int (*cuGraphLaunch)(Handle, Handle);
} api;

static int load_api(void) {
  const char* chosen = getenv("BM_CUDA_LIBRARY");
  void* library = dlopen(chosen != NULL ? chosen : "libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "nvsnoop_sample: no libcuda.so.1: %s\n", dlerror());
    return 0;
  }
#define LOAD(name)                                                  \
  do {                                                              \
    void* symbol = dlsym(library, #name);                           \
    if (symbol == NULL) {                                           \
      fprintf(stderr, "nvsnoop_sample: no %s in libcuda\n", #name); \
      return 0;                                                     \
    }                                                               \
    memcpy(&api.name, &symbol, sizeof symbol);                      \
  } while (0)
  LOAD(cuInit);
  LOAD(cuDeviceGet);
  LOAD(cuDevicePrimaryCtxRetain);
  LOAD(cuDevicePrimaryCtxRelease_v2);
  LOAD(cuCtxSetCurrent);
  LOAD(cuStreamCreate);
  LOAD(cuStreamDestroy_v2);
  LOAD(cuStreamSynchronize);
  LOAD(cuMemAlloc_v2);
  LOAD(cuMemFree_v2);
  LOAD(cuMemHostAlloc);
  LOAD(cuMemFreeHost);
  LOAD(cuMemHostRegister_v2);
  LOAD(cuMemHostUnregister);
  LOAD(cuMemcpyHtoDAsync_v2);
  LOAD(cuMemcpyDtoHAsync_v2);
  LOAD(cuMemcpyDtoDAsync_v2);
  LOAD(cuMemsetD32Async);
  LOAD(cuModuleLoadData);
  LOAD(cuModuleUnload);
  LOAD(cuModuleGetFunction);
  LOAD(cuFuncSetAttribute);
  LOAD(cuLaunchKernel);
  LOAD(cuEventCreate);
  LOAD(cuEventDestroy_v2);
  LOAD(cuEventRecord);
  LOAD(cuEventElapsedTime);
  LOAD(cuGraphCreate);
  LOAD(cuGraphDestroy);
  LOAD(cuGraphAddKernelNode);
  LOAD(cuGraphInstantiate_v2);
  LOAD(cuGraphExecDestroy);
  LOAD(cuGraphExecKernelNodeSetParams);
  LOAD(cuGraphLaunch);
#undef LOAD
  return 1;
}

static int is_ok = 1;
static Handle stream;

static void check(int result, const char* call) {
  if (result == 0) return;
  fprintf(stderr, "  %s returned %d\n", call, result);
  is_ok = 0;
}
#define CALL(function, ...) check(api.function(__VA_ARGS__), #function)

// --- kernels
// --------------------------------------------------------------------------------------

#define HEAD ".version 7.0\n.target sm_75\n.address_size 64\n"

static const char kEmpty[] = HEAD ".visible .entry k() { ret; }\n";

// p[i] += 1 for each thread of each block.
#define INCREMENT(body)                                                                \
  ".visible .entry k(.param .u64 p) {\n"                                               \
  " .reg .u64 %a<4>; .reg .u32 %r<8>;\n" body                                          \
  " ld.param.u64 %a1, [p]; cvta.to.global.u64 %a1, %a1;\n"                             \
  " mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;\n"               \
  " mad.lo.u32 %r1, %r2, %r3, %r1; mul.wide.u32 %a2, %r1, 4; add.u64 %a1, %a1, %a2;\n" \
  " ld.global.u32 %r4, [%a1]; add.u32 %r4, %r4, 1; st.global.u32 [%a1], %r4; ret; }\n"

static const char kIncrement[] = HEAD INCREMENT("");
static const char kShared[] = HEAD INCREMENT(
    " .shared .align 16 .b8 tile[49152];\n"
    " mov.u32 %r5, 7; st.volatile.shared.u32 [tile], %r5; bar.sync 0;\n");
static const char kDynamic[] = HEAD ".extern .shared .align 16 .b8 tile[];\n" INCREMENT(
    " mov.u32 %r5, 7; st.volatile.shared.u32 [tile], %r5; bar.sync 0;\n");
// Both places depend on the thread, so the array cannot live in registers.
static const char kLocal[] = HEAD ".shared .align 4 .b8 sink[4];\n" INCREMENT(
    " .local .align 16 .b8 stack[4096]; .reg .u32 %q<8>;\n"
    " mov.u32 %q1, %tid.x; mov.u32 %q2, stack; shl.b32 %q3, %q1, 2; add.u32 %q4, %q2, %q3;\n"
    " st.local.u32 [%q4], %q1; mov.u32 %q5, %ctaid.x; shl.b32 %q5, %q5, 2;\n"
    " add.u32 %q5, %q2, %q5; ld.local.u32 %q6, [%q5]; st.volatile.shared.u32 [sink], %q6;\n");
static const char kBarriers[] = HEAD INCREMENT(" bar.sync 5, 64; bar.sync 9, 64;\n");
static const char kCluster[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry k() .explicitcluster .reqnctapercluster 2, 1, 1 { ret; }\n";

enum { kItems = 1 << 16 };

/// Loads `ptx`, launches its kernel `k` `times` times on zeroed memory and checks the counts.
static void launch(const char* ptx, unsigned grid, unsigned block, unsigned dynamic_shared,
                   int times, int has_argument) {
  const int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  Handle module = NULL, function = NULL;
  Address memory = 0;
  CALL(cuModuleLoadData, &module, ptx);
  if (!is_ok) return;
  CALL(cuModuleGetFunction, &function, module, "k");
  if (dynamic_shared > 48 * 1024)
    CALL(cuFuncSetAttribute, function, kMaxDynamicShared, (int)dynamic_shared);
  CALL(cuMemAlloc_v2, &memory, kItems * 4);
  CALL(cuMemsetD32Async, memory, 0, kItems, stream);
  void* arguments[] = {&memory};
  for (int i = 0; i < times; ++i)
    CALL(cuLaunchKernel, function, grid, 1, 1, block, 1, 1, dynamic_shared, stream,
         has_argument ? arguments : NULL, NULL);
  uint32_t last = 0;
  CALL(cuMemcpyDtoHAsync_v2, &last, memory + 4 * (grid * block - 1), 4, stream);
  CALL(cuStreamSynchronize, stream);
  if (has_argument && last != (uint32_t)times) {
    fprintf(stderr, "  %u instead of %d\n", last, times);
    is_ok = 0;
  }
  CALL(cuMemFree_v2, memory);
  CALL(cuModuleUnload, module);
}

static void empty(void) { launch(kEmpty, 1, 1, 0, 1, 0); }
static void add(void) { launch(kIncrement, 64, 256, 0, 1, 1); }
static void chain(void) { launch(kIncrement, 4, 64, 0, 10, 1); }
static void shared_48k(void) { launch(kShared, 4, 64, 0, 1, 1); }
static void shared_100k(void) { launch(kDynamic, 4, 64, 99 * 1024, 1, 1); }
static void shared_227k(void) { launch(kDynamic, 4, 64, 227 * 1024, 1, 1); }
static void local_4k(void) { launch(kLocal, 4, 64, 0, 1, 1); }
static void barriers(void) { launch(kBarriers, 4, 64, 0, 1, 1); }
static void cluster(void) { launch(kCluster, 4, 64, 0, 1, 0); }

// --- copies
// ---------------------------------------------------------------------------------------

static void copies(size_t bytes) {
  void* host = NULL;
  Address a = 0, b = 0;
  CALL(cuMemHostAlloc, &host, bytes, 0);
  CALL(cuMemAlloc_v2, &a, bytes);
  CALL(cuMemAlloc_v2, &b, bytes);
  if (!is_ok) return;
  memset(host, 0x5a, bytes);
  CALL(cuMemcpyHtoDAsync_v2, a, host, bytes, stream);
  CALL(cuMemcpyDtoDAsync_v2, b, a, bytes, stream);
  CALL(cuStreamSynchronize, stream);
  memset(host, 0, bytes);
  CALL(cuMemcpyDtoHAsync_v2, host, b, bytes, stream);
  CALL(cuStreamSynchronize, stream);
  if (((unsigned char*)host)[bytes - 1] != 0x5a) {
    fprintf(stderr, "  bytes came back changed\n");
    is_ok = 0;
  }
  CALL(cuMemFree_v2, a);
  CALL(cuMemFree_v2, b);
  CALL(cuMemFreeHost, host);
}
static void copy_4k(void) { copies(4096); }
static void copy_1m(void) { copies(1 << 20); }
static void copy_256m(void) { copies((size_t)256 << 20); }

static void host_registered(void) {
  const size_t bytes = 1 << 20;
  void* host = aligned_alloc(4096, bytes);
  Address device = 0;
  memset(host, 1, bytes);
  CALL(cuMemHostRegister_v2, host, bytes, 0);
  CALL(cuMemAlloc_v2, &device, bytes);
  CALL(cuMemcpyHtoDAsync_v2, device, host, bytes, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemFree_v2, device);
  CALL(cuMemHostUnregister, host);
  free(host);
}

// --- events and graphs
// ----------------------------------------------------------------------------

static void events(void) {
  Handle start = NULL, end = NULL;
  float milliseconds = 0;
  CALL(cuEventCreate, &start, 0);
  CALL(cuEventCreate, &end, 0);
  CALL(cuEventRecord, start, stream);
  launch(kIncrement, 64, 256, 0, 1, 1);
  CALL(cuEventRecord, end, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuEventElapsedTime, &milliseconds, start, end);
  CALL(cuEventDestroy_v2, start);
  CALL(cuEventDestroy_v2, end);
}

/// Three kernels in a row, replayed twice, the second time with another argument.
static void graph(void) {
  enum { kNodes = 3 };
  Handle module = NULL, function = NULL, graph_handle = NULL, exec = NULL, nodes[kNodes] = {0};
  Address first = 0, second = 0;
  CALL(cuModuleLoadData, &module, kIncrement);
  CALL(cuModuleGetFunction, &function, module, "k");
  CALL(cuMemAlloc_v2, &first, kItems * 4);
  CALL(cuMemAlloc_v2, &second, kItems * 4);
  CALL(cuMemsetD32Async, first, 0, kItems, stream);
  CALL(cuMemsetD32Async, second, 0, kItems, stream);
  CALL(cuGraphCreate, &graph_handle, 0);
  void* arguments[] = {&first};
  struct KernelNode node = {function, {4, 1, 1}, {64, 1, 1}, 0, arguments, NULL};
  for (int i = 0; i < kNodes; ++i)
    CALL(cuGraphAddKernelNode, &nodes[i], graph_handle, i > 0 ? &nodes[i - 1] : NULL, i > 0, &node);
  CALL(cuGraphInstantiate_v2, &exec, graph_handle, NULL, NULL, 0);
  if (!is_ok) return;
  CALL(cuGraphLaunch, exec, stream);
  CALL(cuStreamSynchronize, stream);
  void* others[] = {&second};
  node.parameters = others;
  for (int i = 0; i < kNodes; ++i) CALL(cuGraphExecKernelNodeSetParams, exec, nodes[i], &node);
  CALL(cuGraphLaunch, exec, stream);
  uint32_t counts[2] = {0, 0};
  CALL(cuMemcpyDtoHAsync_v2, &counts[0], first, 4, stream);
  CALL(cuMemcpyDtoHAsync_v2, &counts[1], second, 4, stream);
  CALL(cuStreamSynchronize, stream);
  if (counts[0] != kNodes || counts[1] != kNodes) {
    fprintf(stderr, "  counts %u and %u instead of %d\n", counts[0], counts[1], kNodes);
    is_ok = 0;
  }
  CALL(cuGraphExecDestroy, exec);
  CALL(cuGraphDestroy, graph_handle);
  CALL(cuMemFree_v2, first);
  CALL(cuMemFree_v2, second);
  CALL(cuModuleUnload, module);
}

static const struct Case {
  const char* name;
  void (*run)(void);
  const char* about;
} kCases[] = {
    {"empty", empty, "a kernel that does nothing"},
    {"add", add, "64 blocks of 256 threads add 1"},
    {"chain", chain, "ten launches in a row"},
    {"shared_48k", shared_48k, "static shared memory"},
    {"shared_100k", shared_100k, "dynamic shared memory, 99 KiB"},
    {"shared_227k", shared_227k, "dynamic shared memory, 227 KiB (Hopper)"},
    {"local_4k", local_4k, "4 KiB of local memory per thread"},
    {"barriers", barriers, "named barriers 5 and 9"},
    {"cluster", cluster, "clusters of two blocks (Hopper)"},
    {"copy_4k", copy_4k, "host to device to device to host"},
    {"copy_1m", copy_1m, "the same, 1 MiB"},
    {"copy_256m", copy_256m, "the same, 256 MiB"},
    {"host_registered", host_registered, "a copy from registered memory"},
    {"events", events, "time between two events"},
    {"graph", graph, "three kernels, replayed with another argument"},
};
enum { kCaseCount = sizeof kCases / sizeof kCases[0] };

int main(int argc, char** argv) {
  if (argc < 2) {
    printf("usage: nvsnoop_sample CASE... | all\n");
    for (int i = 0; i < kCaseCount; ++i) printf("  %-16s %s\n", kCases[i].name, kCases[i].about);
    return 2;
  }
  int device = 0, failures = 0;
  Handle context = NULL;
  if (!load_api()) return 3;
  CALL(cuInit, 0);
  if (is_ok) CALL(cuDeviceGet, &device, 0);
  if (is_ok) CALL(cuDevicePrimaryCtxRetain, &context, device);
  if (!is_ok) return 3;
  CALL(cuCtxSetCurrent, context);
  CALL(cuStreamCreate, &stream, 1);
  for (int i = 0; i < kCaseCount; ++i) {
    int is_wanted = 0;
    for (int k = 1; k < argc; ++k)
      is_wanted |= strcmp(argv[k], "all") == 0 || strcmp(argv[k], kCases[i].name) == 0;
    if (!is_wanted) continue;
    is_ok = 1;
    kCases[i].run();
    printf("%-16s %s\n", kCases[i].name, is_ok ? "ok" : "FAILED");
    failures += !is_ok;
  }
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuDevicePrimaryCtxRelease_v2, device);
  return failures != 0;
}
