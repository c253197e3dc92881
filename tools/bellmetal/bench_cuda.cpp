#include "tools/bellmetal/bench_cuda.h"

#include <dlfcn.h>

#include <initializer_list>
#include <random>
#include <vector>

#include "runtime/base/env.h"

namespace bm::cli {
namespace {

// Names, numbers and signatures: NVIDIA CUDA 13.0, cuda.h and cublas_api.h.
using Handle = void*;
using Address = uint64_t;

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v1
  Handle function = nullptr;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void** parameters = nullptr;
  void** extra = nullptr;
};

struct CudaApi {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*context_retain)(Handle*, int);
  int (*context_release)(int);
  int (*context_set)(Handle);
  int (*stream_create)(Handle*, unsigned);
  int (*stream_destroy)(Handle);
  int (*stream_wait)(Handle);
  int (*allocate)(Address*, size_t);
  int (*free)(Address);
  int (*allocate_host)(void**, size_t, unsigned);
  int (*free_host)(void*);
  int (*to_device)(Address, const void*, size_t, Handle);
  int (*to_host)(void*, Address, size_t, Handle);
  int (*between)(Address, Address, size_t, Handle);
  int (*module_load)(Handle*, const void*);
  int (*module_unload)(Handle);
  int (*module_function)(Handle*, Handle, const char*);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                Handle, void**, void**);
  int (*graph_create)(Handle*, unsigned);
  int (*graph_destroy)(Handle);
  int (*graph_add_kernel)(Handle*, Handle, const Handle*, size_t, const KernelNode*);
  int (*graph_instantiate)(Handle*, Handle, Handle*, char*, size_t);
  int (*graph_exec_destroy)(Handle);
  int (*graph_launch)(Handle, Handle);
};

struct BlasApi {
  int (*create)(Handle*);
  int (*destroy)(Handle);
  int (*set_stream)(Handle, Handle);
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
              int, const void*, void*, int, int, int, int);
};

void* open_first(std::initializer_list<std::string> names) {
  for (const std::string& name : names)
    if (!name.empty())
      if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

/// Fills `function`; remembers the first symbol that is missing.
template <class Function>
void bind(void* library, const char* symbol, Function*& function, std::string& missing) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (function == nullptr && missing.empty()) missing = symbol;
}

Result<CudaApi> load_cuda() {
  void* library = open_first({settings().cuda_library, "libcuda.so.1", "libcuda.so"});
  if (library == nullptr)
    return fail(Code::kNotFound, "no libcuda.so.1: NVIDIA's user-space driver is not installed");
  CudaApi api{};
  std::string missing;
  bind(library, "cuInit", api.init, missing);
  bind(library, "cuDeviceGet", api.device_get, missing);
  bind(library, "cuDevicePrimaryCtxRetain", api.context_retain, missing);
  bind(library, "cuDevicePrimaryCtxRelease_v2", api.context_release, missing);
  bind(library, "cuCtxSetCurrent", api.context_set, missing);
  bind(library, "cuStreamCreate", api.stream_create, missing);
  bind(library, "cuStreamDestroy_v2", api.stream_destroy, missing);
  bind(library, "cuStreamSynchronize", api.stream_wait, missing);
  bind(library, "cuMemAlloc_v2", api.allocate, missing);
  bind(library, "cuMemFree_v2", api.free, missing);
  bind(library, "cuMemHostAlloc", api.allocate_host, missing);
  bind(library, "cuMemFreeHost", api.free_host, missing);
  bind(library, "cuMemcpyHtoDAsync_v2", api.to_device, missing);
  bind(library, "cuMemcpyDtoHAsync_v2", api.to_host, missing);
  bind(library, "cuMemcpyDtoDAsync_v2", api.between, missing);
  bind(library, "cuModuleLoadData", api.module_load, missing);
  bind(library, "cuModuleUnload", api.module_unload, missing);
  bind(library, "cuModuleGetFunction", api.module_function, missing);
  bind(library, "cuLaunchKernel", api.launch, missing);
  bind(library, "cuGraphCreate", api.graph_create, missing);
  bind(library, "cuGraphDestroy", api.graph_destroy, missing);
  bind(library, "cuGraphAddKernelNode", api.graph_add_kernel, missing);
  bind(library, "cuGraphInstantiate_v2", api.graph_instantiate, missing);
  bind(library, "cuGraphExecDestroy", api.graph_exec_destroy, missing);
  bind(library, "cuGraphLaunch", api.graph_launch, missing);
  if (!missing.empty()) return fail(Code::kUnsupported, "libcuda has no {}", missing);
  return api;
}

Result<BlasApi> load_blas() {
  // cuBLAS brings a runtime of its own, which needs more of libcuda than stand-ins for it have.
  if (!settings().cuda_library.empty())
    return fail(Code::kUnsupported, "cuBLAS only beside the system's libcuda, not BM_CUDA_LIBRARY");
  const std::string& toolkit = settings().cuda_path;
  const std::string folder = (toolkit.empty() ? "/usr/local/cuda" : toolkit) + "/lib64/";
  void* library = open_first({"libcublas.so.13", "libcublas.so.12", folder + "libcublas.so.13",
                              folder + "libcublas.so.12", folder + "libcublas.so"});
  if (library == nullptr) return fail(Code::kNotFound, "no libcublas.so.13 or .12");
  BlasApi api{};
  std::string missing;
  bind(library, "cublasCreate_v2", api.create, missing);
  bind(library, "cublasDestroy_v2", api.destroy, missing);
  bind(library, "cublasSetStream_v2", api.set_stream, missing);
  bind(library, "cublasGemmEx", api.gemm, missing);
  if (!missing.empty()) return fail(Code::kUnsupported, "libcublas has no {}", missing);
  return api;
}

Status check(int result, std::string_view call) {
  if (result == 0) return {};
  return fail(Code::kIo, "{} returned {}", call, result);
}

constexpr size_t kScratchBytes = 4096;

}  // namespace

struct CudaPeer::Impl {
  CudaApi api{};
  BlasApi blas{};
  int device = -1;
  bool has_context = false;
  Handle context = nullptr, stream = nullptr, module = nullptr, function = nullptr;
  Handle graph = nullptr, graph_exec = nullptr, blas_handle = nullptr;
  Address scratch = 0, memory[2] = {}, matrices[3] = {};
  void* host = nullptr;
  int n = 0;
  KernelNode kernel;
  std::vector<void*> arguments;

  ~Impl() {
    if (stream) api.stream_wait(stream);
    if (blas_handle) blas.destroy(blas_handle);
    if (graph_exec) api.graph_exec_destroy(graph_exec);
    if (graph) api.graph_destroy(graph);
    if (module) api.module_unload(module);
    for (Address a : {scratch, memory[0], memory[1], matrices[0], matrices[1], matrices[2]})
      if (a != 0) api.free(a);
    if (host) api.free_host(host);
    if (stream) api.stream_destroy(stream);
    if (has_context) api.context_release(device);
  }
};

CudaPeer::CudaPeer() : impl_(std::make_unique<Impl>()) {}
CudaPeer::~CudaPeer() = default;

Result<std::unique_ptr<CudaPeer>> CudaPeer::open(uint32_t unit) {
  constexpr unsigned kNonBlocking = 1;
  std::unique_ptr<CudaPeer> peer(new CudaPeer);
  Impl& s = *peer->impl_;
  s.api = BM_TRY(load_cuda());
  BM_TRY(check(s.api.init(0), "cuInit"));
  BM_TRY(check(s.api.device_get(&s.device, static_cast<int>(unit)), "cuDeviceGet"));
  BM_TRY(check(s.api.context_retain(&s.context, s.device), "cuDevicePrimaryCtxRetain"));
  s.has_context = true;
  BM_TRY(check(s.api.context_set(s.context), "cuCtxSetCurrent"));
  BM_TRY(check(s.api.stream_create(&s.stream, kNonBlocking), "cuStreamCreate"));
  return peer;
}

Status CudaPeer::prepare_kernel(const hal::CodeObject& code, uint32_t kernels) {
  Impl& s = *impl_;
  BM_TRY(check(s.api.context_set(s.context), "cuCtxSetCurrent"));
  BM_TRY(check(s.api.allocate(&s.scratch, kScratchBytes), "cuMemAlloc"));
  BM_TRY(check(s.api.module_load(&s.module, code.image.data()), "cuModuleLoadData"));
  BM_TRY(check(s.api.module_function(&s.function, s.module, code.entry.c_str()),
               "cuModuleGetFunction"));
  s.arguments.assign(code.num_buffers + code.num_vars, &s.scratch);
  const std::vector<int64_t> vars(code.num_vars, 1);
  s.kernel.function = s.function;
  for (size_t axis = 0; axis < 3; ++axis)
    s.kernel.grid[axis] = static_cast<unsigned>(code.grid[axis].evaluate(vars));
  s.kernel.block[0] = code.block.x;
  s.kernel.block[1] = code.block.y;
  s.kernel.block[2] = code.block.z;
  s.kernel.parameters = s.arguments.data();
  BM_TRY(check(s.api.graph_create(&s.graph, 0), "cuGraphCreate"));
  Handle last = nullptr;
  for (uint32_t i = 0; i < kernels; ++i) {
    Handle node = nullptr;
    BM_TRY(check(s.api.graph_add_kernel(&node, s.graph, &last, i == 0 ? 0 : 1, &s.kernel),
                 "cuGraphAddKernelNode"));
    last = node;
  }
  return check(s.api.graph_instantiate(&s.graph_exec, s.graph, nullptr, nullptr, 0),
               "cuGraphInstantiate");
}

void CudaPeer::launch() {
  Impl& s = *impl_;
  const KernelNode& k = s.kernel;
  s.api.launch(k.function, k.grid[0], k.grid[1], k.grid[2], k.block[0], k.block[1], k.block[2], 0,
               s.stream, k.parameters, nullptr);
}

void CudaPeer::launch_graph() { impl_->api.graph_launch(impl_->graph_exec, impl_->stream); }
void CudaPeer::wait() { impl_->api.stream_wait(impl_->stream); }

Status CudaPeer::prepare_copies(uint64_t bytes) {
  Impl& s = *impl_;
  BM_TRY(check(s.api.context_set(s.context), "cuCtxSetCurrent"));
  BM_TRY(check(s.api.allocate_host(&s.host, bytes, 0), "cuMemHostAlloc"));
  for (Address& address : s.memory) BM_TRY(check(s.api.allocate(&address, bytes), "cuMemAlloc"));
  return {};
}

void CudaPeer::copy(CopyKind kind, uint64_t bytes) {
  Impl& s = *impl_;
  switch (kind) {
    case CopyKind::kHostToDevice: s.api.to_device(s.memory[0], s.host, bytes, s.stream); break;
    case CopyKind::kDeviceToHost: s.api.to_host(s.host, s.memory[0], bytes, s.stream); break;
    case CopyKind::kDeviceToDevice: s.api.between(s.memory[1], s.memory[0], bytes, s.stream); break;
  }
}

Status CudaPeer::prepare_matmul(uint32_t n) {
  Impl& s = *impl_;
  s.n = static_cast<int>(n);
  s.blas = BM_TRY(load_blas());
  BM_TRY(check(s.api.context_set(s.context), "cuCtxSetCurrent"));
  BM_TRY(check(s.blas.create(&s.blas_handle), "cublasCreate"));
  BM_TRY(check(s.blas.set_stream(s.blas_handle, s.stream), "cublasSetStream"));
  // Random values in [-1, 1]: power, and with it the clock, depends on how many bits toggle.
  std::mt19937 random(1);
  std::vector<uint16_t> values(size_t{n} * n);
  for (uint16_t& v : values) v = static_cast<uint16_t>(0x3f00 | (random() & 0x807f));
  for (Address& address : s.matrices) {
    BM_TRY(check(s.api.allocate(&address, values.size() * 2), "cuMemAlloc"));
    BM_TRY(check(s.api.to_device(address, values.data(), values.size() * 2, s.stream),
                 "cuMemcpyHtoDAsync"));
  }
  return check(s.api.stream_wait(s.stream), "cuStreamSynchronize");
}

void CudaPeer::matmul(bool is_b_transposed) {
  constexpr int kBf16 = 14, kCompute32F = 68, kDefaultAlgorithm = -1, kNoTranspose = 0,
                kTranspose = 1;
  Impl& s = *impl_;
  const float one = 1, zero = 0;
  const auto at = [](Address a) { return reinterpret_cast<void*>(a); };
  // Of columns: the second factor comes first.
  s.blas.gemm(s.blas_handle, is_b_transposed ? kTranspose : kNoTranspose, kNoTranspose, s.n, s.n,
              s.n, &one, at(s.matrices[0]), kBf16, s.n, at(s.matrices[1]), kBf16, s.n, &zero,
              at(s.matrices[2]), kBf16, s.n, kCompute32F, kDefaultAlgorithm);
}

}  // namespace bm::cli
