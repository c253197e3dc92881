#include "drivers/amd/queue.h"

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd {
namespace {

constexpr uint64_t kLastCrossRelease = uint64_t{1} << 31;

/// Upper bound of EncodedCommands::data. Programs of others count nothing: encoding refuses them.
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

AmdQueue::AmdQueue(std::shared_ptr<Gpu> gpu, HardwareRing* compute, HardwareRing* copies)
    : QueueBase(std::move(gpu), compute, copies) {
  base_.is_aql = compute != nullptr && compute->type() == QueueType::kAql;
  if (compute != nullptr) {
    base_.queue_object = compute->queue().object_va;
    base_.readers = compute->readers();
  }
  for (size_t ring = 0; ring < kRings; ++ring)
    if (rings_[ring] != nullptr) base_.fence_va[ring] = rings_[ring]->fence_va();
}

Result<std::unique_ptr<AmdQueue>> AmdQueue::create(std::shared_ptr<Gpu> gpu, HardwareRing* compute,
                                                   HardwareRing* copies) {
  std::unique_ptr<AmdQueue> queue(new AmdQueue(std::move(gpu), compute, copies));
  BM_TRY(queue->open(MemoryDomain::kSystemUncached));
  return queue;
}

EncodingContext AmdQueue::context() const {
  EncodingContext context = base_;
  context.cross_releases = cross_releases_;
  context.scratch = gpu_->scratch.area().get();
  for (size_t ring = 0; ring < kRings; ++ring)
    if (rings_[ring] != nullptr) context.fence[ring] = rings_[ring]->next_fence();
  return context;
}

EncodingContext AmdQueue::recording_context() const {
  EncodingContext where = context();
  where.keeps_arguments = true;
  where.cross_releases = 0;
  return where;
}

Status AmdQueue::rebase_cross_releases(uint64_t coming) {
  if (cross_releases_ + coming < kLastCrossRelease) [[likely]]
    return {};
  for (HardwareRing* ring : rings_)
    if (ring != nullptr) BM_TRY(ring->drain());
  set_cross_releases(0);
  cross_releases_ = 0;
  return {};
}

void AmdQueue::publish_all() {
  for (HardwareRing* ring : rings_)
    if (ring != nullptr) ring->publish();
}

/// All of a short list, so that it is enqueued whole or not at all.
Status AmdQueue::make_room(const std::array<uint32_t, kRings>& counts) {
  for (size_t i = 0; i < kRings; ++i) {
    if (rings_[i] == nullptr) continue;
    const uint32_t wanted = std::min(counts[i], rings_[i]->entries() / 2);
    if (wanted != 0 && !rings_[i]->has_room(wanted)) BM_TRY(rings_[i]->wait_room(wanted));
  }
  return {};
}

Status AmdQueue::enqueue_copies(std::span<const uint32_t> packets) {
  HardwareRing& ring = *rings_[kCopyRing];
  while (!packets.empty()) {
    const std::span<const uint32_t> part = ring.next_part(packets);
    const uint32_t room = HardwareRing::room_of(part.size());
    if (!ring.has_room(room)) {
      publish_all();
      BM_TRY(ring.wait_room(room));
    }
    ring.enqueue(part);
    packets = packets.subspan(part.size());
  }
  return {};
}

/// In the order of submission: whatever a full ring waits for has been announced by then.
Status AmdQueue::enqueue_encoded(const CommandSpace& space) {
  const std::span<const uint32_t> copies = encoded_.words[kCopyRing];
  for (const Entry& entry : encoded_.entries) {
    HardwareRing& ring = *rings_[entry.ring];
    if (entry.ring == kCopyRing) {
      BM_TRY(enqueue_copies(copies.subspan(entry.first, entry.dwords)));
      continue;
    }
    if (!ring.has_room(1)) {
      publish_all();
      BM_TRY(ring.wait_room(1));
    }
    if (entry.is_packet)
      ring.enqueue(encoded_.packets[entry.first]);
    else
      ring.enqueue(space.va + uint64_t{entry.first} * 4, entry.dwords);
  }
  publish_all();
  return {};
}

/// The same in blocks. There is room in the compute ring: no recording fills more than make_room()
/// waits for.
Status AmdQueue::enqueue_recorded(const AmdRecording& recording) {
  for (const Stretch& stretch : recording.stretches()) {
    if (stretch.ring == kCopyRing)
      BM_TRY(enqueue_copies(recording.copy_words().subspan(stretch.first, stretch.count)));
    else
      rings_[kComputeRing]->enqueue(recording.block(), stretch.first, stretch.count);
  }
  publish_all();
  return {};
}

void AmdQueue::finish(const std::array<bool, kRings>& used) {
  for (size_t ring = 0; ring < kRings; ++ring)
    if (used[ring]) rings_[ring]->finish();
}

Status AmdQueue::submit_now(std::span<const hal::Command> commands) {
  BM_TRY(gpu_->health_locked());
  BM_TRY(rebase_cross_releases(commands.size() + 1));
  EncodingContext where = context();
  CommandSpace data;
  if (const uint64_t bytes = data_bound(commands); bytes != 0 && where.has_compute) {
    data = BM_TRY(rings_[kComputeRing]->reserve(bytes));
    where.data_va = data.va;
  }
  where.waits_for_copies = where.has_compute && released_to_compute() < cross_releases_;
  BM_TRY(encode(commands, {}, where, encoded_));
  if (encoded_.entries.empty()) return {};
  data.view.copy_in(0, encoded_.data);
  BM_TRY(submit_encoded());
  note(commands);
  return {};
}

Status AmdQueue::submit_encoded() {
  std::array<uint32_t, kRings> counts{};
  for (const Entry& entry : encoded_.entries) counts[entry.ring] += room_of(entry);
  const std::vector<uint32_t>& words = encoded_.words[kComputeRing];
  CommandSpace space;
  if (!words.empty()) space = BM_TRY(rings_[kComputeRing]->reserve(words.size() * 4));
  BM_TRY(make_room(counts));
  space.view.copy_in(0, words);
  const Status enqueued = enqueue_encoded(space);
  cross_releases_ += encoded_.cross_releases;
  finish(encoded_.ring_used);
  return enqueued;
}

Status AmdQueue::replay_now(AmdRecording& recording, std::span<const uint64_t> values) {
  BM_TRY(gpu_->health_locked());
  BM_TRY(rebase_cross_releases(recording.cross_releases() + 1));
  // The caller has seen its last signal, which one chiplet wrote; others may still be reading.
  if (HardwareRing* const compute = rings_[kComputeRing];
      compute != nullptr && compute->readers() > 1)
    BM_TRY(compute->wait_passed(recording.last_fence()));
  BM_TRY(make_room({recording.count(kComputeRing), recording.count(kCopyRing)}));
  std::array<uint64_t, kRings> fences{};
  std::array<bool, kRings> used{};
  for (size_t ring = 0; ring < kRings; ++ring) {
    used[ring] = recording.count(ring) != 0;
    if (rings_[ring] != nullptr) fences[ring] = rings_[ring]->next_fence();
  }
  BM_TRY(recording.patch(values, cross_releases_, fences));
  const Status enqueued = enqueue_recorded(recording);
  cross_releases_ += recording.cross_releases();
  finish(used);
  recording.mark_used(fences[kComputeRing]);
  gpu_->log.note_replay(recording.names());
  return enqueued;
}

Status AmdQueue::run_copies(const std::function<void(sdma::Writer&)>& emit) {
  HardwareRing& ring = *rings_[kCopyRing];
  scratch_words_.clear();
  sdma::Writer writer(scratch_words_, gpu_->chip().sdma);
  emit(writer);
  writer.put(sdma::Fence{ring.fence_va(), lo32(ring.next_fence())});
  writer.put(sdma::Fence{ring.fence_va() + 4, hi32(ring.next_fence())});
  // Clearing of memory and loading of code are no submissions: the log of those does not tell.
  constexpr const char* kWork = "copy queue, at the driver's own copies";
  gpu_->own_work = kWork;
  const Status enqueued = enqueue_copies(scratch_words_);
  ring.finish();
  Status done = gpu_->with_cause(enqueued ? ring.drain() : enqueued);
  gpu_->own_work = nullptr;
  if (!done && !gpu_->fault) return tl::unexpected(std::move(done.error()).within(kWork));
  return done;
}

}  // namespace bm::amd
