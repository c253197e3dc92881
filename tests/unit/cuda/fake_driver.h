#pragma once
// A CUDA driver in this process: streams, events, graphs and memory without a GPU. Work is done by
// whatever call comes next, never by a thread of its own. Kernels are functions of the test.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/api.h"
#include "runtime/hal/program.h"

namespace bm::cuda::test {

struct FakeDriver;

struct FakeEvent {
  uint64_t recorded = 0, completed = 0;
  int64_t ns = 0;
  bool is_timed = true;
};
/// Returns false while it cannot be done.
using FakeWork = std::function<bool(FakeDriver&)>;
struct FakeStream {
  std::deque<FakeWork> work;
};
struct FakeFunction {
  std::string name;
  int max_threads = 1024, shared_bytes = 0;
  int launch_shared_bytes = 0;  ///< most a launch may ask for; 0: nobody said
  unsigned asked_bytes = 0;     ///< by the last launch
};
struct FakeNode {
  size_t index = 0;
  bool is_kernel = true;
  FakeFunction* function = nullptr;
  hal::Dim3 grid;
  std::vector<uint64_t> arguments;
  CopyParams copy;
};
struct FakeGraph {
  std::vector<std::unique_ptr<FakeNode>> nodes;
  bool is_chain = true;  ///< every node after the one before it and nothing else
};
struct FakeExec {
  std::vector<FakeNode> nodes;
};
struct FakeMemory {
  size_t bytes = 0;
  unsigned type = 0;  ///< kMemoryHost, kMemoryDevice
  bool is_registered = false;
  int device = 0;
  uintptr_t context = 0;  ///< 0: of a pool
};

using FakeKernel = std::function<void(FakeDriver&, const uint64_t* arguments, hal::Dim3 grid)>;

struct FakeDriver {
  // What it is.
  int devices = 2, version = 13000;
  std::map<int, int> attributes;             ///< attribute → value
  std::map<std::string, CuResult> failures;  ///< member → result of the next calls
  std::map<std::string, FakeKernel> kernels;
  std::map<std::string, FakeFunction> functions;  ///< attributes, where not the usual ones
  std::string log;                                ///< of the JIT
  int fail_in = 0;                                ///< the n-th call from now fails …
  CuResult fail_code = kSuccess;                  ///< … like this
  size_t memory_limit = size_t{1} << 30;
  bool peers_may = true;

  // What happened.
  std::map<std::string, int> calls;
  std::map<uintptr_t, FakeMemory> memory;
  std::set<FakeStream*> streams;
  std::vector<const FakeGraph*> graphs;
  CuResult fault = kSuccess;
  int contexts = 0;  ///< retained
  size_t allocated = 0;
  bool is_lazy = false;  ///< streams stand still

  std::recursive_mutex mutex;
  void progress();
  /// From now on work is also done by a thread, as a GPU does.
  void run_in_background();
  ~FakeDriver();
  std::atomic<bool> is_ending = false;
  std::thread background;
  int count(const std::string& member) const {
    const auto at = calls.find(member);
    return at == calls.end() ? 0 : at->second;
  }
};

/// The one driver of the test program, as the last reset() left it.
FakeDriver& fake();
/// A new driver and its functions, for tests to change.
std::shared_ptr<Api> fake_api();

}  // namespace bm::cuda::test
