#pragma once
// State of the fake driver. One per process, like the real one; fake_cuda_reset() starts it anew.
//
// What it refuses, as cuda.h 13.0 documents the function's results; the number is the CUresult and
// the name the test in tests/unit/sim_cuda:
//   any call before cuInit: 3; a stub library, no device, another kernel driver: 34, 100, 803
//     [InitialisationFailsAsAsked]
//   attributes that do not exist: 1; memory of nothing: 1, more than there is: 2; freeing what is
//   no
//     allocation: 1  [DevicesHaveTheFactsOfTheirChip]
//   grids and blocks of nothing or beyond the limits, shared memory that was not asked for, missing
//     arguments: 1; streams and functions of others: 400  [LaunchesOutsideTheLimitsAreRefused]
//   attributes of cuLaunchKernelEx that are not for launches or do not exist, clusters and
//     programmatic launch before compute capability 9.0: 1
//     [LaunchAttributesOutsideTheirListOrGenerationAreRefused]
//   whatever comes after a fault: the fault's code  [FaultsAreStickyUntilTheContextIsGone]
//   images that are none, text that does not compile or is too new, kernels that are not there:
//   200,
//     209, 218, 222, 500  [ModulesAreRefusedWithTheRealCodes]
//   peers twice or without access: 704, 217; memory registered twice or not at all: 712, 713
//     [PointersHostMemoryAndPeers]
//   copies that leave their allocation: 1  [CopiesOutsideAllocationsAreRefused]
//   graphs whose update changes more than it may: 910  [OtherNodesAndUpdates]

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/cuda/memory.h"
#include "tests/sim/cuda/types.h"

namespace bm::sim::cuda {

/// What the environment asks for. Names are those of the members.
struct Knobs {
  int init = 0;  ///< FAKE_CUDA_INIT: what cuInit answers (34 stub, 100 no device, 803 mismatch)
  int version = 13000;              ///< FAKE_CUDA_VERSION
  int devices = 1;                  ///< FAKE_CUDA_DEVICES
  unsigned sm = 90;                 ///< FAKE_CUDA_SM
  size_t memory = size_t{4} << 30;  ///< FAKE_CUDA_MEMORY, bytes per device
  bool peers = true;                ///< FAKE_CUDA_PEERS=0: no peer access
  bool mem_ops = true;              ///< FAKE_CUDA_MEM_OPS=0: no stream memory operations
  unsigned threads = 1;             ///< FAKE_CUDA_THREADS: host threads a kernel's blocks run on
  uint64_t max_steps = 0;  ///< FAKE_CUDA_MAX_STEPS: a kernel beyond ends with LAUNCH_TIMEOUT
  std::string fail_name;   ///< FAKE_CUDA_FAIL=name:n:code or n:code: the n-th call (from 1) fails
  uint64_t fail_nth = 0;
  int fail_code = 0;
  std::string hang;       ///< FAKE_CUDA_HANG: kernels whose name contains this never end
  uint64_t ecc = 0;       ///< FAKE_CUDA_ECC: the n-th kernel ends in an uncorrectable memory error
  ptx::Checks checks;     ///< FAKE_CUDA_CHECK=races,uninitialised
  bool is_quiet = false;  ///< FAKE_CUDA_QUIET=1: faults are not written to stderr

  static Knobs from_environment();
};

struct Stream;

struct Context {
  int device = 0;
  unsigned flags = 0;
  bool is_primary = false;
  std::atomic<int> error{0};  ///< sticky: the first fault
  std::atomic<bool> cancel{false};
  std::set<int> peers;  ///< devices whose memory kernels here may touch
  mutable std::mutex peer_mutex;
  std::unique_ptr<Stream> null_stream;
  std::set<Stream*> streams;

  bool can_reach(int other) const;
  void fault(int code) {
    int none = 0;
    error.compare_exchange_strong(none, code);
  }
};

/// A position in a stream: everything before it is done when `stream->done >= value`.
struct Point {
  std::shared_ptr<std::atomic<uint64_t>> done;
  uint64_t value = 0;
  bool is_reached() const { return !done || done->load() >= value; }
};

/// Work in order on a thread of its own.
struct Stream {
  Stream(Context& context, unsigned flags, int priority);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// `work` runs when everything before it and every point in `after` is done; skipped once the
  /// context has failed.
  Point enqueue(std::function<void()> work, std::vector<Point> after = {});
  Point last() const;
  /// Stops at the next piece of work; what hangs is cancelled by Context::cancel.
  void stop();

  Context& context;
  const unsigned flags;
  const int priority;

 private:
  struct Item {
    std::function<void()> work;
    std::vector<Point> after;
  };
  void loop();

  mutable std::mutex mutex_;
  std::deque<Item> items_;
  uint64_t enqueued_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> done_;
  bool is_stopping_ = false;
  std::thread thread_;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  /// Of the last record; work in flight keeps its own.
  struct Record {
    Point point;
    std::atomic<int64_t> nanoseconds{0};
  };
  std::shared_ptr<Record> record;
};

struct Module;
struct Function {
  Module* module = nullptr;
  ptx::KernelInfo info;
  int max_dynamic_shared = 0;  ///< attribute 8
};
struct Module {
  Context* context = nullptr;
  std::shared_ptr<const ptx::Module> code;
  uint64_t image = 0;  ///< device address of its variables
  std::map<std::string, std::unique_ptr<Function>> functions;
  bool is_library = false;
};

/// A launch with everything checked and its arguments copied.
struct Launch {
  Function* function = nullptr;
  std::shared_ptr<const ptx::Module> code;
  std::string kernel;
  uint64_t image = 0;
  ptx::Dim3 grid, block;
  unsigned shared_bytes = 0;
  std::vector<std::byte> params;
};

struct Graph;
struct GraphExec;

class Driver {
 public:
  static Driver& get();
  Driver();
  ~Driver();

  std::recursive_mutex mutex;  ///< held by every call except while it waits
  Knobs knobs;
  bool is_initialized = false;
  AddressSpace memory;
  std::set<Context*> contexts;
  std::vector<Context*> primaries;
  std::vector<int> primary_users;
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::set<Module*> modules;
  std::set<Function*> functions;
  std::set<Graph*> graphs;
  std::set<GraphExec*> execs;
  std::map<std::string, uint64_t> calls;
  uint64_t call_count = 0;
  std::atomic<uint64_t> kernels{0};
  std::string last_fault;
  std::mutex fault_mutex;

  void destroy_context(Context* context);
  /// Ends every stream, context and allocation and reads the knobs again.
  void reset();
};

/// Wakes those who wait for a Point, a value or a stream's work.
void notify_progress();
/// Returns when is_done() holds; looked at after every notify_progress().
void wait_until(const std::function<bool()>& is_done);
/// The same for memory that the host writes, which wakes nobody: looked at every so often too.
void poll_until(const std::function<bool()>& is_done);

/// The calling thread's stack of contexts; null when empty.
Context* current_context();
std::vector<Context*>& context_stack();

/// Stream of a handle: 0, 1 (legacy) and 2 (per thread: taken for legacy) name the null stream.
/// Null: not a stream of this context.
Stream* stream_of(Driver& d, Context& c, void* handle);
/// Points that work in `stream` waits for by the rules of the legacy null stream.
std::vector<Point> implicit_order(Context& c, const Stream& stream);
/// Enqueues with the implicit order.
Point submit(Context& c, Stream& stream, std::function<void()> work);
/// Waits for all work of the context; its error.
int drain(Context& c);

int check_launch(Driver& d, Context& c, void* function, const unsigned grid[3],
                 const unsigned block[3], unsigned shared_bytes, void** params, void** extra,
                 Launch& out);
void run_launch(Driver& d, Context& c, const Launch& launch);

/// Injected failure of this call, or 0. Counts it.
int begin_call(Driver& d, const char* name);

/// Body of an entry point: lock, failure injection, initialisation.
template <class F>
int call(const char* name, F&& body) {
  Driver& d = Driver::get();
  std::unique_lock lock(d.mutex);
  if (const int code = begin_call(d, name)) return code;
  if (!d.is_initialized) return kNotInitialized;
  return body(d);
}

/// The same with a current context that has not failed.
template <class F>
int in_context(const char* name, F&& body) {
  return call(name, [&](Driver& d) -> int {
    Context* c = current_context();
    if (!c) return kInvalidContext;
    if (!d.contexts.contains(c)) return kContextIsDestroyed;
    if (const int error = c->error) return error;
    return body(d, *c);
  });
}

}  // namespace bm::sim::cuda

#define BM_FAKE_CUDA extern "C" __attribute__((visibility("default"))) int
