#include "tests/sim/cuda/driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/cuda/graphs.h"

namespace bm::sim::cuda {
namespace {

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
};
Progress& progress() {
  static Progress instance;
  return instance;
}

}  // namespace

Knobs Knobs::from_environment() {
  Knobs k;
  k.init = static_cast<int>(number("FAKE_CUDA_INIT", 0));
  k.version = static_cast<int>(number("FAKE_CUDA_VERSION", 13000));
  k.devices = static_cast<int>(number("FAKE_CUDA_DEVICES", 1));
  k.sm = static_cast<unsigned>(number("FAKE_CUDA_SM", 90));
  k.memory = number("FAKE_CUDA_MEMORY", k.memory);
  k.peers = number("FAKE_CUDA_PEERS", 1) != 0;
  k.mem_ops = number("FAKE_CUDA_MEM_OPS", 1) != 0;
  k.threads = static_cast<unsigned>(number("FAKE_CUDA_THREADS", 1));
  k.max_steps = number("FAKE_CUDA_MAX_STEPS", 0);
  k.hang = text_of("FAKE_CUDA_HANG");
  k.ecc = number("FAKE_CUDA_ECC", 0);
  k.is_quiet = number("FAKE_CUDA_QUIET", 0) != 0;
  const std::string checks = text_of("FAKE_CUDA_CHECK");
  k.checks.shared_races = checks.find("races") != std::string::npos;
  k.checks.uninitialised_shared = checks.find("uninitialised") != std::string::npos;
  // "cuMemAlloc_v2:3:2", or "17:999" for the 17th call of any name.
  std::string fail = text_of("FAKE_CUDA_FAIL");
  if (!fail.empty()) {
    const size_t last = fail.rfind(':');
    k.fail_code = last == std::string::npos ? 999 : std::atoi(fail.c_str() + last + 1);
    fail = fail.substr(0, last);
    const size_t first = fail.rfind(':');
    k.fail_name = first == std::string::npos ? "" : fail.substr(0, first);
    const std::string nth = first == std::string::npos ? fail : fail.substr(first + 1);
    k.fail_nth = std::strtoull(nth.c_str(), nullptr, 0);
  }
  return k;
}

bool Context::can_reach(int other) const {
  const std::lock_guard lock(peer_mutex);
  return other == device || peers.contains(other);
}

void notify_progress() {
  { const std::lock_guard lock(progress().mutex); }
  progress().changed.notify_all();
}

void wait_until(const std::function<bool()>& is_done) {
  std::unique_lock lock(progress().mutex);
  progress().changed.wait(lock, is_done);
}

void poll_until(const std::function<bool()>& is_done) {
  std::unique_lock lock(progress().mutex);
  while (!is_done()) progress().changed.wait_for(lock, std::chrono::microseconds(50));
}

Stream::Stream(Context& c, unsigned f, int p)
    : context(c), flags(f), priority(p), done_(std::make_shared<std::atomic<uint64_t>>(0)) {
  thread_ = std::thread([this] { loop(); });
}

Stream::~Stream() { stop(); }

void Stream::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  notify_progress();
  if (thread_.joinable()) thread_.join();
}

Point Stream::enqueue(std::function<void()> work, std::vector<Point> after) {
  Point out;
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({std::move(work), std::move(after)});
    out = {done_, ++enqueued_};
  }
  notify_progress();
  return out;
}

Point Stream::last() const {
  const std::lock_guard lock(mutex_);
  return {done_, enqueued_};
}

void Stream::loop() {
  for (;;) {
    Item item;
    wait_until([&] {
      const std::lock_guard lock(mutex_);
      return is_stopping_ || !items_.empty();
    });
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    wait_until([&] {
      for (const Point& p : item.after)
        if (!p.is_reached() && !context.cancel) return false;
      return true;
    });
    if (context.error == 0 && !context.cancel) item.work();
    item = {};
    ++*done_;
    notify_progress();
  }
}

std::vector<Context*>& context_stack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

Context* current_context() { return context_stack().empty() ? nullptr : context_stack().back(); }

Stream* stream_of(Driver& d, Context& c, void* handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  if (value <= 2) return c.null_stream.get();
  auto* stream = static_cast<Stream*>(handle);
  return d.streams.contains(stream) && &stream->context == &c ? stream : nullptr;
}

std::vector<Point> implicit_order(Context& c, const Stream& stream) {
  std::vector<Point> out;
  if (&stream == c.null_stream.get()) {
    for (const Stream* other : c.streams)
      if ((other->flags & 1) == 0) out.push_back(other->last());
  } else if ((stream.flags & 1) == 0) {
    out.push_back(c.null_stream->last());
  }
  return out;
}

Point submit(Context& c, Stream& stream, std::function<void()> work) {
  return stream.enqueue(std::move(work), implicit_order(c, stream));
}

int drain(Context& c) {
  std::vector<Point> points{c.null_stream->last()};
  for (const Stream* s : c.streams) points.push_back(s->last());
  wait_until([&] {
    for (const Point& p : points)
      if (!p.is_reached()) return false;
    return true;
  });
  return c.error;
}

Driver& Driver::get() {
  static Driver instance;
  return instance;
}

Driver::Driver() : knobs(Knobs::from_environment()) { progress(); }

Driver::~Driver() { reset(); }

void Driver::destroy_context(Context* c) {
  c->cancel = true;
  notify_progress();
  for (Stream* s : c->streams) {
    streams.erase(s);
    delete s;
  }
  c->streams.clear();
  c->null_stream.reset();
  std::erase_if(events, [&](Event* e) {
    if (e->context != c) return false;
    delete e;
    return true;
  });
  std::erase_if(modules, [&](Module* m) {
    if (m->context != c) return false;
    for (const auto& [name, f] : m->functions) functions.erase(f.get());
    delete m;
    return true;
  });
  memory.remove_all(c);
  contexts.erase(c);
  for (Context*& p : primaries)
    if (p == c) p = nullptr;
  delete c;
}

void Driver::reset() {
  while (!contexts.empty()) destroy_context(*contexts.begin());
  for (GraphExec* e : execs) delete e;
  for (Graph* g : graphs) delete g;
  execs.clear();
  graphs.clear();
  primaries.clear();
  primary_users.clear();
  context_stack().clear();
  calls.clear();
  call_count = 0;
  kernels = 0;
  is_initialized = false;
  knobs = Knobs::from_environment();
}

int begin_call(Driver& d, const char* name) {
  ++d.call_count;
  const uint64_t nth = ++d.calls[name];
  const Knobs& k = d.knobs;
  if (!k.fail_nth) return 0;
  const bool is_it =
      k.fail_name.empty() ? d.call_count == k.fail_nth : k.fail_name == name && nth == k.fail_nth;
  return is_it ? k.fail_code : 0;
}

// For tests only; the real library has none of these.
extern "C" __attribute__((visibility("default"))) void fake_cuda_reset() {
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  d.reset();
}
/// Calls of `name` so far, of all names for null.
extern "C" __attribute__((visibility("default"))) uint64_t fake_cuda_calls(const char* name) {
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  return name ? d.calls[name] : d.call_count;
}
/// Allocations, registrations, streams, events, modules, graphs that nobody gave back.
extern "C" __attribute__((visibility("default"))) uint64_t fake_cuda_live() {
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  return d.memory.live() + d.streams.size() + d.events.size() + d.modules.size() + d.graphs.size() +
         d.execs.size();
}
/// Text of the last fault of a kernel; valid until the next one.
extern "C" __attribute__((visibility("default"))) const char* fake_cuda_last_fault() {
  Driver& d = Driver::get();
  const std::lock_guard lock(d.fault_mutex);
  return d.last_fault.c_str();
}

}  // namespace bm::sim::cuda
