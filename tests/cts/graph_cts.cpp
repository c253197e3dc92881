// Graphs of the runtime (runtime/graph.h) on one device: whatever a list of calls computes one
// after the other, its graph computes at every replay.

#include <algorithm>
#include <thread>

#include "runtime/planner.h"
#include "tests/cts/kernels.h"
#include "tests/cts/world.h"

namespace bm::cts {
namespace {

using runtime::Buffer;
using runtime::Graph;

/// `count` memories of 4096 bytes on the device.
Result<std::vector<uint32_t>> memories(World& world, Model& model, size_t count) {
  std::vector<uint32_t> made(count);
  for (uint32_t& memory : made) memory = BM_TRY(model.add(world.device()));
  return made;
}

// ---- Inputs and variables

Status changed_inputs(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 5));
  const uint32_t state = m[4];
  Tape tape(world, model);
  const uint32_t read = tape.input(m[0]), written = tape.input(m[1]);
  BM_TRY(tape.fold({written}, {read}));
  BM_TRY(tape.fold({state}, {written}));
  BM_TRY(tape.copy({written, 1000, 513}, {state, 7, 513}));
  BM_TRY(tape.fold({state, 1024, 512}, {read, 2048, 512}));
  const auto graph = BM_TRY(tape.capture());
  for (uint32_t round = 0; round < 60; ++round) {
    const uint32_t other = (round + 1 + round / 4 % 3) % 4;  // never the same memory twice
    BM_TRY(tape.replay(*graph, round, {m[round % 4], m[other]}));
    if (round % 9 == 0) BM_TRY(model.check());
  }
  return model.check();
}

/// Inputs that are views into larger memory, at another place each time.
Status inputs_at_offsets(World& world) {
  Model model;
  const uint32_t pool = BM_TRY(model.add(world.device(), 32 << 10));
  const uint32_t out = BM_TRY(model.add(world.device(), 4096));
  std::vector<uint32_t> views;
  for (uint64_t at = 0; at < 8; ++at) {
    const Buffer& whole = model.buffer(pool);
    views.push_back(model.adopt(BM_TRY(whole.view(at * 4096, 4096))));
    BM_TRY(model.refill(views.back()));
  }
  model.drop(pool);
  Tape tape(world, model);
  const uint32_t input = tape.input(views[0]);
  BM_TRY(tape.copy({out, 0, 1000}, {input, 3000, 1000}));
  BM_TRY(tape.fold({out, 1024, 1024}, {input, 2048, 1024}));
  const auto graph = BM_TRY(tape.capture());
  for (const uint32_t view : views) {
    BM_TRY(tape.replay(*graph, 5, {view}));
    BM_TRY(model.check());
  }
  return {};
}

Status changed_variables(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 2));
  Tape tape(world, model);
  BM_TRY(tape.fold({m[0]}, {m[1]}));
  BM_TRY(tape.fold({m[1]}, {m[0]}));
  const auto graph = BM_TRY(tape.capture());
  for (const int64_t by : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{1}, int64_t{1}, INT64_MAX,
                           INT64_MIN, int64_t{1} << 32})
    BM_TRY(tape.replay(*graph, by));
  return model.check();
}

/// The grid follows variables; the kernel's own bound is the whole buffer, so that a launch too
/// large shows as well as one too small.
Status symbolic_dimensions(World& world) {
  constexpr uint64_t kItems = 4096;
  const Buffer out = BM_TRY(runtime::allocate(world.device(), {.size = kItems * 8}));
  // Variables: items and start; ceil((start - 5) / 64) blocks.
  hal::DimExpr blocks = constant(-5);
  blocks.terms = {{1, 1}};
  blocks.divisor = kBlock;
  runtime::Call call;
  call.name = "iota";
  call.what =
      BM_TRY(world.kernel(world.device(), "iota", {0, 1}, {blocks, constant(1), constant(1)}));
  call.args = {{.buffer = out, .is_written = true, .is_read = false}};
  const auto graph = BM_TRY(runtime::make_graph({call}, 0, 2));
  std::vector<int64_t> seen(kItems);
  for (const int64_t start : {5, 6, 69, 70, 1000, 4, -3, 0, 4101, 5, 133}) {
    std::ranges::fill(seen, int64_t{-77});
    BM_TRY(runtime::copy_in(out, std::as_bytes(std::span(seen))));
    const int64_t vars[] = {kItems, start};
    BM_TRY(graph->replay({}, vars));
    BM_TRY(runtime::copy_out(std::as_writable_bytes(std::span(seen)), out));
    const int64_t written = start <= 5 ? 0 : (start - 5 + kBlock - 1) / kBlock * kBlock;
    for (int64_t i = 0; i < static_cast<int64_t>(kItems); ++i)
      CTS_CHECK(seen[static_cast<size_t>(i)] == (i < written ? start + i : -77));
  }
  return {};
}

Status three_axes(World& world) {
  const Buffer counts = BM_TRY(runtime::allocate(world.device(), {.size = 43 * 4}));
  std::vector<uint32_t> seen(43, 0);
  BM_TRY(runtime::copy_in(counts, std::as_bytes(std::span(seen))));
  runtime::Call call;
  call.name = "mark";
  call.what =
      BM_TRY(world.kernel(world.device(), "mark", {}, {constant(7), constant(3), constant(2)}));
  call.args = {{.buffer = counts, .is_written = true}};
  const auto graph = BM_TRY(runtime::make_graph({call, call}, 0, 0));
  for (int i = 0; i < 5; ++i) BM_TRY(graph->replay({}, {}));
  BM_TRY(runtime::copy_out(std::as_writable_bytes(std::span(seen)), counts));
  CTS_CHECK(std::all_of(seen.begin(), seen.end() - 1, [](uint32_t count) { return count == 10; }));
  CTS_CHECK(seen.back() == 0);
  return {};
}

// ---- Order

/// Read after write, write after read and write after write between few memories.
Status dependencies(World& world) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Model model;
    const auto m = BM_TRY(memories(world, model, 3));
    Tape tape(world, model);
    BM_TRY(tape.scramble(m, 80, seed));
    const auto graph = BM_TRY(tape.capture());
    CTS_CHECK(graph->num_calls() == 80);
    for (int64_t round = 0; round < 8; ++round) BM_TRY(tape.replay(*graph, round));
    BM_TRY(model.check());
  }
  return {};
}

/// A long chain in which every call needs the one before.
Status long_chain(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 2));
  Tape tape(world, model);
  for (uint32_t i = 0; i < 1500; ++i)
    BM_TRY(tape.fold({m[i % 2], 0, 512}, {m[(i + 1) % 2], 0, 512}));
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 6; ++round) BM_TRY(tape.replay(*graph, round));
  return model.check();
}

/// Every call works on large memory: one that starts early meets the one before half done.
Status large_chain(World& world) {
  constexpr uint64_t kBytes = 8 << 20;
  Model model;
  const uint32_t a = BM_TRY(model.add(world.device(), kBytes));
  const uint32_t b = BM_TRY(model.add(world.device(), kBytes));
  const uint32_t c = BM_TRY(model.add(world.device(), kBytes));
  Tape tape(world, model);
  BM_TRY(tape.fold({a, 0, kBytes}, {b, 0, kBytes}));
  BM_TRY(tape.copy({c, 0, kBytes}, {a, 0, kBytes}));
  BM_TRY(tape.fold({a, 0, kBytes}, {c, 0, kBytes}));
  BM_TRY(tape.copy({b, 1, kBytes - 1}, {c, 0, kBytes - 1}));
  BM_TRY(tape.fold({c, 0, kBytes}, {b, 0, kBytes}));
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 3; ++round) BM_TRY(tape.replay(*graph, round));
  return model.check();
}

/// Ranges of one memory that overlap in part.
Status views(World& world) {
  Model model;
  const uint32_t a = BM_TRY(model.add(world.device(), 8192));
  const uint32_t b = BM_TRY(model.add(world.device(), 8192));
  Tape tape(world, model);
  for (uint64_t at = 0; at <= 6; ++at) {
    BM_TRY(tape.fold({a, at * 1024, 1536}, {b, 5120 - at / 2 * 1024, 1536}));
    BM_TRY(tape.copy({b, at * 700 + 1, 999}, {a, at * 1000 + 3, 999}));
    BM_TRY(tape.copy({a, at * 300, 500}, {a, at * 300 + 2500, 500}));
    BM_TRY(tape.fold({b, 1024, 512}, {b, 2048, 512}));
  }
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 10; ++round) BM_TRY(tape.replay(*graph, round));
  return model.check();
}

Status copies_in_order(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 3));
  Tape tape(world, model);
  for (uint32_t i = 0; i < 60; ++i)
    BM_TRY(
        tape.copy({m[i % 3], i * 37 % 2000, 1500 + i}, {m[(i + 1) % 3], i * 91 % 2000, 1500 + i}));
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 5; ++round) BM_TRY(tape.replay(*graph, round));
  return model.check();
}

/// Launches and copies of nothing stand between calls that depend on each other.
Status nothing_to_do(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 2));
  Tape tape(world, model);
  BM_TRY(tape.fold({m[0]}, {m[1]}));
  BM_TRY(tape.fold_grid({m[0]}, {m[1]}, {.x = 0}));
  BM_TRY(tape.fold_grid({m[1]}, {m[0]}, {.x = 8, .y = 0, .z = 3}));
  BM_TRY(tape.copy({m[1], 5, 0}, {m[0], 5, 0}));
  BM_TRY(tape.fold({m[1]}, {m[0]}));
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 5; ++round) BM_TRY(tape.replay(*graph, round));
  BM_TRY(model.check());
  const auto empty = BM_TRY(runtime::make_graph({}, 0, 0));
  BM_TRY(empty->replay({}, {}));
  return empty->wait();
}

// ---- Several graphs, eager work

Status interleaved(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 3));
  std::vector<Tape> tapes;
  std::vector<std::unique_ptr<Graph>> graphs;
  for (uint64_t seed = 10; seed < 14; ++seed) {
    BM_TRY(tapes.emplace_back(world, model).scramble(m, 12, seed));
    graphs.push_back(BM_TRY(tapes.back().capture()));
  }
  // Nobody waits between replays of different graphs; each must still see what the others did.
  for (uint32_t round = 0; round < 60; ++round) {
    const size_t i = round * round % 7 % 4;
    BM_TRY(tapes[i].replay(*graphs[i], round));
  }
  return model.check();
}

Status eager_work_between(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 3));
  Tape graphed(world, model), eager(world, model);
  BM_TRY(graphed.scramble(m, 10, 21));
  BM_TRY(eager.scramble(m, 5, 22));
  const auto graph = BM_TRY(graphed.capture());
  for (int64_t round = 0; round < 20; ++round) {
    BM_TRY(graphed.replay(*graph, round));
    BM_TRY(eager.execute(-round));
    if (round % 4 == 0) BM_TRY(model.refill(m[static_cast<size_t>(round) % 3]));
    if (round % 7 == 0) BM_TRY(model.check(m[1]));
  }
  return model.check();
}

/// A graph of several queues is replayed while the copy queue is held up by the host.
Status behind_held_work(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 3));
  Tape before(world, model), tape(world, model);
  BM_TRY(before.fold({m[0]}, {m[1]}));
  BM_TRY(tape.fold({m[0]}, {m[1]}));
  BM_TRY(tape.copy({m[2]}, {m[0]}));
  BM_TRY(tape.fold({m[1]}, {m[2]}));
  BM_TRY(tape.copy({m[0], 1, 700}, {m[1], 5, 700}));
  const auto graph = BM_TRY(tape.capture());
  Gate gate = BM_TRY(Gate::make(world.device(), hal::QueueKind::kCopy));
  for (int64_t round = 1; round <= 10; ++round) {
    BM_TRY(before.execute(7));
    BM_TRY(gate.hold());
    const Status replayed = tape.replay(*graph, round);
    gate.open();
    BM_TRY(replayed);
    BM_TRY(model.check());
  }
  return {};
}

/// Different graphs may run on different threads.
Status threads(World& world) {
  constexpr size_t kThreads = 3;
  std::vector<Status> results(kThreads);
  std::vector<std::thread> all;
  for (size_t t = 0; t < kThreads; ++t) {
    const auto run = [&world, t]() -> Status {
      Model model;
      const auto m = BM_TRY(memories(world, model, 3));
      Tape tape(world, model);
      BM_TRY(tape.scramble(m, 10, 30 + t));
      const auto graph = BM_TRY(tape.capture());
      for (int64_t round = 0; round < 40; ++round) {
        BM_TRY(tape.replay(*graph, round));
        if (round % 10 == 0) BM_TRY(model.check());
      }
      return model.check();
    };
    all.emplace_back([&results, t, run] { results[t] = run(); });
  }
  for (std::thread& thread : all) thread.join();
  for (const Status& result : results) BM_TRY(result);
  return {};
}

Status many_graphs(World& world) {
  Model model;
  const auto m = BM_TRY(memories(world, model, 2));
  Tape tape(world, model);
  BM_TRY(tape.scramble(m, 4, 40));
  std::vector<std::unique_ptr<Graph>> graphs;
  for (int i = 0; i < 64; ++i) graphs.push_back(BM_TRY(tape.capture()));
  for (int64_t round = 0; round < 3; ++round)
    for (const auto& graph : graphs) BM_TRY(tape.replay(*graph, round));
  return model.check();
}

// ---- Memory

/// The caller frees an input while the replay may still read it, and gets its memory again.
Status freed_inputs(World& world) {
  constexpr uint64_t kBytes = 1 << 20;
  Model model;
  const uint32_t state = BM_TRY(model.add(world.device(), kBytes));
  const uint32_t first = BM_TRY(model.add(world.device(), kBytes));
  Tape tape(world, model);
  const uint32_t input = tape.input(first);
  BM_TRY(tape.fold({state, 0, kBytes}, {input, 0, kBytes}));
  BM_TRY(tape.fold({state, 0, kBytes}, {input, 0, kBytes}));
  const auto graph = BM_TRY(tape.capture());
  model.drop(first);
  Gate gate = BM_TRY(Gate::make(world.device()));
  for (int64_t round = 0; round < 8; ++round) {
    const uint32_t mine = BM_TRY(model.add(world.device(), kBytes));
    BM_TRY(gate.hold());
    BM_TRY(tape.replay(*graph, round, {mine}));
    BM_TRY(model.reuse(mine, gate));
  }
  return model.check();
}

/// Fixed memory is the graph's as long as it lives, and a running replay outlives its graph.
Status dropped_graph(World& world) {
  constexpr uint64_t kBytes = 4 << 20;
  Model model;
  const uint32_t out = BM_TRY(model.add(world.device(), kBytes));
  for (int64_t round = 0; round < 4; ++round) {
    const uint32_t in = BM_TRY(model.add(world.device(), kBytes));
    std::unique_ptr<Graph> graph;
    {
      Tape tape(world, model);
      BM_TRY(tape.fold({out, 0, kBytes}, {in, 0, kBytes}));
      BM_TRY(tape.copy({in, 0, 4096}, {out, 4096, 4096}));
      BM_TRY(tape.fold({out, 0, kBytes}, {in, 0, kBytes}));
      graph = BM_TRY(tape.capture());
      BM_TRY(tape.replay(*graph, round));
    }
    model.drop(in);
    graph.reset();
  }
  return model.check();
}

/// Intermediates of which several live at the same place, as the planner puts them.
Status planned_memory(World& world) {
  constexpr uint32_t kSteps = 24;
  constexpr uint64_t kBytes = 4096;
  std::vector<runtime::PlanBuffer> wanted;
  // Intermediate i is made by call i and read by calls i + 1 and i + 3.
  for (uint32_t i = 0; i < kSteps; ++i)
    wanted.push_back({.size = kBytes, .first_use = i, .last_use = std::min(i + 3, kSteps)});
  const runtime::Plan plan = BM_TRY(runtime::plan_memory(wanted));
  CTS_CHECK(plan.arena_sizes.at(0) < kSteps * kBytes / 2);  // else nothing is shared
  Model model;
  const uint32_t arena = BM_TRY(model.add(world.device(), plan.arena_sizes[0]));
  const uint32_t in = BM_TRY(model.add(world.device()));
  const uint32_t out = BM_TRY(model.add(world.device()));
  Tape tape(world, model);
  const uint32_t input = tape.input(in);
  const auto at = [&](uint32_t i) { return Part{arena, plan.offsets[i], kBytes}; };
  BM_TRY(tape.copy(at(0), {input}));
  for (uint32_t i = 1; i < kSteps; ++i) {
    if (i % 3 == 0) BM_TRY(tape.copy(at(i), at(i - 1)));
    BM_TRY(tape.fold(at(i), at(i < 3 ? i - 1 : i - 3)));
  }
  BM_TRY(tape.fold({out}, at(kSteps - 1)));
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 10; ++round) {
    BM_TRY(tape.replay(*graph, round, {in}));
    BM_TRY(model.refill(in));
  }
  return model.check();
}

constexpr Case kGraphCases[] = {{"graph.changed_inputs", changed_inputs, Needs::kKernels},
                                {"graph.inputs_at_offsets", inputs_at_offsets, Needs::kKernels},
                                {"graph.changed_variables", changed_variables, Needs::kKernels},
                                {"graph.symbolic_dimensions", symbolic_dimensions, Needs::kKernels},
                                {"graph.three_axes", three_axes, Needs::kKernels},
                                {"graph.dependencies", dependencies, Needs::kCopies},
                                {"graph.long_chain", long_chain, Needs::kKernels},
                                {"graph.large_chain", large_chain, Needs::kKernels},
                                {"graph.views", views, Needs::kKernels},
                                {"graph.copies_in_order", copies_in_order, Needs::kCopies},
                                {"graph.nothing_to_do", nothing_to_do, Needs::kKernels},
                                {"graph.interleaved", interleaved, Needs::kCopies},
                                {"graph.eager_work_between", eager_work_between, Needs::kCopies},
                                {"graph.behind_held_work", behind_held_work, Needs::kKernels},
                                {"graph.threads", threads, Needs::kCopies},
                                {"graph.many_graphs", many_graphs, Needs::kCopies},
                                {"graph.freed_inputs", freed_inputs, Needs::kKernels},
                                {"graph.dropped_graph", dropped_graph, Needs::kKernels},
                                {"graph.planned_memory", planned_memory, Needs::kKernels}};

}  // namespace

std::span<const Case> graph_cases() { return kGraphCases; }

}  // namespace bm::cts
