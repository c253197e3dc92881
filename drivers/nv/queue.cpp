#include "drivers/nv/queue.h"

#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

constexpr uint64_t kFlushed = 128, kSemaphoreBytes = 192;

}  // namespace

NvQueue::NvQueue(std::shared_ptr<Gpu> gpu, Lane* compute, Lane* copies)
    : QueueBase(std::move(gpu), compute, copies) {
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (lanes_[lane] != nullptr) base_.classes[lane] = lanes_[lane]->classes();
  base_.shared_window = gpu_->driver->shared_window();
  base_.local_window = gpu_->driver->local_window();
  base_.sm_count = gpu_->sm_count();
}

Result<std::unique_ptr<NvQueue>> NvQueue::create(std::shared_ptr<Gpu> gpu, Lane* compute,
                                                 Lane* copies) {
  std::unique_ptr<NvQueue> queue(new NvQueue(std::move(gpu), compute, copies));
  BM_TRY(queue->open(MemoryDomain::kSystem, kSemaphoreBytes));
  queue->base_.flushed = queue->words_.va() + kFlushed;
  return queue;
}

ScriptContext NvQueue::recording_context() const {
  ScriptContext context = base_;
  context.handovers = context.data_va = 0;
  return context;
}

Status NvQueue::submit_locked(std::span<const hal::Command> commands) {
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
  note(commands);
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
  data.view.copy_in(0, script_.data);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const std::vector<uint32_t>& words = script_.words[lane];
    if (words.empty()) continue;
    spaces[lane].view.copy_in(0, words);
    lanes_[lane]->enqueue(spaces[lane].va, static_cast<uint32_t>(words.size()));
  }
  handovers_ += script_.handovers;
  for (Lane* lane : lanes_)
    if (lane != nullptr) lane->ring_doorbell();
  return {};
}

Status NvQueue::replay_locked(NvRecording& recording, std::span<const uint64_t> values) {
  BM_TRY(gpu_->health_locked());
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (recording.lane_words(lane) != 0) BM_TRY(lanes_[lane]->make_room());
  BM_TRY(recording.patch(values, handovers_));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t skip = lane == kComputeLane ? words_to_skip() : 0;
    if (recording.lane_words(lane) <= skip) continue;
    lanes_[lane]->enqueue(recording.lane_va(lane) + uint64_t{skip} * 4,
                          recording.lane_words(lane) - skip);
  }
  handovers_ += recording.handovers();
  recording.mark_used();
  gpu_->log.note_replay(recording.names());
  for (Lane* lane : lanes_)
    if (lane != nullptr) lane->ring_doorbell();
  return {};
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
