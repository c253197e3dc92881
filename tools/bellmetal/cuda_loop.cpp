#include "tools/bellmetal/cuda_loop.h"

#include <array>
#include <vector>

#include "drivers/cuda/api.h"
#include "drivers/cuda/errors.h"
#include "runtime/base/env.h"

namespace bm::cli {
namespace {

using namespace cuda;

constexpr unsigned kThreads = 16;
constexpr size_t kBytes = kThreads * sizeof(float);
constexpr const char* kSource = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry add16(.param .u64 a, .param .u64 b, .param .u64 out) {
  .reg .f32 %f<4>;
  .reg .b32 %r;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [a];
  ld.param.u64 %d2, [b];
  ld.param.u64 %d3, [out];
  mov.u32 %r, %tid.x;
  mul.wide.u32 %d4, %r, 4;
  add.s64 %d1, %d1, %d4;
  add.s64 %d2, %d2, %d4;
  add.s64 %d3, %d3, %d4;
  ld.global.f32 %f1, [%d1];
  ld.global.f32 %f2, [%d2];
  add.rn.f32 %f3, %f1, %f2;
  st.global.f32 [%d3], %f3;
  ret;
}
)";

using Arguments = std::array<CuDevicePtr, 3>;

/// What a launch takes in its `extra`.
struct Packed {
  explicit Packed(Arguments& arguments)
      : extra{kParamPointer, arguments.data(), kParamSize, &bytes, kParamEnd} {}
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  size_t bytes = sizeof(Arguments);
  std::array<void*, 5> extra;
};

}  // namespace

struct CudaLoop::Impl {
  ApiPtr api;
  CuDevice device = 0;
  CuContext context = nullptr;
  CuStream stream = nullptr;
  CuModule module = nullptr;
  CuFunction function = nullptr;
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  std::vector<CuGraphNode> nodes;
  std::vector<CuDevicePtr> chain;
  std::array<CuDevicePtr, 2> inputs{};
  uint32_t turn = 0;

  ~Impl() {
    if (context == nullptr) return;
    api->cuCtxSetCurrent(context);
    if (stream != nullptr) api->cuStreamSynchronize(stream);
    if (exec != nullptr) api->cuGraphExecDestroy(exec);
    if (graph != nullptr) api->cuGraphDestroy(graph);
    for (const CuDevicePtr memory : chain) api->cuMemFree(memory);
    for (const CuDevicePtr memory : inputs)
      if (memory != 0) api->cuMemFree(memory);
    if (module != nullptr) api->cuModuleUnload(module);
    if (stream != nullptr) api->cuStreamDestroy(stream);
    api->cuDevicePrimaryCtxRelease(device);
  }

  Status done(CuResult error, const char* what) const { return check(*api, error, what); }

  Result<CuDevicePtr> buffer() {
    CuDevicePtr memory = 0;
    BM_TRY(done(api->cuMemAlloc(&memory, kBytes), "cuMemAlloc"));
    const std::vector<float> ones(kThreads, 1.0F);
    BM_TRY(done(api->cuMemcpyHtoDAsync(memory, ones.data(), kBytes, stream), "cuMemcpyHtoDAsync"));
    BM_TRY(done(api->cuStreamSynchronize(stream), "cuStreamSynchronize"));
    return memory;
  }

  Arguments arguments(size_t kernel) const {
    return {chain[kernel], inputs[turn % 2], chain[kernel + 1]};
  }

  KernelNodeParams params(Packed& packed) const {
    KernelNodeParams made;
    made.function = function;
    made.block_x = kThreads;
    made.extra = packed.extra.data();
    return made;
  }

  Status make_graph() {
    BM_TRY(done(api->cuGraphCreate(&graph, 0), "cuGraphCreate"));
    for (size_t i = 0; i < nodes.size(); ++i) {
      Arguments words = arguments(i);
      Packed packed(words);
      const KernelNodeParams node = params(packed);
      BM_TRY(done(api->cuGraphAddKernelNode(&nodes[i], graph, i == 0 ? nullptr : &nodes[i - 1],
                                            i == 0 ? 0 : 1, &node),
                  "cuGraphAddKernelNode"));
    }
    return done(api->cuGraphInstantiate(&exec, graph, nullptr, nullptr, 0), "cuGraphInstantiate");
  }

  Status prepare(uint32_t unit, uint32_t count) {
    api = BM_TRY(load_api(settings().cuda_library));
    if (!api->has_graphs()) return fail(Code::kUnsupported, "this driver has no graphs");
    BM_TRY(initialize(*api));
    BM_TRY(done(api->cuDeviceGet(&device, static_cast<int>(unit)), "cuDeviceGet"));
    BM_TRY(done(api->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"));
    BM_TRY(done(api->cuCtxSetCurrent(context), "cuCtxSetCurrent"));
    BM_TRY(done(api->cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate"));
    BM_TRY(done(api->cuModuleLoadData(&module, kSource), "cuModuleLoadData"));
    BM_TRY(done(api->cuModuleGetFunction(&function, module, "add16"), "cuModuleGetFunction"));
    for (CuDevicePtr& input : inputs) input = BM_TRY(buffer());
    for (uint32_t i = 0; i <= count; ++i) chain.push_back(BM_TRY(buffer()));
    nodes.resize(count);
    return make_graph();
  }
};

CudaLoop::CudaLoop() : impl_(std::make_unique<Impl>()) {}
CudaLoop::~CudaLoop() = default;

Result<std::unique_ptr<CudaLoop>> CudaLoop::create(uint32_t unit, uint32_t kernels) {
  std::unique_ptr<CudaLoop> loop(new CudaLoop);
  BM_TRY(loop->impl_->prepare(unit, kernels));
  return loop;
}

void CudaLoop::launch(bool has_new_input) {
  Impl& s = *impl_;
  s.turn += has_new_input ? 1 : 0;
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    Arguments words = s.arguments(i);
    Packed packed(words);
    s.api->cuLaunchKernel(s.function, 1, 1, 1, kThreads, 1, 1, 0, s.stream, nullptr,
                          packed.extra.data());
  }
}

void CudaLoop::launch_graph(bool has_new_input) {
  Impl& s = *impl_;
  s.turn += has_new_input ? 1 : 0;
  for (size_t i = 0; has_new_input && i < s.nodes.size(); ++i) {
    Arguments words = s.arguments(i);
    Packed packed(words);
    const KernelNodeParams node = s.params(packed);
    s.api->cuGraphExecKernelNodeSetParams(s.exec, s.nodes[i], &node);
  }
  s.api->cuGraphLaunch(s.exec, s.stream);
}

void CudaLoop::wait() { impl_->api->cuStreamSynchronize(impl_->stream); }

}  // namespace bm::cli
