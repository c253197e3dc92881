// Order within and between streams, events, values in memory, graphs.
#include <atomic>

#include "tests/unit/sim_cuda/fake.h"

namespace bm::sim::cuda::test {
namespace {

struct Rig {
  explicit Rig(Environment environment = {})
      : cuda(std::move(environment)),
        context(cuda.start()),
        increment(cuda.function(kText, "increment")),
        scale(cuda.function(kText, "scale")) {
    EXPECT_EQ(cuda("cuMemHostAlloc", &host, size_t{4096}, 1u), 0);
    std::memset(host, 0, 4096);
  }
  void* stream(unsigned flags) const {
    void* out = nullptr;
    EXPECT_EQ(cuda("cuStreamCreate", &out, flags), 0);
    return out;
  }
  uint64_t cell(size_t i) const { return reinterpret_cast<uint64_t>(host) + 8 * i; }
  std::atomic_ref<uint64_t> value(size_t i) const {
    return std::atomic_ref<uint64_t>(static_cast<uint64_t*>(host)[i]);
  }

  Fake cuda;
  void* context;
  void* increment;
  void* scale;
  void* host = nullptr;
};

TEST(FakeCudaStream, WaitsForValuesWithoutBlockingTheCaller) {
  const Rig r;
  void* s = r.stream(1);
  const uint64_t p = r.cuda.allocate(8);
  EXPECT_EQ(r.cuda("cuMemsetD32_v2", p, 0u, size_t{2}), 0);
  EXPECT_EQ(r.cuda("cuStreamWaitValue64_v2", s, r.cell(0), uint64_t{5}, 0u), 0);
  EXPECT_EQ(r.cuda.launch(r.increment, 1, 1, {p}, s), 0);
  EXPECT_EQ(r.cuda("cuStreamWriteValue64_v2", s, r.cell(1), uint64_t{77}, 0u), 0);
  EXPECT_EQ(r.cuda("cuStreamQuery", s), 600);
  EXPECT_EQ(r.value(1), 0u);
  r.value(0) = 4;
  EXPECT_EQ(r.cuda("cuStreamQuery", s), 600);
  r.value(0) = 6;
  EXPECT_EQ(r.cuda("cuStreamSynchronize", s), 0);
  EXPECT_EQ(r.value(1), 77u);
  EXPECT_EQ(r.cuda.read(p, 1)[0], 1u);
  EXPECT_EQ(r.cuda("cuStreamWaitValue64_v2", s, r.cell(0) + 4, uint64_t{5}, 0u), 1) << "misaligned";
  EXPECT_EQ(r.cuda("cuStreamWaitValue64_v2", s, uint64_t{64}, uint64_t{5}, 0u), 1) << "not mapped";
}

TEST(FakeCudaStream, EventsOrderStreamsAndMeasure) {
  const Rig r;
  void *a = r.stream(1), *b = r.stream(1), *start = nullptr, *done = nullptr;
  ASSERT_EQ(r.cuda("cuEventCreate", &start, 0u), 0);
  ASSERT_EQ(r.cuda("cuEventCreate", &done, 0u), 0);
  const uint64_t p = r.cuda.allocate(8), q = r.cuda.allocate(8);
  EXPECT_EQ(r.cuda("cuMemsetD32_v2", p, 0u, size_t{2}), 0);
  EXPECT_EQ(r.cuda("cuEventQuery", done), 0) << "never recorded";
  EXPECT_EQ(r.cuda("cuEventRecord", start, a), 0);
  EXPECT_EQ(r.cuda("cuStreamWaitValue64_v2", a, r.cell(0), uint64_t{1}, 0u), 0);
  EXPECT_EQ(r.cuda.launch(r.increment, 1, 1, {p}, a), 0);
  EXPECT_EQ(r.cuda("cuEventRecord", done, a), 0);
  EXPECT_EQ(r.cuda("cuStreamWaitEvent", b, done, 0u), 0);
  EXPECT_EQ(r.cuda.launch(r.scale, 1, 1, {q, p, 10}, b), 0);
  EXPECT_EQ(r.cuda("cuEventQuery", done), 600);
  float ms = -1;
  EXPECT_EQ(r.cuda("cuEventElapsedTime", &ms, start, done), 600);
  r.value(0) = 1;
  EXPECT_EQ(r.cuda("cuStreamSynchronize", b), 0);
  EXPECT_EQ(r.cuda.read(q, 1)[0], 13u);
  EXPECT_EQ(r.cuda("cuEventElapsedTime", &ms, start, done), 0);
  EXPECT_GE(ms, 0.0f);
}

TEST(FakeCudaStream, TheNullStreamIsOrderedWithBlockingStreams) {
  const Rig r;
  void *blocking = r.stream(0), *free = r.stream(1);
  const uint64_t p = r.cuda.allocate(8);
  EXPECT_EQ(r.cuda("cuStreamWaitValue64_v2", blocking, r.cell(0), uint64_t{1}, 0u), 0);
  EXPECT_EQ(r.cuda("cuMemsetD32Async", p, 9u, size_t{2}, static_cast<void*>(nullptr)), 0);
  EXPECT_EQ(r.cuda("cuStreamQuery", static_cast<void*>(nullptr)), 600);
  EXPECT_EQ(r.cuda("cuMemsetD32Async", p, 8u, size_t{2}, free), 0);
  EXPECT_EQ(r.cuda("cuStreamSynchronize", free), 0) << "non-blocking streams pass by";
  r.value(0) = 1;
  EXPECT_EQ(r.cuda("cuCtxSynchronize"), 0);
  EXPECT_EQ(r.cuda.read(p, 1)[0], 0x900000009u);
}

struct KernelParams {  // version 1
  void* function;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared = 0;
  void** params = nullptr;
  void** extra = nullptr;
};
struct Side {
  size_t x = 0, y = 0, z = 0, lod = 0;
  unsigned type = 2;
  void* host = nullptr;
  uint64_t device = 0;
  void *array = nullptr, *reserved = nullptr;
  size_t pitch = 0, height = 0;
};
struct Copy {
  Side src, dst;
  size_t width = 0, height = 1, depth = 1;
};
static_assert(sizeof(KernelParams) == 56 && sizeof(Copy) == 200);

TEST(FakeCudaGraph, NodesFollowTheirDependenciesAndTakeNewParameters) {
  const Rig r;
  void *graph = nullptr, *exec = nullptr, *first = nullptr, *copy = nullptr, *last = nullptr;
  uint64_t p = r.cuda.allocate(8), q = r.cuda.allocate(8), value = 100;
  EXPECT_EQ(r.cuda("cuMemsetD32_v2", p, 0u, size_t{2}), 0);
  ASSERT_EQ(r.cuda("cuGraphCreate", &graph, 0u), 0);
  void *increment_args[] = {&p}, *scale_args[] = {&q, &q, &value};
  KernelParams k{r.increment};
  k.params = increment_args;
  ASSERT_EQ(r.cuda("cuGraphAddKernelNode", &first, graph, static_cast<void**>(nullptr), size_t{0},
                   static_cast<const void*>(&k)),
            0);
  Copy c;
  c.src.device = p;
  c.dst.device = q;
  c.width = 8;
  ASSERT_EQ(r.cuda("cuGraphAddMemcpyNode", &copy, graph, &first, size_t{1},
                   static_cast<const void*>(&c), r.context),
            0);
  KernelParams s{r.scale};
  s.params = scale_args;
  ASSERT_EQ(
      r.cuda("cuGraphAddKernelNode", &last, graph, &copy, size_t{1}, static_cast<const void*>(&s)),
      0);
  ASSERT_EQ(r.cuda("cuGraphInstantiate_v2", &exec, graph, static_cast<void**>(nullptr),
                   static_cast<char*>(nullptr), size_t{0}),
            0);
  void* stream = r.stream(1);
  EXPECT_EQ(r.cuda("cuGraphUpload", exec, stream), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(r.cuda("cuGraphLaunch", exec, stream), 0);
  EXPECT_EQ(r.cuda("cuStreamSynchronize", stream), 0);
  EXPECT_EQ(r.cuda.read(q, 1)[0], 3u * 3 + 100);
  // New arguments count from the next launch on, not for those in flight.
  EXPECT_EQ(r.cuda("cuStreamWaitValue64_v2", stream, r.cell(0), uint64_t{1}, 0u), 0);
  EXPECT_EQ(r.cuda("cuGraphLaunch", exec, stream), 0);
  value = 200;
  EXPECT_EQ(r.cuda("cuGraphExecKernelNodeSetParams", exec, last, static_cast<const void*>(&s)), 0);
  r.value(0) = 1;
  EXPECT_EQ(r.cuda("cuStreamSynchronize", stream), 0);
  EXPECT_EQ(r.cuda.read(q, 1)[0], 4u * 3 + 100);
  EXPECT_EQ(r.cuda("cuGraphLaunch", exec, stream), 0);
  EXPECT_EQ(r.cuda("cuStreamSynchronize", stream), 0);
  EXPECT_EQ(r.cuda.read(q, 1)[0], 5u * 3 + 200);
  // What may not change.
  s.function = r.increment;
  s.params = increment_args;
  EXPECT_EQ(r.cuda("cuGraphExecKernelNodeSetParams", exec, last, static_cast<const void*>(&s)), 1);
  EXPECT_EQ(r.cuda("cuGraphExecKernelNodeSetParams", exec, copy, static_cast<const void*>(&k)), 1);
  Copy to_host = c;
  to_host.dst.type = 1;
  to_host.dst.host = r.host;
  EXPECT_EQ(r.cuda("cuGraphExecMemcpyNodeSetParams", exec, copy, static_cast<const void*>(&to_host),
                   r.context),
            1);
  Copy beyond = c;
  beyond.width = 9;
  EXPECT_EQ(r.cuda("cuGraphExecMemcpyNodeSetParams", exec, copy, static_cast<const void*>(&beyond),
                   r.context),
            1);
  k.block[0] = 65;
  EXPECT_EQ(r.cuda("cuGraphExecKernelNodeSetParams", exec, first, static_cast<const void*>(&k)), 1);
  EXPECT_EQ(r.cuda("cuGraphExecDestroy", exec), 0);
  EXPECT_EQ(r.cuda("cuGraphLaunch", exec, stream), 400);
  EXPECT_EQ(r.cuda("cuGraphDestroy", graph), 0);
}

TEST(FakeCudaGraph, MissingDependenciesShow) {
  // Unordered nodes run last first.
  const Rig r;
  void *graph = nullptr, *exec = nullptr, *a = nullptr, *b = nullptr;
  uint64_t p = r.cuda.allocate(8), q = r.cuda.allocate(8), value = 0;
  EXPECT_EQ(r.cuda("cuMemsetD32_v2", p, 0u, size_t{2}), 0);
  ASSERT_EQ(r.cuda("cuGraphCreate", &graph, 0u), 0);
  void *increment_args[] = {&p}, *scale_args[] = {&q, &p, &value};
  KernelParams k{r.increment}, s{r.scale};
  k.params = increment_args;
  s.params = scale_args;
  ASSERT_EQ(r.cuda("cuGraphAddKernelNode", &a, graph, static_cast<void**>(nullptr), size_t{0},
                   static_cast<const void*>(&k)),
            0);
  ASSERT_EQ(r.cuda("cuGraphAddKernelNode", &b, graph, static_cast<void**>(nullptr), size_t{0},
                   static_cast<const void*>(&s)),
            0);
  const auto run = [&] {
    EXPECT_EQ(r.cuda("cuGraphInstantiateWithFlags", &exec, graph, 0ull), 0);
    EXPECT_EQ(r.cuda("cuGraphLaunch", exec, static_cast<void*>(nullptr)), 0);
    return r.cuda.read(q, 1)[0];
  };
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(r.cuda("cuGraphAddDependencies", graph, &a, &b, size_t{1}), 0);
  EXPECT_EQ(run(), 6u);
  EXPECT_EQ(r.cuda("cuGraphAddDependencies", graph, &b, &a, size_t{1}), 0);
  EXPECT_EQ(r.cuda("cuGraphInstantiateWithFlags", &exec, graph, 0ull), 1) << "a cycle";
}

TEST(FakeCudaGraph, OtherNodesAndUpdates) {
  const Rig r;
  void *graph = nullptr, *exec = nullptr, *set = nullptr, *empty = nullptr, *host = nullptr,
       *recorded = nullptr, *event = nullptr;
  ASSERT_EQ(r.cuda("cuEventCreate", &event, 0u), 0);
  const uint64_t p = r.cuda.allocate(16);
  struct {
    uint64_t dst;
    size_t pitch = 0;
    unsigned value = 7, element = 4;
    size_t width = 4, height = 1;
  } fill{p};
  int calls = 0;
  struct {
    void (*function)(void*);
    void* data;
  } call{[](void* data) { ++*static_cast<int*>(data); }, &calls};
  const auto build = [&] {
    ASSERT_EQ(r.cuda("cuGraphCreate", &graph, 0u), 0);
    ASSERT_EQ(r.cuda("cuGraphAddMemsetNode", &set, graph, static_cast<void**>(nullptr), size_t{0},
                     static_cast<const void*>(&fill), r.context),
              0);
    ASSERT_EQ(r.cuda("cuGraphAddEmptyNode", &empty, graph, &set, size_t{1}), 0);
    ASSERT_EQ(r.cuda("cuGraphAddHostNode", &host, graph, &empty, size_t{1},
                     static_cast<const void*>(&call)),
              0);
    ASSERT_EQ(r.cuda("cuGraphAddEventRecordNode", &recorded, graph, &host, size_t{1}, event), 0);
  };
  build();
  ASSERT_EQ(r.cuda("cuGraphInstantiateWithFlags", &exec, graph, 0ull), 0);
  EXPECT_EQ(r.cuda("cuGraphLaunch", exec, static_cast<void*>(nullptr)), 0);
  EXPECT_EQ(r.cuda("cuEventSynchronize", event), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(r.cuda.read(p, 2)[1], 0x700000007u);
  fill.value = 8;
  build();
  int result = -1;
  void* node = nullptr;
  EXPECT_EQ(r.cuda("cuGraphExecUpdate", exec, graph, &node, &result), 0);
  EXPECT_EQ(r.cuda("cuGraphLaunch", exec, static_cast<void*>(nullptr)), 0);
  EXPECT_EQ(r.cuda.read(p, 2)[0], 0x800000008u);
  EXPECT_EQ(r.cuda("cuGraphDestroyNode", empty), 0);
  EXPECT_EQ(r.cuda("cuGraphExecUpdate", exec, graph, &node, &result), 910);
  EXPECT_EQ(result, 2);
  size_t count = 0;
  EXPECT_EQ(r.cuda("cuGraphGetNodes", graph, static_cast<void**>(nullptr), &count), 0);
  EXPECT_EQ(count, 3u);
}

}  // namespace
}  // namespace bm::sim::cuda::test
