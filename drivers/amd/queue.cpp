#include "drivers/amd/queue.h"

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd {
namespace {

constexpr uint64_t kLastHandover = uint64_t{1} << 31;

/// Upper bound of Script::data. Programs of others count nothing: encoding refuses them.
uint64_t data_bound(std::span<const hal::Command> commands) {
  uint64_t bytes = 0;
  for (const hal::Command& command : commands) {
    const auto* dispatch = std::get_if<hal::Dispatch>(&command);
    if (dispatch == nullptr) continue;
    const auto* program = dynamic_cast<const AmdProgram*>(dispatch->program);
    if (program == nullptr || !program->plan().needs_block()) continue;
    bytes += align_up(uint64_t{program->plan().kernarg_bytes}, 256) + 256;
  }
  return bytes;
}

}  // namespace

AmdQueue::AmdQueue(std::shared_ptr<Gpu> gpu, Lane* compute, Lane* copies)
    : QueueBase(std::move(gpu), compute, copies) {
  base_.is_aql = compute != nullptr && compute->type() == QueueType::kAql;
  if (compute != nullptr) {
    base_.queue_object = compute->queue().object_va;
    base_.readers = compute->readers();
  }
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (lanes_[lane] != nullptr) base_.fence_va[lane] = lanes_[lane]->fence_va();
}

Result<std::unique_ptr<AmdQueue>> AmdQueue::create(std::shared_ptr<Gpu> gpu, Lane* compute,
                                                   Lane* copies) {
  std::unique_ptr<AmdQueue> queue(new AmdQueue(std::move(gpu), compute, copies));
  BM_TRY(queue->open(MemoryDomain::kSystemUncached));
  return queue;
}

ScriptContext AmdQueue::context() const {
  ScriptContext context = base_;
  context.handovers = handovers_;
  context.scratch = gpu_->scratch.area().get();
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (lanes_[lane] != nullptr) context.fence[lane] = lanes_[lane]->next_fence();
  return context;
}

ScriptContext AmdQueue::recording_context() const {
  ScriptContext where = context();
  where.keeps_arguments = true;
  where.handovers = 0;
  return where;
}

Status AmdQueue::rebase_handovers(uint64_t coming) {
  if (handovers_ + coming < kLastHandover) [[likely]]
    return {};
  for (Lane* lane : lanes_)
    if (lane != nullptr) BM_TRY(lane->drain());
  set_handovers(0);
  handovers_ = 0;
  return {};
}

void AmdQueue::publish_all() {
  for (Lane* lane : lanes_)
    if (lane != nullptr) lane->publish();
}

/// All of a short list, so that it is enqueued whole or not at all.
Status AmdQueue::make_room(const std::array<uint32_t, kLanes>& counts) {
  for (size_t i = 0; i < kLanes; ++i) {
    if (lanes_[i] == nullptr) continue;
    const uint32_t wanted = std::min(counts[i], lanes_[i]->entries() / 2);
    if (wanted != 0 && !lanes_[i]->has_room(wanted)) BM_TRY(lanes_[i]->wait_room(wanted));
  }
  return {};
}

Status AmdQueue::enqueue_copies(std::span<const uint32_t> packets) {
  Lane& lane = *lanes_[kCopyLane];
  while (!packets.empty()) {
    const std::span<const uint32_t> part = lane.next_part(packets);
    const uint32_t room = Lane::room_of(part.size());
    if (!lane.has_room(room)) {
      publish_all();
      BM_TRY(lane.wait_room(room));
    }
    lane.enqueue(part);
    packets = packets.subspan(part.size());
  }
  return {};
}

/// In the order of submission: whatever a full ring waits for has been announced by then.
/// `copies`: words of the copy lane, `enqueue`: for entries of the compute lane.
template <class Enqueue>
Status AmdQueue::enqueue_all(std::span<const Entry> entries, std::span<const uint32_t> copies,
                             const Enqueue& enqueue) {
  for (const Entry& entry : entries) {
    Lane& lane = *lanes_[entry.lane];
    if (entry.lane == kCopyLane) {
      BM_TRY(enqueue_copies(copies.subspan(entry.first, entry.dwords)));
      continue;
    }
    if (!lane.has_room(1)) {
      publish_all();
      BM_TRY(lane.wait_room(1));
    }
    enqueue(lane, entry);
  }
  publish_all();
  return {};
}

void AmdQueue::finish(const std::array<bool, kLanes>& used) {
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (used[lane]) lanes_[lane]->finish();
}

Status AmdQueue::submit_now(std::span<const hal::Command> commands) {
  BM_TRY(gpu_->health_locked());
  BM_TRY(rebase_handovers(commands.size() + 1));
  ScriptContext where = context();
  CommandSpace data;
  if (const uint64_t bytes = data_bound(commands); bytes != 0 && where.has_compute) {
    data = BM_TRY(lanes_[kComputeLane]->reserve(bytes));
    where.data_va = data.va;
  }
  where.waits_for_copies = where.has_compute && handed_back() < handovers_;
  BM_TRY(encode(commands, {}, where, script_));
  if (script_.entries.empty()) return {};
  data.view.copy_in(0, script_.data);
  BM_TRY(submit_script());
  note(commands);
  return {};
}

Status AmdQueue::submit_script() {
  std::array<uint32_t, kLanes> counts{};
  for (const Entry& entry : script_.entries) counts[entry.lane] += room_of(entry);
  const std::vector<uint32_t>& words = script_.words[kComputeLane];
  CommandSpace space;
  if (!words.empty()) space = BM_TRY(lanes_[kComputeLane]->reserve(words.size() * 4));
  BM_TRY(make_room(counts));
  space.view.copy_in(0, words);
  const auto enqueue = [&](Lane& lane, const Entry& entry) {
    const uint64_t va = space.va + uint64_t{entry.first} * 4;
    if (entry.is_packet)
      lane.enqueue(script_.packets[entry.first]);
    else if (lane.type() == QueueType::kAql)
      lane.enqueue(aql::encode(aql::Pm4Indirect{.address = va, .dwords = entry.dwords}));
    else
      lane.enqueue(va, entry.dwords);
  };
  const Status enqueued = enqueue_all(script_.entries, script_.words[kCopyLane], enqueue);
  handovers_ += script_.handovers;
  finish(script_.lane_used);
  return enqueued;
}

Status AmdQueue::replay_now(AmdRecording& recording, std::span<const uint64_t> values) {
  BM_TRY(gpu_->health_locked());
  BM_TRY(rebase_handovers(recording.handovers() + 1));
  // The caller has seen its last signal, which one chiplet wrote; others may still be reading.
  if (Lane* const compute = lanes_[kComputeLane]; compute != nullptr && compute->readers() > 1)
    BM_TRY(compute->wait_passed(recording.last_fence()));
  BM_TRY(make_room({recording.count(kComputeLane), recording.count(kCopyLane)}));
  std::array<uint64_t, kLanes> fences{};
  std::array<bool, kLanes> used{};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    used[lane] = recording.count(lane) != 0;
    if (lanes_[lane] != nullptr) fences[lane] = lanes_[lane]->next_fence();
  }
  BM_TRY(recording.patch(values, handovers_, fences));
  const auto enqueue = [&](Lane& lane, const Entry& entry) {
    if (entry.is_packet)
      lane.enqueue(recording.packet(entry));
    else if (lane.type() == QueueType::kAql)
      lane.enqueue(aql::encode(
          aql::Pm4Indirect{.address = recording.entry_va(entry), .dwords = entry.dwords}));
    else
      lane.enqueue(recording.entry_va(entry), entry.dwords);
  };
  const Status enqueued = enqueue_all(recording.entries(), recording.copy_words(), enqueue);
  handovers_ += recording.handovers();
  finish(used);
  recording.mark_used(fences[kComputeLane]);
  gpu_->log.note_replay(recording.names());
  return enqueued;
}

Status AmdQueue::run_copies(const std::function<void(sdma::Writer&)>& emit) {
  Lane& lane = *lanes_[kCopyLane];
  scratch_words_.clear();
  sdma::Writer writer(scratch_words_, gpu_->chip().sdma);
  emit(writer);
  writer.put(sdma::Fence{lane.fence_va(), lo32(lane.next_fence())});
  writer.put(sdma::Fence{lane.fence_va() + 4, hi32(lane.next_fence())});
  const Status enqueued = enqueue_copies(scratch_words_);
  lane.finish();
  return gpu_->with_cause(enqueued ? lane.drain() : enqueued);
}

}  // namespace bm::amd
