// Bad input and faults seen through the runtime: graphs that are refused, devices that stop, and
// devices that are closed while they work.

#include <algorithm>
#include <atomic>
#include <chrono>

#include "runtime/allocator.h"
#include "runtime/stream.h"
#include "tests/cts/world.h"

namespace bm::cts {
namespace {

using runtime::Buffer;
using runtime::Call;

Call copy_call(Buffer dst, Buffer src) {
  Call call;
  call.name = "copy";
  call.what = runtime::CopyCall{};
  call.args = {{.buffer = std::move(dst), .is_written = true, .is_read = false},
               {.buffer = std::move(src)}};
  return call;
}

Result<Buffer> gate_of(runtime::Device& device) {
  return runtime::allocate(
      device,
      {.size = 64, .host_visible = true, .host_memory = true, .uncached = true, .zero = true});
}

// ---- Graphs

Status bad_graphs(World& world) {
  runtime::Device& device = world.device();
  const Buffer a = BM_TRY(runtime::allocate(device, {.size = 4096}));
  const Buffer b = BM_TRY(runtime::allocate(device, {.size = 4096}));
  const Buffer small = BM_TRY(runtime::allocate(device, {.size = 1024}));
  const Buffer elsewhere = BM_TRY(runtime::allocate(world.cpu(), {.size = 4096}));
  const auto make = [](Call call, uint32_t inputs, uint32_t vars) {
    return runtime::make_graph({std::move(call)}, inputs, vars);
  };
  Call call = copy_call(a, small);
  CTS_REFUSED(Code::kInvalidArgument, make(call, 0, 0));
  call = copy_call(a, b);
  call.args.pop_back();
  CTS_REFUSED(Code::kInvalidArgument, make(call, 0, 0));
  call = copy_call(a, b);
  call.args[1].slot = 1;
  CTS_REFUSED(Code::kInvalidArgument, make(call, 1, 0));
  call = copy_call(a, Buffer{});
  CTS_REFUSED(Code::kInvalidArgument, make(call, 0, 0));
  call.what = runtime::KernelCall{};
  CTS_REFUSED(Code::kInvalidArgument, make(call, 0, 0));
  call.args.clear();
  call.what = runtime::HostCall{};
  CTS_REFUSED(Code::kUnsupported, make(call, 0, 0));

  call = copy_call(a, b);
  call.args[1].slot = 0;
  const auto graph = BM_TRY(make(call, 1, 1));
  const int64_t one[] = {1}, two[] = {1, 2};
  CTS_REFUSED(Code::kInvalidArgument, graph->replay({}, one));
  CTS_REFUSED(Code::kInvalidArgument, graph->replay(std::span(&b, 1), {}));
  CTS_REFUSED(Code::kInvalidArgument, graph->replay(std::span(&b, 1), two));
  CTS_REFUSED(Code::kInvalidArgument, graph->replay(std::span(&small, 1), one));
  CTS_REFUSED(Code::kInvalidArgument, graph->replay(std::span(&elsewhere, 1), one));
  const Buffer none;
  CTS_REFUSED(Code::kInvalidArgument, graph->replay(std::span(&none, 1), one));
  BM_TRY(graph->replay(std::span(&b, 1), one));
  return graph->wait();
}

/// An input that overlaps what the graph writes, as it did not at capture: kUnsupported, nothing
/// ran, and the calls one by one still work.
Status aliased_inputs(World& world) {
  Model model;
  const uint32_t out = BM_TRY(model.add(world.device(), 8192));
  const uint32_t in = BM_TRY(model.add(world.device(), 4096));
  Tape tape(world, model);
  const uint32_t input = tape.input(in);
  BM_TRY(tape.copy({out, 0, 4096}, {input}));
  const auto graph = BM_TRY(tape.capture());
  const Buffer overlap = BM_TRY(model.buffer(out).view(1024, 4096));
  const int64_t by = 0;
  CTS_REFUSED(Code::kUnsupported, graph->replay(std::span(&overlap, 1), std::span(&by, 1)));
  BM_TRY(graph->wait());
  BM_TRY(model.check());
  BM_TRY(tape.execute(0));
  BM_TRY(model.check());
  BM_TRY(model.refill(in));
  BM_TRY(tape.replay(*graph, 0, {in}));
  return model.check();
}

/// What cannot be part of a graph runs one by one, in order with the device's work.
Status host_functions(World& world) {
  runtime::Device& device = world.device();
  const Buffer a = BM_TRY(runtime::allocate(device, {.size = 4096, .host_visible = true}));
  const Buffer b = BM_TRY(runtime::allocate(device, {.size = 4096, .host_visible = true}));
  Call add;
  add.name = "add";
  add.what = runtime::HostCall{
      .function = [](std::span<std::byte* const> args, std::span<const int64_t> vars) -> Status {
        auto* words = reinterpret_cast<int64_t*>(args[0]);
        for (int i = 0; i < 512; ++i) words[i] += vars[0];
        return {};
      },
      .device = &device,
      .vars = {0}};
  add.args = {{.buffer = a, .is_written = true}};
  const std::vector<Call> calls = {copy_call(a, b), add, copy_call(b, a)};
  CTS_REFUSED(Code::kUnsupported, runtime::make_graph(calls, 0, 1));
  std::vector<int64_t> words(512, 7);
  BM_TRY(runtime::copy_in(b, std::as_bytes(std::span(words))));
  int64_t wanted = 7;
  for (int64_t round = 0; round < 10; ++round) {
    for (const Call& call : calls) BM_TRY(runtime::execute(call, std::span(&round, 1)));
    wanted += round;
  }
  BM_TRY(runtime::copy_out(std::as_writable_bytes(std::span(words)), b));
  for (const int64_t word : words) CTS_CHECK(word == wanted);
  return {};
}

// ---- Faults

Status out_of_memory(World& world) {
  Model model;
  const uint32_t a = BM_TRY(model.add(world.device()));
  const uint32_t b = BM_TRY(model.add(world.device()));
  Tape tape(world, model);
  BM_TRY(tape.scramble(std::vector{a, b}, 6, 1));
  const auto graph = BM_TRY(tape.capture());
  const uint64_t too_much = world.device().hal().memory().total + 1;
  for (int i = 0; i < 3; ++i) {
    BM_TRY(tape.replay(*graph, i));
    CTS_REFUSED(Code::kOutOfMemory, runtime::allocate(world.device(), {.size = too_much}));
  }
  CTS_CHECK(world.device().allocator().stats().reclaims > 0);  // it gave back what was idle first
  BM_TRY(model.add(world.device(), 1 << 20));
  return model.check();
}

/// Work behind a wait that never ends: whoever waits for it gets an error in time. A device that is
/// lost tells the first cause to everybody; one that is not goes on when the signal comes.
Status stuck_stream(World& world) {
  runtime::Device& device = world.device();
  Model model;
  const uint32_t a = BM_TRY(model.add(device)), b = BM_TRY(model.add(device));
  Tape tape(world, model);
  BM_TRY(tape.copy({a}, {b}));
  const auto graph = BM_TRY(tape.capture());
  BM_TRY(tape.replay(*graph, 0));
  BM_TRY(graph->wait());
  const Buffer gate = BM_TRY(gate_of(device));
  const hal::Command wait = hal::Wait{gate.va(), 1};
  const auto begin = std::chrono::steady_clock::now();
  Status stuck = [&]() -> Status {
    const runtime::Point point =
        BM_TRY(device.stream().submit(hal::QueueKind::kCompute, {&wait, 1}));
    gate.storage->used_until(point);
    BM_TRY(graph->replay({}, std::vector<int64_t>{0}));
    BM_TRY(runtime::wait(point));
    return {};
  }();
  CTS_CHECK(!stuck && stuck.error().code == Code::kTimeout);
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(gate.host()));
  if (!device.hal().is_inline()) {
    CTS_REFUSED(Code::kTimeout, graph->wait());
    CTS_REFUSED(Code::kTimeout, device.synchronize());
  }
  CTS_CHECK(std::chrono::steady_clock::now() - begin < kDeadline);
  const Status health = device.hal().status();
  word.store(1, std::memory_order_release);
  if (health) {
    BM_TRY(device.synchronize());
    BM_TRY(graph->wait());
    BM_TRY(tape.execute(0));
    return model.check();
  }
  for (int i = 0; i < 2; ++i) {
    const Status late = graph->replay({}, std::vector<int64_t>{0});
    CTS_CHECK(!late && late.error().message.ends_with(health.error().message));
    const Status synchronized = device.synchronize();
    CTS_CHECK(!synchronized && synchronized.error().message.ends_with(health.error().message));
    CTS_CHECK(!tape.execute(0));
  }
  return {};
}

// ---- Closing

/// Everything the caller holds goes while the device works, then the device.
Status closed_while_working(World& world) {
  constexpr uint64_t kBytes = 4 << 20;
  {
    Model model;
    const uint32_t a = BM_TRY(model.add(world.device(), kBytes));
    const uint32_t b = BM_TRY(model.add(world.device(), kBytes));
    Tape tape(world, model);
    BM_TRY(tape.copy({a, 0, kBytes}, {b, 0, kBytes}));
    BM_TRY(tape.copy({b, 4096, kBytes / 2}, {a, 0, kBytes / 2}));
    BM_TRY(tape.scramble(std::vector{a, b}, 20, 3));
    const auto graph = BM_TRY(tape.capture());
    for (int64_t round = 0; round < 3; ++round) BM_TRY(tape.replay(*graph, round));
    BM_TRY(tape.execute(9));
  }
  world.close_device();
  return {};
}

Status closed_while_stuck(World& world) {
  {
    Model model;
    const uint32_t a = BM_TRY(model.add(world.device()));
    const uint32_t b = BM_TRY(model.add(world.device()));
    Tape tape(world, model);
    BM_TRY(tape.scramble(std::vector{a, b}, 6, 4));
    const auto graph = BM_TRY(tape.capture());
    const Buffer gate = BM_TRY(gate_of(world.device()));
    const hal::Command wait = hal::Wait{gate.va(), 1};
    const auto held = world.device().stream().submit(hal::QueueKind::kCompute, {&wait, 1});
    if (held) {
      gate.storage->used_until(*held);
      BM_TRY(tape.replay(*graph, 1));
    }
    CTS_CHECK(held || world.device().hal().is_inline());
  }
  const auto begin = std::chrono::steady_clock::now();
  world.close_device();
  CTS_CHECK(std::chrono::steady_clock::now() - begin < kDeadline);
  return {};
}

const Case kFaultRuntimeCases[] = {
    {"fault.bad_graphs", bad_graphs},
    {"fault.aliased_inputs", aliased_inputs, Needs::kCopies},
    {"fault.host_functions", host_functions, Needs::kCopies},
    {"fault.runtime_out_of_memory", out_of_memory, Needs::kCopies},
    {"fault.stuck_stream", stuck_stream, Needs::kCopies, short_wait_ms()},
    {"fault.closed_while_working", closed_while_working},
    {"fault.closed_while_stuck", closed_while_stuck, Needs::kNothing, short_wait_ms()}};

}  // namespace

std::span<const Case> runtime_fault_cases() { return kFaultRuntimeCases; }

}  // namespace bm::cts
