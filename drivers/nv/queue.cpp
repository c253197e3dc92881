#include "drivers/nv/queue.h"

#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

constexpr uint64_t kFlushed = 128, kSemaphoreBytes = 192;

}  // namespace

NvQueue::NvQueue(std::shared_ptr<Gpu> gpu, HardwareRing* compute, HardwareRing* copies)
    : QueueBase(std::move(gpu), compute, copies) {
  for (size_t ring = 0; ring < kRings; ++ring)
    if (rings_[ring] != nullptr) base_.classes[ring] = rings_[ring]->classes();
  base_.shared_window = gpu_->driver->shared_window();
  base_.local_window = gpu_->driver->local_window();
  base_.sm_count = gpu_->sm_count();
}

Result<std::unique_ptr<NvQueue>> NvQueue::create(std::shared_ptr<Gpu> gpu, HardwareRing* compute,
                                                 HardwareRing* copies) {
  std::unique_ptr<NvQueue> queue(new NvQueue(std::move(gpu), compute, copies));
  BM_TRY(queue->open(MemoryDomain::kSystem, kSemaphoreBytes));
  queue->base_.flushed = queue->words_.va() + kFlushed;
  return queue;
}

EncodingContext NvQueue::recording_context() const {
  EncodingContext context = base_;
  context.cross_releases = context.data_va = 0;
  return context;
}

Status NvQueue::submit_locked(std::span<const hal::Command> commands) {
  BM_TRY(gpu_->health_locked());
  HardwareRing& main = rings_[kComputeRing] != nullptr ? *rings_[kComputeRing] : *rings_[kCopyRing];
  const uint64_t bytes = BM_TRY(data_bytes(commands, base_));
  CommandSpace data;
  if (bytes != 0) data = BM_TRY(main.reserve(bytes));
  base_.data_va = data.va;
  base_.cross_releases = cross_releases_;
  base_.waits_for_copies = base_.has_compute && words_to_skip() == 0;
  BM_TRY(encode(commands, {}, base_, encoded_));
  BM_CHECK(encoded_.data.size() * 4 <= bytes);
  BM_TRY(submit_encoded(data));
  note(commands);
  return {};
}

/// Everything that may fail comes before the first ring entry: a submission runs whole or not.
Status NvQueue::submit_encoded(const CommandSpace& data) {
  std::array<CommandSpace, kRings> spaces;
  for (size_t ring = 0; ring < kRings; ++ring) {
    std::vector<uint32_t>& words = encoded_.words[ring];
    if (words.empty()) continue;
    Push push(words, base_.classes[ring]);
    rings_[ring]->finish(push);
    if (words.size() > kMaxEntryWords)
      return fail(Code::kInvalidArgument, "{} commands in one submission are too many",
                  encoded_.command_sites.size());
    spaces[ring] = BM_TRY(rings_[ring]->reserve(words.size() * 4));
    BM_TRY(rings_[ring]->make_room());
  }
  data.view.copy_in(0, encoded_.data);
  for (size_t ring = 0; ring < kRings; ++ring) {
    const std::vector<uint32_t>& words = encoded_.words[ring];
    if (words.empty()) continue;
    spaces[ring].view.copy_in(0, words);
    rings_[ring]->enqueue(spaces[ring].va, static_cast<uint32_t>(words.size()));
  }
  cross_releases_ += encoded_.cross_releases;
  for (HardwareRing* ring : rings_)
    if (ring != nullptr) ring->ring_doorbell();
  return {};
}

Status NvQueue::replay_locked(NvRecording& recording, std::span<const uint64_t> values) {
  BM_TRY(gpu_->health_locked());
  for (size_t ring = 0; ring < kRings; ++ring)
    if (recording.ring_words(ring) != 0) BM_TRY(rings_[ring]->make_room());
  BM_TRY(recording.patch(values, cross_releases_));
  for (size_t ring = 0; ring < kRings; ++ring) {
    const uint32_t skip = ring == kComputeRing ? words_to_skip() : 0;
    if (recording.ring_words(ring) <= skip) continue;
    rings_[ring]->enqueue(recording.ring_va(ring) + uint64_t{skip} * 4,
                          recording.ring_words(ring) - skip);
  }
  cross_releases_ += recording.cross_releases();
  recording.mark_used();
  gpu_->log.note_replay(recording.names());
  for (HardwareRing* ring : rings_)
    if (ring != nullptr) ring->ring_doorbell();
  return {};
}

Status NvQueue::fill(uint64_t va, uint64_t bytes, uint32_t word) {
  std::vector<uint32_t> words;
  Push push(words, base_.classes[kCopyRing]);
  nv::fill(push, va, bytes, word);
  flush_and_release(push, base_.flushed, 0);
  BM_TRY(rings_[kCopyRing]->submit(words));
  return rings_[kCopyRing]->drain();
}

}  // namespace bm::nv
