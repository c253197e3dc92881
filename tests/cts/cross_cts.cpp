// Two devices: the subject with the CPU, and with another instance of itself (cross.peer_*).
// Copies, kernels and graphs over both, ordered by timelines.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/stream.h"
#include "tests/cts/world.h"

namespace bm::cts {
namespace {

using runtime::Buffer;

/// Bytes that take several staging slots (runtime/staging.h).
constexpr uint64_t kLarge = (9 << 20) + 5;

/// a → b → c → d and back to e, of every size.
Status copy_around(World& world, runtime::Device& first, runtime::Device& second) {
  for (const uint64_t bytes : Sizes{1, 1000, 4096, kLarge}) {
    Model model;
    const uint32_t a = BM_TRY(model.add(first, bytes)), b = BM_TRY(model.add(second, bytes)),
                   c = BM_TRY(model.add(second, bytes)), d = BM_TRY(model.add(first, bytes)),
                   e = BM_TRY(model.add(second, bytes));
    Tape tape(world, model);
    const auto whole = [bytes](uint32_t memory) { return Part{memory, 0, bytes}; };
    BM_TRY(tape.copy(whole(b), whole(a)));
    BM_TRY(tape.copy(whole(c), whole(b)));
    BM_TRY(tape.copy(whole(d), whole(c)));
    BM_TRY(tape.copy(whole(e), whole(d)));
    BM_TRY(tape.execute(0));
    BM_TRY(model.refill(a));  // nothing still reads it late
    BM_TRY(model.check());
  }
  return {};
}

/// A value that goes to the other device and back, worked on at each place.
Status add_chain(Tape& tape, Model& model, runtime::Device& first, runtime::Device& second) {
  const uint32_t a = BM_TRY(model.add(first)), b = BM_TRY(model.add(second)),
                 c = BM_TRY(model.add(first)), d = BM_TRY(model.add(second));
  BM_TRY(tape.fold({a}, {c}));
  BM_TRY(tape.copy({b}, {a}));
  BM_TRY(tape.fold({b}, {d}));
  BM_TRY(tape.copy({c}, {b}));
  BM_TRY(tape.fold({c}, {a}));
  BM_TRY(tape.copy({d, 1, 3000}, {c, 77, 3000}));
  return tape.fold({d}, {b});
}

Status run_chain(World& world, runtime::Device& first, runtime::Device& second) {
  Model model;
  Tape tape(world, model);
  BM_TRY(add_chain(tape, model, first, second));
  for (int64_t round = 0; round < 15; ++round) BM_TRY(tape.execute(round));
  BM_TRY(model.check());
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 25; ++round) {
    BM_TRY(tape.replay(*graph, round));
    if (round % 8 == 0) BM_TRY(tape.execute(round));
    if (round % 10 == 0) BM_TRY(model.check());
  }
  return model.check();
}

/// The graph of a tape, or nullptr where a device cannot reach memory of another: then the calls
/// run one by one, as the tensor layer does it.
Result<std::unique_ptr<runtime::Graph>> try_capture(const Tape& tape, bool may_fall_back) {
  auto graph = tape.capture();
  if (!graph && may_fall_back && graph.error().code == Code::kUnsupported)
    return std::unique_ptr<runtime::Graph>();
  return graph;
}

/// Random calls over memories of all the devices, as graphs that follow each other.
Status run_scrambled(World& world, const std::vector<runtime::Device*>& devices,
                     bool may_fall_back = false) {
  Model model;
  std::vector<uint32_t> memories;
  for (runtime::Device* device : devices)
    for (int i = 0; i < 2; ++i) memories.push_back(BM_TRY(model.add(*device)));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Tape one(world, model), other(world, model);
    BM_TRY(one.scramble(memories, 40, seed));
    BM_TRY(other.scramble(memories, 7, seed + 100));
    const auto first = BM_TRY(try_capture(one, may_fall_back));
    const auto second = BM_TRY(try_capture(other, may_fall_back));
    for (int64_t round = 0; round < 6; ++round) {
      BM_TRY(first ? one.replay(*first, round) : one.execute(round));
      BM_TRY(second ? other.replay(*second, round) : other.execute(round));
      if (round == 3) BM_TRY(other.execute(round));
    }
    BM_TRY(model.check());
  }
  return {};
}

// ---- With the CPU

Status copies(World& world) {
  BM_TRY(copy_around(world, world.cpu(), world.device()));
  return copy_around(world, world.device(), world.cpu());
}

Status chain(World& world) {
  BM_TRY(run_chain(world, world.cpu(), world.device()));
  return run_chain(world, world.device(), world.cpu());
}

Status scrambled(World& world) { return run_scrambled(world, {&world.cpu(), &world.device()}); }

/// Inputs of either device, read and written by the other.
Status changed_inputs(World& world) {
  Model model;
  std::vector<uint32_t> here, there;
  for (int i = 0; i < 3; ++i) {
    here.push_back(BM_TRY(model.add(world.cpu())));
    there.push_back(BM_TRY(model.add(world.device())));
  }
  const uint32_t kept = BM_TRY(model.add(world.device()));
  Tape tape(world, model);
  const uint32_t from = tape.input(here[0]), to = tape.input(here[1]), far = tape.input(there[0]);
  BM_TRY(tape.copy({far}, {from}));
  BM_TRY(tape.copy({kept, 100, 2000}, {far, 7, 2000}));
  BM_TRY(tape.copy({to, 0, 4000}, {kept, 96, 4000}));
  const auto graph = BM_TRY(tape.capture());
  for (uint32_t round = 0; round < 24; ++round) {
    const std::vector<uint32_t> bound = {here[round % 3], here[(round + 1 + round / 3 % 2) % 3],
                                         there[round / 2 % 3]};
    BM_TRY(tape.replay(*graph, 0, bound));
    if (round % 5 == 0) BM_TRY(model.refill(here[round % 3]));
    if (round % 7 == 0) BM_TRY(model.check());
  }
  return model.check();
}

/// Memory of the CPU is freed while the device may still read it, and handed out again.
Status freed_inputs(World& world) {
  constexpr uint64_t kBytes = 2 << 20;
  Model model;
  const uint32_t out = BM_TRY(model.add(world.device(), kBytes));
  const uint32_t first = BM_TRY(model.add(world.cpu(), kBytes));
  Tape tape(world, model);
  const uint32_t input = tape.input(first);
  BM_TRY(tape.copy({out, 0, kBytes}, {input, 0, kBytes}));
  const auto graph = BM_TRY(tape.capture());
  model.drop(first);
  Gate gate = BM_TRY(Gate::make(world.device()));
  for (int round = 0; round < 8; ++round) {
    const uint32_t mine = BM_TRY(model.add(world.cpu(), kBytes));
    BM_TRY(gate.hold());
    BM_TRY(tape.replay(*graph, 0, {mine}));
    BM_TRY(model.reuse(mine, gate));
    BM_TRY(model.check());
  }
  return {};
}

/// Returns when both queues of the device have done everything they were given, waited for or not.
Status drain(hal::Device& device) {
  const auto memory =
      BM_TRY(device.allocate({.size = 4096, .host_visible = true, .uncached = true, .zero = true}));
  auto* const words = reinterpret_cast<uint64_t*>(memory->host());
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  for (uint64_t i = 0; i < 2; ++i) {
    const hal::Command end[] = {hal::Signal{hal::offset(memory->va(), 8 * i), 1}};
    const auto kind = i == 0 ? hal::QueueKind::kCompute : hal::QueueKind::kCopy;
    BM_TRY(device.queue(kind).submit(end));
    while (std::atomic_ref(words[i]).load() != 1) {
      CTS_CHECK(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
  }
  return {};
}

/// CPU, device, CPU again in one graph.
Status replay_once(World& world) {
  Model model;
  Tape tape(world, model);
  BM_TRY(add_chain(tape, model, world.cpu(), world.device()));
  const auto graph = BM_TRY(tape.capture());
  BM_TRY(tape.replay(*graph, 3));
  Status checked = model.check();
  // Without waits the end of one queue says nothing of the other.
  BM_TRY(drain(world.device().hal()));
  return checked;
}

/// The cases above can fail: without its waits the device is through before the CPU has begun.
Status removed_wait(const Subject& subject) {
  {
    const auto sound = BM_TRY(World::open(subject));
    BM_TRY(replay_once(*sound));
  }
  World* ours = nullptr;
  Mischief mischief{.drops_waits = true, .before_host_replay = {}};
  mischief.before_host_replay = [&ours] {
    runtime::Timeline& timeline = ours->device().stream().timeline();
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!timeline.reached(timeline.last()) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
  };
  const auto world = BM_TRY(World::open(subject, mischief));
  ours = world.get();
  CTS_REFUSED(Code::kCorrupt, replay_once(*world));
  return {};
}

// ---- With another instance

Status peer_copies(World& world) {
  return copy_around(world, world.device(), *BM_TRY(world.peer()));
}

Status peer_chain(World& world) {
  // Graphs need memory that both reach: by way of the CPU's everybody does.
  Model model;
  Tape tape(world, model);
  runtime::Device& peer = *BM_TRY(world.peer());
  const uint32_t a = BM_TRY(model.add(world.device())), b = BM_TRY(model.add(world.cpu())),
                 c = BM_TRY(model.add(peer)), d = BM_TRY(model.add(world.cpu()));
  BM_TRY(tape.copy({b}, {a}));
  BM_TRY(tape.copy({c}, {b}));
  BM_TRY(tape.fold({c}, {c}));
  BM_TRY(tape.copy({d}, {c}));
  BM_TRY(tape.copy({a}, {d}));
  BM_TRY(tape.fold({a}, {a}));
  for (int64_t round = 0; round < 10; ++round) BM_TRY(tape.execute(round));
  BM_TRY(model.check());
  const auto graph = BM_TRY(tape.capture());
  for (int64_t round = 0; round < 20; ++round) {
    BM_TRY(tape.replay(*graph, round));
    if (round % 7 == 0) BM_TRY(tape.execute(round));
  }
  return model.check();
}

/// Work of one instance waits for a Point of the other, which the host holds up.
Status peer_points(World& world) {
  runtime::Device& peer = *BM_TRY(world.peer());
  runtime::Device& device = world.device();
  const bool is_inline = device.hal().is_inline();
  const Buffer gate = BM_TRY(runtime::allocate(
      peer,
      {.size = 64, .host_visible = true, .host_memory = true, .uncached = true, .zero = true}));
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(gate.host()));
  Model model;
  const uint32_t a = BM_TRY(model.add(world.cpu())), b = BM_TRY(model.add(world.cpu())),
                 c = BM_TRY(model.add(world.cpu()));
  const auto copy = [&](runtime::Device& on, uint32_t dst, uint32_t src) -> Result<hal::Command> {
    const hal::GpuVa to = BM_TRY(model.buffer(dst).storage->va_on(on));
    const hal::GpuVa from = BM_TRY(model.buffer(src).storage->va_on(on));
    return hal::Copy{hal::offset(to, model.buffer(dst).offset),
                     hal::offset(from, model.buffer(src).offset), 4096};
  };
  for (uint64_t round = 1; round <= 10; ++round) {
    if (is_inline) word.store(round);  // would stand at the wait itself
    const hal::Command first[] = {hal::Wait{gate.va(), round}, BM_TRY(copy(peer, b, a))};
    const hal::Command second[] = {BM_TRY(copy(device, c, b))};
    if (is_inline) BM_TRY(model.refill(a));
    const runtime::Point held = BM_TRY(peer.stream().submit(hal::QueueKind::kCompute, first));
    const runtime::Point last =
        BM_TRY(device.stream().submit_after(hal::QueueKind::kCompute, second, std::span(&held, 1)));
    if (!is_inline) BM_TRY(model.refill(a));
    word.store(round, std::memory_order_release);
    BM_TRY(runtime::wait(last));
    for (const uint32_t memory : {b, c}) std::copy_n(model.wanted(a), 4096, model.wanted(memory));
    BM_TRY(model.check());
  }
  return {};
}

Status peer_scrambled(World& world) {
  return run_scrambled(world, {&world.device(), &world.cpu(), BM_TRY(world.peer())}, true);
}

constexpr Case kCrossCases[] = {{"cross.copies", copies, Needs::kCopies},
                                {"cross.chain", chain, Needs::kKernels},
                                {"cross.scrambled", scrambled, Needs::kCopies},
                                {"cross.changed_inputs", changed_inputs, Needs::kCopies},
                                {"cross.freed_inputs", freed_inputs, Needs::kCopies},
                                {"cross.removed_wait", removed_wait, Needs::kKernels},
                                {"cross.peer_copies", peer_copies, Needs::kCopies},
                                {"cross.peer_chain", peer_chain, Needs::kKernels},
                                {"cross.peer_points", peer_points, Needs::kCopies},
                                {"cross.peer_scrambled", peer_scrambled, Needs::kCopies}};

}  // namespace

std::span<const Case> cross_cases() { return kCrossCases; }

}  // namespace bm::cts
