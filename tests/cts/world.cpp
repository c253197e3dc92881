#include "tests/cts/world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/program_cache.h"
#include "runtime/stream.h"
#include "tests/cts/kernels.h"
#include "tests/cts/mischief.h"

namespace bm::cts {

using runtime::Arg;
using runtime::Buffer;
using runtime::Call;

// ---- World

Result<std::unique_ptr<World>> World::open(const Subject& subject, Mischief mischief) {
  std::unique_ptr<World> world(new World(subject));
  auto cpu = BM_TRY(open_driver("CPU"));
  auto device = BM_TRY(subject.open());
  if (mischief.drops_waits) device = without_waits(std::move(device));
  if (mischief.before_host_replay)
    cpu = with_hook(std::move(cpu), std::move(mischief.before_host_replay));
  world->cpu_ = BM_TRY(runtime::make_device(std::move(cpu), "HOST", ""));
  world->device_ = BM_TRY(runtime::make_device(std::move(device), subject.name, ""));
  return world;
}

Result<runtime::Device*> World::peer() {
  if (!peer_) {
    const auto open = subject_.open_peer != nullptr ? subject_.open_peer : subject_.open;
    auto device = BM_TRY(open());
    peer_ =
        BM_TRY(runtime::make_device(std::move(device), std::string(subject_.name) + "_PEER", ""));
  }
  return peer_.get();
}

Result<runtime::KernelCall> World::kernel(runtime::Device& on, std::string_view name,
                                          std::vector<uint32_t> vars,
                                          const std::array<hal::DimExpr, 3>& grid) {
  const auto make = &on == cpu_.get() ? host_kernel : subject_.kernel;
  if (make == nullptr) return fail(Code::kUnsupported, "{} has no programs", on.name());
  hal::CodeObject code = BM_TRY(make(name, on.hal()));
  code.grid = grid;
  runtime::KernelCall call;
  call.program = BM_TRY(runtime::load_program(on, code));
  call.device = &on;
  call.vars = std::move(vars);
  return call;
}

Result<Gate> Gate::make(runtime::Device& device, hal::QueueKind kind) {
  return Gate(device, kind,
              BM_TRY(runtime::allocate(device, {.size = 64,
                                                .host_visible = true,
                                                .host_memory = true,
                                                .uncached = true,
                                                .zero = true})));
}

Status Gate::hold() {
  ++value_;
  if (device_->hal().is_inline()) return {};
  const hal::Command wait = hal::Wait{memory_.va(), value_};
  memory_.storage->used_until(BM_TRY(device_->stream().submit(kind_, {&wait, 1})));
  return {};
}

void Gate::open() {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory_.host()))
      .store(value_, std::memory_order_release);
}

// ---- Model

Result<uint32_t> Model::add(runtime::Device& on, uint64_t bytes) {
  const uint32_t memory = adopt(BM_TRY(runtime::allocate(on, {.size = bytes})));
  BM_TRY(refill(memory));
  return memory;
}

uint32_t Model::adopt(Buffer buffer) {
  std::vector<std::byte> wanted(buffer.size);
  memories_.push_back({std::move(buffer), std::move(wanted)});
  return static_cast<uint32_t>(memories_.size() - 1);
}

Status Model::refill(uint32_t memory) {
  Memory& m = memories_[memory];
  for (uint64_t at = 0; at < m.wanted.size(); at += 8) {
    const uint64_t number = numbers_();
    std::memcpy(m.wanted.data() + at, &number, std::min<uint64_t>(8, m.wanted.size() - at));
  }
  return runtime::copy_in(m.buffer, m.wanted);
}

Status Model::reuse(uint32_t memory, Gate& gate) {
  runtime::Device& device = buffer(memory).device();
  const uint64_t bytes = buffer(memory).size;
  drop(memory);
  // Whoever writes must wait for the held work and so for this thread; who does not wait is through
  // long before. A late start of the thread only makes the case blind, never wrong.
  std::thread opener([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    gate.open();
  });
  const auto again = add(device, bytes);
  opener.join();
  if (!again) return tl::unexpected(again.error());
  drop(*again);
  return {};
}

Status Model::check(uint32_t memory) const {
  const Memory& m = memories_[memory];
  if (!m.buffer.has_storage()) return {};
  std::vector<std::byte> seen(m.wanted.size());
  BM_TRY(runtime::copy_out(seen, m.buffer));
  if (seen.empty() || std::memcmp(seen.data(), m.wanted.data(), seen.size()) == 0) return {};
  size_t at = 0;
  while (seen[at] == m.wanted[at]) ++at;
  return fail(Code::kCorrupt, "memory {} on {}: byte {} of {} is {:#x}, wanted {:#x}", memory,
              m.buffer.device().name(), at, seen.size(), static_cast<unsigned>(seen[at]),
              static_cast<unsigned>(m.wanted[at]));
}

Status Model::check() const {
  for (uint32_t memory = 0; memory < memories_.size(); ++memory) BM_TRY(check(memory));
  return {};
}

// ---- Tape

uint32_t Tape::input(uint32_t memory) {
  captured_.push_back(memory);
  return kInput | static_cast<uint32_t>(captured_.size() - 1);
}

uint32_t Tape::memory_of(uint32_t place, std::span<const uint32_t> bound) const {
  return (place & kInput) != 0 ? bound[place & ~kInput] : place;
}

runtime::Device& Tape::device_of(uint32_t place) const {
  return model_.buffer(memory_of(place, captured_)).device();
}

Arg Tape::arg(Part part, bool is_written) const {
  const Buffer& whole = model_.buffer(memory_of(part.place, captured_));
  Arg made;
  made.buffer = {whole.storage, whole.offset + part.offset, part.bytes};
  if ((part.place & kInput) != 0) made.slot = static_cast<int32_t>(part.place & ~kInput);
  made.is_written = is_written;
  return made;
}

Status Tape::fold(Part dst, Part src) {
  CTS_CHECK(dst.bytes == src.bytes && dst.bytes % kFoldBytes == 0);
  CTS_CHECK(dst.offset % kPartAlign == 0 && src.offset % kPartAlign == 0);
  return fold_grid(dst, src, {.x = static_cast<uint32_t>(dst.bytes / kFoldBytes)});
}

Status Tape::fold_grid(Part dst, Part src, hal::Dim3 grid) {
  Call call;
  call.name = "fold";
  call.args = {arg(dst, true), arg(src, false)};
  call.what = BM_TRY(world_.kernel(call.args[0].buffer.device(), "fold", {0},
                                   {constant(grid.x), constant(grid.y), constant(grid.z)}));
  calls_.push_back(std::move(call));
  steps_.push_back({false, dst, src, uint64_t{grid.x} * grid.y * grid.z * kFoldBytes});
  return {};
}

Status Tape::copy(Part dst, Part src) {
  CTS_CHECK(dst.bytes == src.bytes);
  Call call;
  call.name = "copy";
  call.args = {arg(dst, true), arg(src, false)};
  call.args[0].is_read = false;
  call.what = runtime::CopyCall{};
  calls_.push_back(std::move(call));
  steps_.push_back({true, dst, src, dst.bytes});
  return {};
}

Status Tape::scramble(std::span<const uint32_t> places, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < count; ++i) {
    const size_t to = random() % places.size();
    const size_t from = (to + 1 + random() % (places.size() - 1)) % places.size();
    const uint64_t bytes = kFoldBytes * (1 + random() % 2);
    const auto part = [&] { return kPartAlign * (random() % 4); };
    const auto anywhere = [&] { return random() % (4096 - bytes); };
    const bool can_fold =
        world_.subject().kernel != nullptr && &device_of(places[to]) == &device_of(places[from]);
    if (can_fold && random() % 3 != 0) {
      BM_TRY(fold({places[to], part(), bytes}, {places[from], part(), bytes}));
    } else {
      BM_TRY(copy({places[to], anywhere(), bytes - 3}, {places[from], anywhere(), bytes - 3}));
    }
  }
  return {};
}

Result<std::unique_ptr<runtime::Graph>> Tape::capture() const {
  std::vector<Buffer> inputs;
  for (const uint32_t memory : captured_) inputs.push_back(model_.buffer(memory));
  return runtime::make_graph(calls_, static_cast<uint32_t>(inputs.size()), 1, inputs);
}

Status Tape::replay(runtime::Graph& graph, int64_t by, const std::vector<uint32_t>& bound) {
  std::vector<Buffer> inputs;
  for (const uint32_t memory : bound) inputs.push_back(model_.buffer(memory));
  BM_TRY(graph.replay(inputs, std::span(&by, 1)));
  advance(by, bound);
  return {};
}

Status Tape::execute(int64_t by) {
  for (const Call& call : calls_) BM_TRY(runtime::execute(call, std::span(&by, 1)));
  advance(by, captured_);
  return {};
}

void Tape::advance(int64_t by, std::span<const uint32_t> bound) {
  for (const Step& step : steps_) {
    std::byte* dst = model_.wanted(memory_of(step.dst.place, bound)) + step.dst.offset;
    const std::byte* src = model_.wanted(memory_of(step.src.place, bound)) + step.src.offset;
    if (step.is_copy) {
      std::memcpy(dst, src, step.bytes);
      continue;
    }
    for (uint64_t at = 0; at < step.bytes; at += 8) {
      uint64_t out = 0, in = 0;
      std::memcpy(&out, dst + at, 8);
      std::memcpy(&in, src + at, 8);
      out = out * 3 + in + static_cast<uint64_t>(by);
      std::memcpy(dst + at, &out, 8);
    }
  }
}

}  // namespace bm::cts
