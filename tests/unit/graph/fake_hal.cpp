#include "tests/unit/graph/fake_hal.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace bm::fake {
namespace {

constexpr uint32_t kTagShift = 57;  // above every user address
constexpr uint64_t kAddressMask = (uint64_t{1} << kTagShift) - 1;

hal::GpuVa tagged(const std::byte* memory, uint32_t id) {
  return hal::GpuVa{reinterpret_cast<uintptr_t>(memory) | (uint64_t{id} << kTagShift)};
}

std::atomic_ref<uint64_t> word(std::byte* memory) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory));
}

bool is_movable(const hal::Command& command) {
  return std::holds_alternative<hal::Dispatch>(command) ||
         std::holds_alternative<hal::Copy>(command);
}

void apply(hal::Command& command, const hal::Patch& patch, uint64_t value, FakeDevice& device) {
  using enum hal::PatchField;
  const auto narrow = static_cast<uint32_t>(value);
  switch (patch.field) {
    case kKernarg: {
      auto* words =
          reinterpret_cast<uint64_t*>(device.translate(std::get<hal::Dispatch>(command).kernarg));
      words[patch.word] = value;
      break;
    }
    case kGridX: std::get<hal::Dispatch>(command).grid.x = narrow; break;
    case kGridY: std::get<hal::Dispatch>(command).grid.y = narrow; break;
    case kGridZ: std::get<hal::Dispatch>(command).grid.z = narrow; break;
    case kCopyDst: std::get<hal::Copy>(command).dst = hal::GpuVa{value}; break;
    case kCopySrc: std::get<hal::Copy>(command).src = hal::GpuVa{value}; break;
    case kCopyBytes: std::get<hal::Copy>(command).bytes = value; break;
    case kSignalAddress: break;
    case kSignalValue:
      if (auto* wait = std::get_if<hal::Wait>(&command)) wait->value = value;
      if (auto* signal = std::get_if<hal::Signal>(&command)) signal->value = value;
      break;
  }
}

}  // namespace

// ---- kernels

hal::CodeObject mix_kernel(uint32_t buffers, uint32_t vars, hal::DimExpr grid_x) {
  hal::CodeObject code;
  code.entry = "mix";
  code.arch = "fake";
  code.num_buffers = buffers;
  code.num_vars = vars;
  code.grid[0] = std::move(grid_x);
  return code;
}

void mix(std::vector<uint64_t*> buffers, const int64_t* vars, uint32_t num_vars, uint64_t words) {
  for (uint64_t i = 0; i < words; ++i) {
    uint64_t sum = buffers[0][i] * 31;
    for (size_t k = 1; k < buffers.size(); ++k) sum += buffers[k][i] * (2 * k + 3);
    for (uint32_t v = 0; v < num_vars; ++v) sum += static_cast<uint64_t>(vars[v]);
    buffers[0][i] = sum;
  }
}

// ---- memory

FakeBuffer::FakeBuffer(const hal::BufferDesc& desc, uint32_t device_id)
    : Buffer(desc, {}, nullptr),
      memory_(desc.external ? static_cast<std::byte*>(desc.external)
                            : static_cast<std::byte*>(std::calloc(1, desc.size))) {
  va_ = tagged(memory_, device_id);
  if (device_id == 0 || desc.host_visible || desc.host_memory) host_ = memory_;
}

FakeBuffer::~FakeBuffer() {
  if (desc_.external == nullptr) std::free(memory_);
}

std::byte* peek(const runtime::Buffer& buffer) {
  return reinterpret_cast<std::byte*>(hal::raw(buffer.va()) & kAddressMask);
}

// ---- world

World::World(uint32_t seed) : random_(seed), thread_([this] { run(); }) {}

World::~World() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void World::set(const Knobs& knobs) {
  const std::lock_guard lock(mutex_);
  knobs_ = knobs;
  ignores_waits_ = knobs.ignore_waits;
  wake_.notify_all();
}

void World::drain() {
  std::unique_lock lock(mutex_);
  while (std::any_of(queues_.begin(), queues_.end(),
                     [](FakeQueue* q) { return !q->items_.empty(); })) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

std::string World::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void World::report_fault(const std::string& what) {
  // Called from the scheduler with the lock held and from inline devices without: try is enough,
  // any fault fails the test.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (fault_.empty()) fault_ = what;
}

void World::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    if (!knobs_.is_held && step()) continue;
    const bool has_work = std::any_of(queues_.begin(), queues_.end(),
                                      [](FakeQueue* q) { return !q->items_.empty(); });
    if (!has_work || knobs_.is_held) {
      wake_.wait(lock);
    } else {
      // Everything waits for a signal the host will write.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

bool World::step() {
  if (queues_.empty()) return false;
  std::vector<FakeQueue*> order = queues_;
  std::shuffle(order.begin(), order.end(), random_);
  const auto prefer = [&](bool is_copy) {
    std::partition(order.begin(), order.end(),
                   [&](FakeQueue* q) { return q->is_copy_ == is_copy; });
  };
  if (knobs_.prefer_copies) prefer(true);
  if (knobs_.prefer_compute) prefer(false);
  return std::any_of(order.begin(), order.end(),
                     [&](FakeQueue* queue) { return try_execute(*queue); });
}

/// Executes one command of a queue if one can run.
bool World::try_execute(FakeQueue& queue) {
  if (queue.items_.empty()) return false;
  if (queue.device_.is_lost) {
    // A lost device executes nothing any more.
    for (const FakeQueue::Item& item : queue.items_)
      if (item.last_of != nullptr) item.last_of->in_flight.store(0, std::memory_order_release);
    queue.items_.clear();
    return true;
  }
  // Kernels and copies up to the next ordering command may run in any order.
  const auto ignored = [&](const hal::Command& c) {
    return knobs_.ignore_barriers && std::holds_alternative<hal::Barrier>(c);
  };
  size_t movable = 0;
  while (movable < queue.items_.size() &&
         (is_movable(queue.items_[movable].command) || ignored(queue.items_[movable].command)))
    ++movable;
  const size_t at = movable == 0 ? 0 : random_() % movable;
  const FakeQueue::Item item = queue.items_[at];
  if (const auto* wait = std::get_if<hal::Wait>(&item.command); wait && !knobs_.ignore_waits) {
    std::byte* signal = queue.device_.translate(wait->signal);
    if (signal != nullptr && word(signal).load(std::memory_order_acquire) < wait->value)
      return false;
  }
  queue.items_.erase(queue.items_.begin() + static_cast<ptrdiff_t>(at));
  // Before the command: it may be the signal after which the recording is destroyed.
  if (item.last_of != nullptr) item.last_of->in_flight.fetch_sub(1, std::memory_order_release);
  queue.device_.execute(item.command);
  return true;
}

// ---- queue

FakeQueue::FakeQueue(World& world, FakeDevice& device, bool is_copy)
    : world_(world), device_(device), is_copy_(is_copy) {}

Status FakeQueue::submit(std::span<const hal::Command> commands) {
  if (device_.is_refusing) return fail(Code::kIo, "fake: refused");
  if (device_.is_inline()) {
    for (const hal::Command& command : commands) device_.execute(command);
    return {};
  }
  const std::lock_guard lock(world_.mutex_);
  for (const hal::Command& command : commands) items_.push_back({command});
  world_.wake_.notify_all();
  return {};
}

Result<std::unique_ptr<hal::Recording>> FakeQueue::record(std::span<const hal::Command> commands,
                                                          std::span<const hal::Patch> patches) {
  auto recording = std::make_unique<FakeRecording>();
  recording->commands.assign(commands.begin(), commands.end());
  recording->patches.assign(patches.begin(), patches.end());
  for (const hal::Command& command : commands) {
    waits += std::holds_alternative<hal::Wait>(command);
    barriers += std::holds_alternative<hal::Barrier>(command);
    signals += std::holds_alternative<hal::Signal>(command);
  }
  return std::unique_ptr<hal::Recording>(std::move(recording));
}

Status FakeQueue::replay(hal::Recording& recording, std::span<const uint64_t> values) {
  auto& fake = static_cast<FakeRecording&>(recording);
  if (device_.is_refusing) return fail(Code::kIo, "fake: refused");
  if (fake.in_flight.load(std::memory_order_acquire) != 0)
    world_.report_fault("recording replayed while running");
  for (const hal::Patch& patch : fake.patches)
    apply(fake.commands[patch.command], patch, values[patch.slot] + patch.addend, device_);
  ++replays;
  if (device_.is_inline()) {
    for (const hal::Command& command : fake.commands) device_.execute(command);
    return {};
  }
  const std::lock_guard lock(world_.mutex_);
  for (const hal::Command& command : fake.commands) items_.push_back({command});
  // Recordings end with an ordering command or, like copy queues, with work whose completion others
  // see by signals given before; marking the last command is exact in the first case.
  if (!is_movable(fake.commands.back())) {
    fake.in_flight.fetch_add(1, std::memory_order_relaxed);
    items_.back().last_of = &fake;
  }
  world_.wake_.notify_all();
  return {};
}

// ---- device

FakeDevice::FakeDevice(World& world, uint32_t id, FakeOptions options)
    : world_(world),
      id_(id),
      options_(options),
      compute_(world, *this, false),
      copy_(world, *this, true) {
  arch_.name = "fake";
  if (options_.is_inline) return;
  const std::lock_guard lock(world_.mutex_);
  world_.queues_.push_back(&compute_);
  world_.queues_.push_back(&copy_);
}

FakeDevice::~FakeDevice() {
  const std::lock_guard lock(world_.mutex_);
  std::erase(world_.queues_, &compute_);
  std::erase(world_.queues_, &copy_);
}

Result<std::unique_ptr<hal::Buffer>> FakeDevice::allocate(const hal::BufferDesc& desc) {
  return std::unique_ptr<hal::Buffer>(new FakeBuffer(desc, options_.is_inline ? 0 : id_));
}

Result<hal::GpuVa> FakeDevice::map(hal::Buffer& peer) {
  if (!options_.can_map) return fail(Code::kUnsupported, "fake: no peer access");
  return tagged(static_cast<FakeBuffer&>(peer).memory(), options_.is_inline ? 0 : id_);
}

Result<std::unique_ptr<hal::Program>> FakeDevice::load(const hal::CodeObject& code) {
  loads.fetch_add(1);
  return std::unique_ptr<hal::Program>(new FakeProgram(code));
}

hal::Queue& FakeDevice::queue(hal::QueueKind kind) {
  return kind == hal::QueueKind::kCopy && options_.has_copy_queue && !options_.is_inline ? copy_
                                                                                         : compute_;
}

Status FakeDevice::status() {
  const std::lock_guard lock(lost_mutex_);
  if (lost_) return tl::unexpected<Error>(*lost_);
  if (is_lost) return fail(Code::kDeviceLost, "fake: lost");
  return {};
}

void FakeDevice::lose(const Error& cause) {
  const std::lock_guard lock(lost_mutex_);
  if (!lost_ && !is_lost) lost_ = cause;
}

std::byte* FakeDevice::translate(hal::GpuVa va) {
  const uint64_t raw = hal::raw(va);
  if (raw >> kTagShift != (options_.is_inline ? 0 : id_)) {
    world_.report_fault(
        fmt::format("device {} given an address of device {}", id_, raw >> kTagShift));
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(raw & kAddressMask);
}

void FakeDevice::execute(const hal::Command& command) {
  if (const auto* signal = std::get_if<hal::Signal>(&command)) {
    // Without waits a later signal may come before an earlier one, which must not take it back: the
    // point is wrong results, not a wait that never ends.
    if (std::byte* at = translate(signal->signal))
      if (!world_.ignores_waits() || word(at).load(std::memory_order_acquire) < signal->value)
        word(at).store(signal->value, std::memory_order_release);
  } else if (const auto* stamp = std::get_if<hal::Timestamp>(&command)) {
    if (std::byte* at = translate(stamp->dst))
      word(at).store(clock_.fetch_add(1000), std::memory_order_release);
  } else if (const auto* write = std::get_if<hal::Write>(&command)) {
    if (std::byte* at = translate(write->dst))
      word(at).store(write->value, std::memory_order_release);
  } else if (const auto* copy = std::get_if<hal::Copy>(&command)) {
    std::byte *dst = translate(copy->dst), *src = translate(copy->src);
    if (dst && src) std::memmove(dst, src, copy->bytes);
  } else if (const auto* dispatch = std::get_if<hal::Dispatch>(&command)) {
    const hal::CodeObject& code = dispatch->program->code();
    auto* args = reinterpret_cast<uint64_t*>(translate(dispatch->kernarg));
    if (args == nullptr || dispatch->grid.x == 0) return;
    dispatches.fetch_add(1, std::memory_order_relaxed);
    constexpr size_t kMost = 8;  // no allocation on replay
    uint64_t* buffers[kMost];
    for (uint32_t i = 0; i < code.num_buffers; ++i) {
      buffers[i] = reinterpret_cast<uint64_t*>(translate(hal::GpuVa{args[i]}));
      if (buffers[i] == nullptr) return;
    }
    for (uint64_t i = 0; i < dispatch->grid.x; ++i) {
      uint64_t sum = buffers[0][i] * 31;
      for (size_t k = 1; k < code.num_buffers; ++k) sum += buffers[k][i] * (2 * k + 3);
      for (uint32_t v = 0; v < code.num_vars; ++v) sum += args[code.num_buffers + v];
      buffers[0][i] = sum;
    }
  }
}

}  // namespace bm::fake
