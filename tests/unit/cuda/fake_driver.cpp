#include "tests/unit/cuda/fake_driver.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace bm::cuda::test {
namespace {

std::unique_ptr<FakeDriver>& slot() {
  static std::unique_ptr<FakeDriver> driver;  // functions of a C table have nowhere else to look
  return driver;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// What every call does first.
struct Enter {
  explicit Enter(const char* name) : lock(fake().mutex) {
    FakeDriver& driver = fake();
    ++driver.calls[name];
    const auto failure = driver.failures.find(name);
    if (failure != driver.failures.end()) result = failure->second;
    if (driver.fail_in > 0 && --driver.fail_in == 0) result = driver.fail_code;
    driver.progress();
    if (result == kSuccess) result = driver.fault;
  }
  std::lock_guard<std::recursive_mutex> lock;
  CuResult result = kSuccess;
};
#define ENTER(name)        \
  const Enter enter(name); \
  if (enter.result != kSuccess) return enter.result

template <class Handle, class Object>
Handle handle(Object* object) {
  return reinterpret_cast<Handle>(object);
}
FakeStream& stream_of(CuStream stream) { return *reinterpret_cast<FakeStream*>(stream); }
FakeEvent& event_of(CuEvent event) { return *reinterpret_cast<FakeEvent*>(event); }

CuResult push(CuStream stream, FakeWork work) {
  stream_of(stream).work.push_back(std::move(work));
  fake().progress();
  return kSuccess;  // what it does to the device is told by the next call
}

const FakeMemory* find_memory(uintptr_t address) {
  auto at = fake().memory.upper_bound(address);
  if (at == fake().memory.begin()) return nullptr;
  --at;
  return address - at->first < at->second.bytes ? &at->second : nullptr;
}

CuResult take_memory(void** pointer, size_t bytes, unsigned type) {
  FakeDriver& driver = fake();
  if (bytes > driver.memory_limit - driver.allocated) return kErrorOutOfMemory;
  void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(memory, 0xcd, std::min<size_t>(bytes, 1 << 16));  // not zero where tests look
  driver.allocated += bytes;
  driver.memory[reinterpret_cast<uintptr_t>(memory)] = {
      .bytes = bytes, .type = type, .is_registered = false, .device = 0, .context = 1};
  *pointer = memory;
  return kSuccess;
}

CuResult give_memory(uintptr_t address) {
  const auto at = fake().memory.find(address);
  if (at == fake().memory.end()) return kErrorInvalidValue;
  fake().allocated -= at->second.bytes;
  fake().memory.erase(at);
  std::free(reinterpret_cast<void*>(address));
  return kSuccess;
}

std::vector<uint64_t> arguments_of(void** extra) {
  if (extra == nullptr) return {};
  const auto bytes = *static_cast<size_t*>(extra[3]);
  std::vector<uint64_t> words(bytes / 8);
  std::memcpy(words.data(), extra[1], bytes);
  return words;
}

FakeWork kernel_work(FakeFunction* function, hal::Dim3 grid, std::vector<uint64_t> arguments) {
  return [function, grid, words = std::move(arguments)](FakeDriver& driver) {
    driver.kernels.at(function->name)(driver, words.data(), grid);
    return true;
  };
}
FakeWork copy_work(void* dst, const void* src, size_t bytes) {
  return [=](FakeDriver&) {
    std::memmove(dst, src, bytes);
    return true;
  };
}
void* pointer(CuDevicePtr address) { return reinterpret_cast<void*>(address); }
void* side(const CopySide& side) {
  return side.memory_type == kMemoryHost ? side.host : pointer(side.device);
}

CuResult set_kernel(FakeNode& node, const KernelNodeParams* params) {
  if (params->grid_x == 0 || params->grid_y == 0 || params->grid_z == 0) return kErrorInvalidValue;
  node.function = reinterpret_cast<FakeFunction*>(params->function);
  node.grid = {params->grid_x, params->grid_y, params->grid_z};
  node.arguments = arguments_of(params->extra);
  return kSuccess;
}

CuResult add_node(CuGraphNode* out, CuGraph graph, const CuGraphNode* after, size_t count,
                  std::unique_ptr<FakeNode> node) {
  auto& target = *reinterpret_cast<FakeGraph*>(graph);
  const FakeNode* last = target.nodes.empty() ? nullptr : target.nodes.back().get();
  const bool follows = last == nullptr
                           ? count == 0
                           : count == 1 && reinterpret_cast<const FakeNode*>(*after) == last;
  target.is_chain = target.is_chain && follows;
  node->index = target.nodes.size();
  *out = handle<CuGraphNode>(node.get());
  target.nodes.push_back(std::move(node));
  return kSuccess;
}

FakeNode& exec_node(CuGraphExec exec, CuGraphNode node) {
  return reinterpret_cast<FakeExec*>(exec)->nodes[reinterpret_cast<FakeNode*>(node)->index];
}

void set_device_functions(Api& api) {
  api.cuInit = [](unsigned) -> CuResult {
    ENTER("cuInit");
    return kSuccess;
  };
  api.cuDriverGetVersion = [](int* version) -> CuResult {
    *version = fake().version;
    return kSuccess;
  };
  api.cuDeviceGetCount = [](int* count) -> CuResult {
    ENTER("cuDeviceGetCount");
    *count = fake().devices;
    return kSuccess;
  };
  api.cuDeviceGet = [](CuDevice* device, int ordinal) -> CuResult {
    ENTER("cuDeviceGet");
    *device = ordinal;
    return kSuccess;
  };
  api.cuDeviceGetName = [](char* name, int bytes, CuDevice) -> CuResult {
    std::snprintf(name, static_cast<size_t>(bytes), "Fake H200");
    return kSuccess;
  };
  api.cuDeviceGetPCIBusId = [](char* text, int bytes, CuDevice device) -> CuResult {
    std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", 1 + device);
    return kSuccess;
  };
  api.cuDeviceGetAttribute = [](int* value, int attribute, CuDevice) -> CuResult {
    const auto at = fake().attributes.find(attribute);
    if (at == fake().attributes.end()) return kErrorInvalidValue;
    *value = at->second;
    return kSuccess;
  };
  api.cuDeviceTotalMem = [](size_t* bytes, CuDevice) -> CuResult {
    *bytes = fake().memory_limit;
    return kSuccess;
  };
  api.cuDevicePrimaryCtxRetain = [](CuContext* context, CuDevice device) -> CuResult {
    ENTER("cuDevicePrimaryCtxRetain");
    ++fake().contexts;
    *context = reinterpret_cast<CuContext>(uintptr_t(device) + 1);
    return kSuccess;
  };
  api.cuDevicePrimaryCtxRelease = [](CuDevice) -> CuResult {
    --fake().contexts;
    return kSuccess;
  };
  api.cuCtxSetCurrent = [](CuContext) -> CuResult { return kSuccess; };
  api.cuDeviceCanAccessPeer = [](int* can, CuDevice, CuDevice) -> CuResult {
    ENTER("cuDeviceCanAccessPeer");
    *can = fake().peers_may ? 1 : 0;
    return kSuccess;
  };
  api.cuCtxEnablePeerAccess = [](CuContext, unsigned) -> CuResult {
    ENTER("cuCtxEnablePeerAccess");
    return kSuccess;
  };
}

void set_memory_functions(Api& api) {
  api.cuMemAlloc = [](CuDevicePtr* out, size_t bytes) -> CuResult {
    ENTER("cuMemAlloc");
    void* memory = nullptr;
    const CuResult result = take_memory(&memory, bytes, kMemoryDevice);
    *out = reinterpret_cast<uintptr_t>(memory);
    return result;
  };
  api.cuMemFree = [](CuDevicePtr address) -> CuResult {
    const Enter enter("cuMemFree");
    return give_memory(address);
  };
  api.cuMemHostAlloc = [](void** out, size_t bytes, unsigned) -> CuResult {
    ENTER("cuMemHostAlloc");
    return take_memory(out, bytes, kMemoryHost);
  };
  api.cuMemFreeHost = [](void* memory) -> CuResult {
    const Enter enter("cuMemFreeHost");
    return give_memory(reinterpret_cast<uintptr_t>(memory));
  };
  api.cuMemGetInfo = [](size_t* free, size_t* total) -> CuResult {
    *total = fake().memory_limit;
    *free = *total - fake().allocated;
    return kSuccess;
  };
  api.cuMemHostRegister = [](void* memory, size_t bytes, unsigned) -> CuResult {
    ENTER("cuMemHostRegister");
    if (find_memory(reinterpret_cast<uintptr_t>(memory)) != nullptr) return kErrorAlreadyRegistered;
    fake().memory[reinterpret_cast<uintptr_t>(memory)] = {
        .bytes = bytes, .type = kMemoryHost, .is_registered = true, .device = 0, .context = 1};
    return kSuccess;
  };
  api.cuMemHostUnregister = [](void* memory) -> CuResult {
    ENTER("cuMemHostUnregister");
    return fake().memory.erase(reinterpret_cast<uintptr_t>(memory)) == 1 ? kSuccess : CuResult{713};
  };
  api.cuMemHostGetDevicePointer = [](CuDevicePtr* out, void* host, unsigned) -> CuResult {
    ENTER("cuMemHostGetDevicePointer");
    *out = reinterpret_cast<uintptr_t>(host);
    return find_memory(*out) == nullptr ? kErrorInvalidValue : kSuccess;
  };
  api.cuPointerGetAttribute = [](void* out, int attribute, CuDevicePtr address) -> CuResult {
    ENTER("cuPointerGetAttribute");
    const FakeMemory* memory = find_memory(address);
    if (memory == nullptr) return kErrorInvalidValue;
    auto base = fake().memory.upper_bound(address);
    --base;
    switch (attribute) {
      case kPointerMemoryType: *static_cast<unsigned*>(out) = memory->type; return kSuccess;
      case kPointerContext: *static_cast<uintptr_t*>(out) = memory->context; return kSuccess;
      case kPointerIsManaged: *static_cast<unsigned*>(out) = 0; return kSuccess;
      case kPointerDeviceOrdinal: *static_cast<int*>(out) = memory->device; return kSuccess;
      case kPointerHostPointer: *static_cast<void**>(out) = pointer(address); return kSuccess;
      case kPointerRangeStart: *static_cast<CuDevicePtr*>(out) = base->first; return kSuccess;
      case kPointerRangeSize: *static_cast<size_t*>(out) = memory->bytes; return kSuccess;
      default: return kErrorInvalidValue;
    }
  };
  api.cuMemcpyHtoDAsync = [](CuDevicePtr dst, const void* src, size_t bytes,
                             CuStream stream) -> CuResult {
    ENTER("cuMemcpyHtoDAsync");
    return push(stream, copy_work(pointer(dst), src, bytes));
  };
  api.cuMemcpyDtoHAsync = [](void* dst, CuDevicePtr src, size_t bytes,
                             CuStream stream) -> CuResult {
    ENTER("cuMemcpyDtoHAsync");
    return push(stream, copy_work(dst, pointer(src), bytes));
  };
  api.cuMemcpyDtoDAsync = [](CuDevicePtr dst, CuDevicePtr src, size_t bytes,
                             CuStream stream) -> CuResult {
    ENTER("cuMemcpyDtoDAsync");
    return push(stream, copy_work(pointer(dst), pointer(src), bytes));
  };
  api.cuMemsetD8Async = [](CuDevicePtr dst, unsigned char value, size_t count,
                           CuStream stream) -> CuResult {
    ENTER("cuMemsetD8Async");
    return push(stream, [=](FakeDriver&) {
      std::memset(pointer(dst), value, count);
      return true;
    });
  };
  api.cuMemsetD32Async = [](CuDevicePtr dst, unsigned value, size_t, CuStream stream) -> CuResult {
    ENTER("cuMemsetD32Async");
    return push(stream, [=](FakeDriver&) {
      std::memcpy(pointer(dst), &value, sizeof value);
      return true;
    });
  };
}

void set_program_functions(Api& api) {
  api.cuModuleLoadData = [](CuModule* module, const void* image) -> CuResult {
    ENTER("cuModuleLoadData");
    *module = reinterpret_cast<CuModule>(const_cast<void*>(image));
    return kSuccess;
  };
  api.cuModuleLoadDataEx = [](CuModule* module, const void* image, unsigned count, int* options,
                              void** values) -> CuResult {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == kJitErrorLog)
        std::snprintf(static_cast<char*>(values[i]), 1024, "%s", fake().log.c_str());
    ENTER("cuModuleLoadDataEx");
    *module = reinterpret_cast<CuModule>(const_cast<void*>(image));
    return kSuccess;
  };
  api.cuModuleGetFunction = [](CuFunction* function, CuModule, const char* name) -> CuResult {
    ENTER("cuModuleGetFunction");
    if (!fake().kernels.contains(name)) return 500;
    FakeFunction& made = fake().functions[name];
    made.name = name;
    *function = handle<CuFunction>(&made);
    return kSuccess;
  };
  api.cuModuleUnload = [](CuModule) -> CuResult {
    ENTER("cuModuleUnload");
    return kSuccess;
  };
  api.cuFuncGetAttribute = [](int* value, int attribute, CuFunction function) -> CuResult {
    const auto& of = *reinterpret_cast<FakeFunction*>(function);
    *value = attribute == kFuncMaxThreads    ? of.max_threads
             : attribute == kFuncSharedBytes ? of.shared_bytes
                                             : 32;
    return kSuccess;
  };
  api.cuFuncSetAttribute = [](CuFunction function, int attribute, int value) -> CuResult {
    if (attribute != kFuncDynamicShared) return kErrorInvalidValue;
    reinterpret_cast<FakeFunction*>(function)->launch_shared_bytes = value;
    return kSuccess;
  };
  api.cuLaunchKernel = [](CuFunction function, unsigned x, unsigned y, unsigned z, unsigned,
                          unsigned, unsigned, unsigned shared, CuStream stream, void**,
                          void** extra) -> CuResult {
    ENTER("cuLaunchKernel");
    if (x == 0 || y == 0 || z == 0) return kErrorInvalidValue;
    reinterpret_cast<FakeFunction*>(function)->asked_bytes = shared;
    return push(stream, kernel_work(reinterpret_cast<FakeFunction*>(function), {x, y, z},
                                    arguments_of(extra)));
  };
  api.cuLaunchKernelEx = [](const LaunchConfig* config, CuFunction function, void**,
                            void** extra) -> CuResult {
    ENTER("cuLaunchKernelEx");
    if (config->grid_x == 0 || config->grid_y == 0 || config->grid_z == 0)
      return kErrorInvalidValue;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
      const LaunchAttribute& attribute = config->attributes[i];
      if (attribute.id != 6 || fake().attributes[kCapabilityMajor] < 9) return kErrorInvalidValue;
      if (attribute.value != 0) ++fake().calls["early start"];
    }
    reinterpret_cast<FakeFunction*>(function)->asked_bytes = config->shared_bytes;
    return push(config->stream,
                kernel_work(reinterpret_cast<FakeFunction*>(function),
                            {config->grid_x, config->grid_y, config->grid_z}, arguments_of(extra)));
  };
}

void set_stream_functions(Api& api) {
  api.cuStreamCreate = [](CuStream* stream, unsigned) -> CuResult {
    ENTER("cuStreamCreate");
    auto* made = new FakeStream;
    fake().streams.insert(made);
    *stream = handle<CuStream>(made);
    return kSuccess;
  };
  api.cuStreamDestroy = [](CuStream stream) -> CuResult {
    const Enter enter("cuStreamDestroy");
    fake().streams.erase(&stream_of(stream));
    delete &stream_of(stream);
    return kSuccess;
  };
  api.cuStreamQuery = [](CuStream stream) -> CuResult {
    ENTER("cuStreamQuery");
    return stream_of(stream).work.empty() ? kSuccess : kErrorNotReady;
  };
  api.cuStreamSynchronize = [](CuStream stream) -> CuResult {
    ENTER("cuStreamSynchronize");
    return stream_of(stream).work.empty() ? kSuccess : CuResult{999};  // would never return
  };
  api.cuStreamWaitValue64 = [](CuStream stream, CuDevicePtr address, uint64_t value,
                               unsigned) -> CuResult {
    ENTER("cuStreamWaitValue64");
    return push(stream, [=](FakeDriver&) {
      const std::atomic_ref word(*static_cast<uint64_t*>(pointer(address)));
      return static_cast<int64_t>(word.load(std::memory_order_acquire) - value) >= 0;
    });
  };
  api.cuStreamWriteValue64 = [](CuStream stream, CuDevicePtr address, uint64_t value,
                                unsigned) -> CuResult {
    ENTER("cuStreamWriteValue64");
    return push(stream, [=](FakeDriver&) {
      std::atomic_ref(*static_cast<uint64_t*>(pointer(address)))
          .store(value, std::memory_order_release);
      return true;
    });
  };
  api.cuStreamWaitEvent = [](CuStream stream, CuEvent event, unsigned) -> CuResult {
    ENTER("cuStreamWaitEvent");
    const uint64_t wanted = event_of(event).recorded;
    return push(stream, [=](FakeDriver&) { return event_of(event).completed >= wanted; });
  };
}

void set_event_functions(Api& api) {
  api.cuEventCreate = [](CuEvent* event, unsigned flags) -> CuResult {
    ENTER("cuEventCreate");
    auto* made = new FakeEvent;
    made->is_timed = (flags & kEventDisableTiming) == 0;
    *event = handle<CuEvent>(made);
    return kSuccess;
  };
  api.cuEventDestroy = [](CuEvent event) -> CuResult {
    const Enter enter("cuEventDestroy");
    delete &event_of(event);
    return kSuccess;
  };
  api.cuEventRecord = [](CuEvent event, CuStream stream) -> CuResult {
    ENTER("cuEventRecord");
    const uint64_t number = ++event_of(event).recorded;
    return push(stream, [=](FakeDriver&) {
      event_of(event).completed = number;
      event_of(event).ns = now_ns();
      return true;
    });
  };
  api.cuEventQuery = [](CuEvent event) -> CuResult {
    ENTER("cuEventQuery");
    return event_of(event).completed == event_of(event).recorded ? kSuccess : kErrorNotReady;
  };
  api.cuEventSynchronize = [](CuEvent event) -> CuResult {
    ENTER("cuEventSynchronize");
    return event_of(event).completed == event_of(event).recorded ? kSuccess : CuResult{999};
  };
  api.cuEventElapsedTime = [](float* milliseconds, CuEvent start, CuEvent end) -> CuResult {
    ENTER("cuEventElapsedTime");
    if (!event_of(start).is_timed || !event_of(end).is_timed) return 400;
    *milliseconds =
        static_cast<float>(static_cast<double>(event_of(end).ns - event_of(start).ns) / 1e6);
    return kSuccess;
  };
}

void set_graph_functions(Api& api) {
  api.cuGraphCreate = [](CuGraph* graph, unsigned) -> CuResult {
    ENTER("cuGraphCreate");
    auto* made = new FakeGraph;
    fake().graphs.push_back(made);
    *graph = handle<CuGraph>(made);
    return kSuccess;
  };
  api.cuGraphDestroy = [](CuGraph graph) -> CuResult {
    const Enter enter("cuGraphDestroy");
    auto* mine = reinterpret_cast<FakeGraph*>(graph);
    std::erase(fake().graphs, mine);
    delete mine;
    return kSuccess;
  };
  api.cuGraphAddKernelNode = [](CuGraphNode* out, CuGraph graph, const CuGraphNode* after,
                                size_t count, const KernelNodeParams* params) -> CuResult {
    ENTER("cuGraphAddKernelNode");
    auto node = std::make_unique<FakeNode>();
    if (const CuResult set = set_kernel(*node, params)) return set;
    return add_node(out, graph, after, count, std::move(node));
  };
  api.cuGraphAddMemcpyNode = [](CuGraphNode* out, CuGraph graph, const CuGraphNode* after,
                                size_t count, const CopyParams* params, CuContext) -> CuResult {
    ENTER("cuGraphAddMemcpyNode");
    auto node = std::make_unique<FakeNode>();
    node->is_kernel = false;
    node->copy = *params;
    return add_node(out, graph, after, count, std::move(node));
  };
  api.cuGraphInstantiate = [](CuGraphExec* exec, CuGraph graph, CuGraphNode*, char*,
                              size_t) -> CuResult {
    ENTER("cuGraphInstantiate");
    auto* made = new FakeExec;
    for (const auto& node : reinterpret_cast<FakeGraph*>(graph)->nodes)
      made->nodes.push_back(*node);
    *exec = handle<CuGraphExec>(made);
    return kSuccess;
  };
  api.cuGraphExecDestroy = [](CuGraphExec exec) -> CuResult {
    const Enter enter("cuGraphExecDestroy");
    delete reinterpret_cast<FakeExec*>(exec);
    return kSuccess;
  };
  api.cuGraphExecKernelNodeSetParams = [](CuGraphExec exec, CuGraphNode node,
                                          const KernelNodeParams* params) -> CuResult {
    ENTER("cuGraphExecKernelNodeSetParams");
    return set_kernel(exec_node(exec, node), params);
  };
  api.cuGraphExecMemcpyNodeSetParams = [](CuGraphExec exec, CuGraphNode node,
                                          const CopyParams* params, CuContext) -> CuResult {
    ENTER("cuGraphExecMemcpyNodeSetParams");
    FakeNode& mine = exec_node(exec, node);
    if (mine.copy.src.memory_type != params->src.memory_type ||
        mine.copy.dst.memory_type != params->dst.memory_type || params->width_bytes == 0)
      return kErrorInvalidValue;
    mine.copy = *params;
    return kSuccess;
  };
  api.cuGraphUpload = [](CuGraphExec, CuStream) -> CuResult {
    ENTER("cuGraphUpload");
    return kSuccess;
  };
  api.cuGraphLaunch = [](CuGraphExec exec, CuStream stream) -> CuResult {
    ENTER("cuGraphLaunch");
    for (const FakeNode& node : reinterpret_cast<FakeExec*>(exec)->nodes)
      push(stream, node.is_kernel ? kernel_work(node.function, node.grid, node.arguments)
                                  : copy_work(side(node.copy.dst), side(node.copy.src),
                                              node.copy.width_bytes));
    return kSuccess;
  };
}

}  // namespace

FakeDriver& fake() { return *slot(); }

void FakeDriver::run_in_background() {
  background = std::thread([this] {
    while (!is_ending) {
      {
        const std::lock_guard lock(mutex);
        progress();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}

FakeDriver::~FakeDriver() {
  is_ending = true;
  if (background.joinable()) background.join();
  // What a stuck device left behind.
  for (const auto& [address, entry] : memory)
    if (!entry.is_registered) std::free(reinterpret_cast<void*>(address));
  for (FakeStream* stream : streams) delete stream;
}

void FakeDriver::progress() {
  for (bool moved = !is_lazy; moved && fault == kSuccess;) {
    moved = false;
    for (FakeStream* stream : streams)
      while (!stream->work.empty() && fault == kSuccess && stream->work.front()(*this)) {
        stream->work.pop_front();
        moved = true;
      }
  }
}

std::shared_ptr<Api> fake_api() {
  slot() = std::make_unique<FakeDriver>();
  fake().attributes = {{kMaxThreadsPerBlock, 1024}, {kMaxBlockX, 1024},
                       {kMaxBlockX + 1, 1024},      {kMaxBlockX + 2, 64},
                       {kMaxGridX, 0x7fffffff},     {kMaxGridX + 1, 65535},
                       {kMaxGridX + 2, 65535},      {kMaxSharedPerBlock, 49152},
                       {kMultiprocessors, 132},     {kUnifiedAddressing, 1},
                       {kCapabilityMajor, 9},       {kCapabilityMinor, 0},
                       {kStreamMemOps64, 1},        {kMaxSharedPerBlockOptin, 232448}};
  auto api = std::make_shared<Api>();
  api->library = "fake";
  set_device_functions(*api);
  set_memory_functions(*api);
  set_program_functions(*api);
  set_stream_functions(*api);
  set_event_functions(*api);
  set_graph_functions(*api);
  return api;
}

}  // namespace bm::cuda::test
