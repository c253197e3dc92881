// Streams, events, host functions, memory operations in streams.
#include <chrono>
#include <cstring>

#include "tests/sim/cuda/driver.h"

namespace bm::sim::cuda {
namespace {

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Event* event_of(Driver& d, void* handle) {
  auto* event = static_cast<Event*>(handle);
  return d.events.contains(event) ? event : nullptr;
}

int create_stream(const char* name, void** out, unsigned flags, int priority) {
  return in_context(name, [&](Driver& d, Context& c) -> int {
    if (!out || (flags & ~1u)) return kInvalidValue;
    auto* s = new Stream(c, flags, priority);
    c.streams.insert(s);
    d.streams.insert(s);
    *out = s;
    return kSuccess;
  });
}

/// Waiting for a value: 0 at least, 1 equal, 2 any bit in common, 3 not all ones together. "At
/// least" compares around the wrap, as hardware does.
template <class T>
bool is_met(T seen, T value, unsigned how) {
  switch (how & 3) {
    case 0: return static_cast<std::make_signed_t<T>>(seen - value) >= 0;
    case 1: return seen == value;
    case 2: return (seen & value) != 0;
    default: return static_cast<T>(~(seen | value)) != 0;
  }
}

template <class T>
int wait_value(Driver& d, Context& c, void* stream, uint64_t address, T value, unsigned flags) {
  Stream* s = stream_of(d, c, stream);
  if (!s) return kInvalidHandle;
  if (!d.knobs.mem_ops) return kNotSupported;
  std::byte* p = d.memory.at(address, sizeof(T));
  if (!p || address % sizeof(T) || (flags & ~0x40000003u)) return kInvalidValue;
  submit(c, *s, [p, value, flags, &c] {
    poll_until([&] {
      return is_met(__atomic_load_n(reinterpret_cast<T*>(p), __ATOMIC_ACQUIRE), value, flags) ||
             c.cancel;
    });
  });
  return kSuccess;
}
template <class T>
int write_value(Driver& d, Context& c, void* stream, uint64_t address, T value, unsigned flags) {
  Stream* s = stream_of(d, c, stream);
  if (!s) return kInvalidHandle;
  if (!d.knobs.mem_ops) return kNotSupported;
  std::byte* p = d.memory.at(address, sizeof(T));
  if (!p || address % sizeof(T) || flags > 1) return kInvalidValue;
  submit(c, *s, [p, value] {
    __atomic_store_n(reinterpret_cast<T*>(p), value, __ATOMIC_RELEASE);
    notify_progress();
  });
  return kSuccess;
}

}  // namespace

BM_FAKE_CUDA cuStreamCreate(void** out, unsigned flags) {
  return create_stream("cuStreamCreate", out, flags, 0);
}
BM_FAKE_CUDA cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  return create_stream("cuStreamCreateWithPriority", out, flags, priority);
}
BM_FAKE_CUDA cuStreamDestroy_v2(void* stream) {
  Stream* s = nullptr;
  Point last;
  const int code = call("cuStreamDestroy_v2", [&](Driver& d) -> int {
    s = static_cast<Stream*>(stream);
    if (!d.streams.contains(s)) return kInvalidHandle;
    d.streams.erase(s);
    s->context.streams.erase(s);
    last = s->last();
    return kSuccess;
  });
  if (code) return code;
  // Its work still runs to the end.
  wait_until([&] { return last.is_reached(); });
  delete s;
  return kSuccess;
}
BM_FAKE_CUDA cuStreamQuery(void* stream) {
  return in_context("cuStreamQuery", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s) return kInvalidHandle;
    return s->last().is_reached() ? kSuccess : kNotReady;
  });
}
BM_FAKE_CUDA cuStreamSynchronize(void* stream) {
  Point last;
  Context* context = nullptr;
  const int code = in_context("cuStreamSynchronize", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s) return kInvalidHandle;
    context = &c;
    last = s->last();
    return kSuccess;
  });
  if (code) return code;
  wait_until([&] { return last.is_reached(); });
  return context->error;
}
BM_FAKE_CUDA cuStreamGetCtx(void* stream, void** out) {
  return in_context("cuStreamGetCtx", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s || !out) return s ? kInvalidValue : kInvalidHandle;
    *out = &s->context;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuStreamGetFlags(void* stream, unsigned* flags) {
  return in_context("cuStreamGetFlags", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s || !flags) return s ? kInvalidValue : kInvalidHandle;
    *flags = s->flags;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuStreamGetPriority(void* stream, int* priority) {
  return in_context("cuStreamGetPriority", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s || !priority) return s ? kInvalidValue : kInvalidHandle;
    *priority = s->priority;
    return kSuccess;
  });
}

BM_FAKE_CUDA cuEventCreate(void** out, unsigned flags) {
  return in_context("cuEventCreate", [&](Driver& d, Context& c) -> int {
    if (!out || (flags & ~7u)) return kInvalidValue;
    auto* e = new Event;
    e->context = &c;
    e->flags = flags;
    d.events.insert(e);
    *out = e;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuEventDestroy_v2(void* event) {
  return call("cuEventDestroy_v2", [&](Driver& d) -> int {
    Event* e = event_of(d, event);
    if (!e) return kInvalidHandle;
    d.events.erase(e);
    delete e;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuEventRecord(void* event, void* stream) {
  return in_context("cuEventRecord", [&](Driver& d, Context& c) -> int {
    Event* e = event_of(d, event);
    Stream* s = stream_of(d, c, stream);
    if (!e || !s || e->context != &c) return kInvalidHandle;
    const auto record = std::make_shared<Event::Record>();
    record->point = submit(c, *s, [record] { record->nanoseconds = now_nanoseconds(); });
    e->record = record;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cuEventRecord(event, stream);
}
BM_FAKE_CUDA cuEventQuery(void* event) {
  return in_context("cuEventQuery", [&](Driver& d, Context&) -> int {
    const Event* e = event_of(d, event);
    if (!e) return kInvalidHandle;
    return !e->record || e->record->point.is_reached() ? kSuccess : kNotReady;
  });
}
BM_FAKE_CUDA cuEventSynchronize(void* event) {
  std::shared_ptr<Event::Record> record;
  Context* context = nullptr;
  const int code = in_context("cuEventSynchronize", [&](Driver& d, Context&) -> int {
    const Event* e = event_of(d, event);
    if (!e) return kInvalidHandle;
    record = e->record;
    context = e->context;
    return kSuccess;
  });
  if (code || !record) return code;
  wait_until([&] { return record->point.is_reached(); });
  return context->error;
}
BM_FAKE_CUDA cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  return in_context("cuEventElapsedTime", [&](Driver& d, Context&) -> int {
    const Event *a = event_of(d, start), *b = event_of(d, end);
    if (!milliseconds) return kInvalidValue;
    // 2: made without timing.
    if (!a || !b || ((a->flags | b->flags) & 2) || !a->record || !b->record) return kInvalidHandle;
    if (!a->record->point.is_reached() || !b->record->point.is_reached()) return kNotReady;
    *milliseconds = static_cast<float>(
        static_cast<double>(b->record->nanoseconds - a->record->nanoseconds) * 1e-6);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  return cuEventElapsedTime(milliseconds, start, end);
}
BM_FAKE_CUDA cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return in_context("cuStreamWaitEvent", [&](Driver& d, Context& c) -> int {
    const Event* e = event_of(d, event);
    Stream* s = stream_of(d, c, stream);
    if (!e || !s) return kInvalidHandle;
    if (flags > 1) return kInvalidValue;
    if (!e->record) return kSuccess;
    std::vector<Point> after = implicit_order(c, *s);
    after.push_back(e->record->point);
    s->enqueue([] {}, std::move(after));
    return kSuccess;
  });
}

BM_FAKE_CUDA cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  return in_context("cuLaunchHostFunc", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s) return kInvalidHandle;
    if (!function) return kInvalidValue;
    submit(c, *s, [function, data] { function(data); });
    return kSuccess;
  });
}

BM_FAKE_CUDA cuStreamWaitValue64_v2(void* stream, uint64_t address, uint64_t value,
                                    unsigned flags) {
  return in_context("cuStreamWaitValue64_v2", [&](Driver& d, Context& c) {
    return wait_value<uint64_t>(d, c, stream, address, value, flags);
  });
}
BM_FAKE_CUDA cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value,
                                    unsigned flags) {
  return in_context("cuStreamWaitValue32_v2", [&](Driver& d, Context& c) {
    return wait_value<uint32_t>(d, c, stream, address, value, flags);
  });
}
BM_FAKE_CUDA cuStreamWriteValue64_v2(void* stream, uint64_t address, uint64_t value,
                                     unsigned flags) {
  return in_context("cuStreamWriteValue64_v2", [&](Driver& d, Context& c) {
    return write_value<uint64_t>(d, c, stream, address, value, flags);
  });
}
BM_FAKE_CUDA cuStreamWriteValue32_v2(void* stream, uint64_t address, uint32_t value,
                                     unsigned flags) {
  return in_context("cuStreamWriteValue32_v2", [&](Driver& d, Context& c) {
    return write_value<uint32_t>(d, c, stream, address, value, flags);
  });
}
/// Operations: 1 wait 32, 2 write 32, 4 wait 64, 5 write 64, 3 flush, 6 barrier.
BM_FAKE_CUDA cuStreamBatchMemOp_v2(void* stream, unsigned count, const MemOp* ops, unsigned flags) {
  return in_context("cuStreamBatchMemOp_v2", [&](Driver& d, Context& c) -> int {
    if ((count && !ops) || flags || count > 256) return kInvalidValue;
    for (unsigned i = 0; i < count; ++i) {
      const MemOp& op = ops[i];
      const auto low = static_cast<uint32_t>(op.value);
      int code = kSuccess;
      switch (op.operation) {
        case 1: code = wait_value<uint32_t>(d, c, stream, op.address, low, op.flags); break;
        case 2: code = write_value<uint32_t>(d, c, stream, op.address, low, op.flags); break;
        case 4: code = wait_value<uint64_t>(d, c, stream, op.address, op.value, op.flags); break;
        case 5: code = write_value<uint64_t>(d, c, stream, op.address, op.value, op.flags); break;
        case 3:
        case 6: break;
        default: code = kInvalidValue;
      }
      if (code) return code;
    }
    return kSuccess;
  });
}

}  // namespace bm::sim::cuda
