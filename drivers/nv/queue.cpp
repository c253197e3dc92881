#include "drivers/nv/queue.h"

#include <algorithm>

#include "drivers/hcq/mapped.h"
#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

// Each in a cache line of its own: two channels poll them.
constexpr uint64_t kToCopies = 0, kToCompute = 64, kFlushed = 128, kSemaphoreBytes = 192;

/// What of each command will change, for the encoder.
Result<std::vector<uint8_t>> patched_bits(std::span<const hal::Command> commands,
                                          std::span<const hal::Patch> patches) {
  using hal::PatchField;
  std::vector<uint8_t> bits(commands.size());
  for (const hal::Patch& patch : patches) {
    if (patch.command >= commands.size())
      return fail(Code::kInvalidArgument, "patch of command {} of {}", patch.command,
                  commands.size());
    switch (patch.field) {
      case PatchField::kGridX:
      case PatchField::kGridY:
      case PatchField::kGridZ: bits[patch.command] |= kPatchedGrid; break;
      case PatchField::kSignalAddress: bits[patch.command] |= kPatchedAddress; break;
      case PatchField::kCopyDst:
      case PatchField::kCopySrc:
      case PatchField::kCopyBytes: bits[patch.command] |= kPatchedCopy; break;
      case PatchField::kKernarg:
      case PatchField::kSignalValue: break;
    }
  }
  return bits;
}

}  // namespace

NvQueue::NvQueue(std::shared_ptr<Gpu> gpu, Lane* compute, Lane* copies)
    : gpu_(std::move(gpu)), lanes_{compute, copies} {
  base_.gpu = gpu_.get();
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (lanes_[lane] != nullptr) base_.classes[lane] = lanes_[lane]->classes();
  base_.has_compute = compute != nullptr;
  base_.shared_window = gpu_->kernel->shared_window();
  base_.local_window = gpu_->kernel->local_window();
  base_.sm_count = gpu_->sm_count();
  base_.arguments = [pool = &gpu_->pool](uint64_t va, uint64_t bytes) {
    return reinterpret_cast<const uint64_t*>(pool->readable(va, bytes));
  };
}

Result<std::unique_ptr<NvQueue>> NvQueue::create(std::shared_ptr<Gpu> gpu, Lane* compute,
                                                 Lane* copies) {
  std::unique_ptr<NvQueue> queue(new NvQueue(std::move(gpu), compute, copies));
  queue->semaphores_ = BM_TRY(queue->gpu_->pool.allocate(kSemaphoreBytes, MemoryDomain::kSystem));
  for (uint64_t at = 0; at < kSemaphoreBytes; at += 8)
    hcq::store64(queue->semaphores_.host() + at, 0);
  queue->base_.to_copies = queue->semaphores_.va() + kToCopies;
  queue->base_.to_compute = queue->semaphores_.va() + kToCompute;
  queue->base_.flushed = queue->semaphores_.va() + kFlushed;
  return queue;
}

NvQueue::~NvQueue() {
  const std::lock_guard lock(gpu_->mutex);
  semaphores_.reset();
}

uint32_t NvQueue::words_to_skip() const {
  const bool is_caught_up = hcq::load_word(semaphores_.host() + kToCompute) >= handovers_;
  return is_caught_up ? kHandoverWords : 0;
}

ScriptContext NvQueue::context(uint64_t data_va, uint64_t handovers) const {
  ScriptContext context = base_;
  context.data_va = data_va;
  context.handovers = handovers;
  return context;
}

Status NvQueue::submit(std::span<const hal::Command> commands) {
  const std::lock_guard lock(gpu_->mutex);
  BM_TRY(gpu_->health_locked());
  Lane& main = lanes_[kComputeLane] != nullptr ? *lanes_[kComputeLane] : *lanes_[kCopyLane];
  const uint64_t bytes = BM_TRY(data_bytes(commands, base_));
  CommandSpace data;
  if (bytes != 0) data = BM_TRY(main.reserve(bytes));
  base_.data_va = data.va;
  base_.handovers = handovers_;
  base_.waits_for_copies = base_.has_compute && words_to_skip() == 0;
  BM_TRY(encode(commands, {}, base_, script_));
  BM_CHECK(script_.data.size() * 4 <= bytes);
  BM_TRY(submit_script(data));
  for (const hal::Command& command : commands) {
    if (const auto* copy = std::get_if<hal::Copy>(&command)) gpu_->copies.note(*copy);
    if (const auto* wait = std::get_if<hal::Wait>(&command)) gpu_->waits.note(*wait);
  }
  return {};
}

/// Everything that may fail comes before the first ring entry: a submission runs whole or not.
Status NvQueue::submit_script(const CommandSpace& data) {
  std::array<CommandSpace, kLanes> spaces;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    std::vector<uint32_t>& words = script_.words[lane];
    if (words.empty()) continue;
    Push push(words, base_.classes[lane]);
    lanes_[lane]->finish(push);
    if (words.size() > kMaxEntryWords)
      return fail(Code::kInvalidArgument, "{} commands in one submission are too many",
                  script_.spots.size());
    spaces[lane] = BM_TRY(lanes_[lane]->reserve(words.size() * 4));
    BM_TRY(lanes_[lane]->make_room());
  }
  hcq::store_words(data.host, script_.data);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const std::vector<uint32_t>& words = script_.words[lane];
    if (words.empty()) continue;
    hcq::store_words(spaces[lane].host, words);
    lanes_[lane]->enqueue(spaces[lane].va, static_cast<uint32_t>(words.size()));
  }
  handovers_ += script_.handovers;
  for (const LaunchPart& part : script_.launches) gpu_->launches.note(part.program->code().entry);
  for (Lane* lane : lanes_)
    if (lane != nullptr) lane->ring_doorbell();
  return {};
}

Result<std::unique_ptr<hal::Recording>> NvQueue::record(std::span<const hal::Command> commands,
                                                        std::span<const hal::Patch> patches) {
  const std::vector<uint8_t> patched = BM_TRY(patched_bits(commands, patches));
  Script script;
  Allocation memory;
  {
    const std::lock_guard lock(gpu_->mutex);
    BM_TRY(gpu_->health_locked());
    // Once to learn the size, once with the address.
    ScriptContext where = context(0, 0);
    where.waits_for_copies = where.has_compute;
    BM_TRY(encode(commands, patched, where, script));
    const uint64_t bytes = std::max(NvRecording::bytes_for(script), MemoryPool::kAlignment);
    memory = BM_TRY(gpu_->pool.allocate(bytes, MemoryDomain::kVideoMapped));
    where.data_va = memory.va();
    const Status again = encode(commands, patched, where, script);
    BM_CHECK(again.has_value());
  }
  auto recording =
      BM_TRY(NvRecording::build(gpu_, std::move(memory), std::move(script), patches, lanes_));
  return std::unique_ptr<hal::Recording>(std::move(recording));
}

Status NvQueue::replay(hal::Recording& recording, std::span<const uint64_t> values) {
  auto* mine = dynamic_cast<NvRecording*>(&recording);
  if (mine == nullptr || mine->gpu() != gpu_.get())
    return fail(Code::kInvalidArgument, "a recording of another device");
  const std::lock_guard lock(gpu_->mutex);
  BM_TRY(gpu_->health_locked());
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (mine->lane_words(lane) != 0) BM_TRY(lanes_[lane]->make_room());
  BM_TRY(mine->patch(values, handovers_));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t skip = lane == kComputeLane ? words_to_skip() : 0;
    if (mine->lane_words(lane) <= skip) continue;
    lanes_[lane]->enqueue(mine->lane_va(lane) + uint64_t{skip} * 4, mine->lane_words(lane) - skip);
  }
  handovers_ += mine->handovers();
  mine->mark_used();
  gpu_->launches.note(mine->names());
  for (Lane* lane : lanes_)
    if (lane != nullptr) lane->ring_doorbell();
  return {};
}

void NvQueue::restart() {
  hcq::store64(semaphores_.host() + kToCopies, handovers_);
  hcq::store64(semaphores_.host() + kToCompute, handovers_);
}

Status NvQueue::fill(uint64_t va, uint64_t bytes, uint32_t word) {
  std::vector<uint32_t> words;
  Push push(words, base_.classes[kCopyLane]);
  nv::fill(push, va, bytes, word);
  flush_and_release(push, base_.flushed, 0);
  BM_TRY(lanes_[kCopyLane]->submit(words));
  return lanes_[kCopyLane]->drain();
}

}  // namespace bm::nv
