#include "drivers/nv/hardware_ring.h"

#include <algorithm>

#include "drivers/nv/methods/compute.h"
#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

// A fence is due each time an eighth of the command space was used; larger pieces get memory of
// their own (hcq::Ring). Without a fence are at most 1/8 + 2/8 (data and words of one submission);
// with the next piece and what is skipped at the end of the space that is 5/8, so waiting for marks
// makes room.
constexpr uint64_t kFenceEvery = 8;
constexpr size_t kMarks = 2 * kFenceEvery + 2;

// The ring: a fence follows each quarter of it, whatever the entries hold. Without one are then at
// most entries/4 - 1 entries, so waiting for the last fence always makes room for two: the next
// entry and a fence behind it (a ring holds one entry less than its size; four are enough).
// At most four of these fences are in flight at once, so their words may take turns in twice that.
constexpr uint32_t kRingFenceShare = 4;
constexpr uint64_t kRingFenceSlots = 8, kRingFenceBytes = 32;
static_assert(kRingFenceBytes >= kRingFenceWords * 4);

// Words of the fence memory, each in a cache line of its own.
constexpr uint64_t kDone = 0, kTaken = 64, kFenceBytes = 128;

}  // namespace

HardwareRing::HardwareRing(DriverInterface& driver, hcq::MemoryPool& pool,
                           const RingOptions& options)
    : Ring(pool, {.bytes = options.command_bytes,
                  .domain = MemoryDomain::kVideoMapped,
                  .marks = kMarks,
                  .is_given_up = options.is_given_up}),
      gpu_(driver),
      options_(options) {}

uint64_t HardwareRing::userd_offset() const {
  return align_up(uint64_t{options_.entries} * 8, kUserdBytes);
}

Status HardwareRing::open() {
  BM_CHECK(is_power_of_two(options_.entries) && options_.entries >= 4);
  ring_ = BM_TRY(gpu_.allocate({.size = ring_fences_offset() + kRingFenceSlots * kRingFenceBytes,
                                .domain = MemoryDomain::kVideoMapped,
                                .is_contiguous = true}));
  BM_TRY(Ring::open(kFenceBytes, MemoryDomain::kSystem));
  return start();
}

Status HardwareRing::restart() {
  put_ = taken_ = ring_fence_ = covered_ = interrupted_ = 0;
  is_published_ = true;
  fenced_ = next_;
  forget_space();
  fence_.view().store(kDone, fence_value_);
  return start();
}

Status HardwareRing::start() {
  const uint64_t userd = userd_offset();
  ring_->view.fill(0, userd + kUserdBytes, std::byte{0});
  fence_.view().store<uint64_t>(kTaken, 0);
  ring_->view.publish();
  channel_ = BM_TRY(gpu_.create_channel({.engine = options_.engine,
                                         .copy_index = options_.copy_index,
                                         .ring = ring_.get(),
                                         .ring_offset = 0,
                                         .entries = options_.entries,
                                         .userd_offset = userd}));
  doorbell_ = gpu_.doorbell();
  classes_.channel = gpu_.facts().channel_class;
  (options_.engine == Engine::kCompute ? classes_.compute : classes_.copy) = channel_->engine_class;
  std::vector<uint32_t> words;
  Push push(words, classes_);
  release_when_taken(push, fence_.va() + kTaken, 0);
  BM_CHECK(words.size() == kRingFenceWords);
  std::ranges::copy(words, ring_fence_words_.begin());
  words.clear();
  if (options_.engine == Engine::kCompute) {
    setup_compute(push, gpu_.shared_window(), gpu_.local_window());
  } else {
    setup_copy(push);
  }
  BM_TRY(submit(words));
  return {};
}

uint64_t HardwareRing::passed() const { return fence_word(kDone); }

uint64_t HardwareRing::taken_now() const { return fence_word(kTaken); }

const char* HardwareRing::failure(bool /*may_ask*/) const {
  return has_error() ? "the channel died" : nullptr;
}

bool HardwareRing::has_room() {
  const auto fits = [this] { return put_ + 2 - taken_ < options_.entries; };
  if (fits()) return true;
  taken_ = taken_now();
  return fits();
}

Status HardwareRing::make_room() {
  if (has_room()) [[likely]]
    return {};
  // What is queued must be known to the GPU, or it never makes room.
  ring_doorbell();
  return wait_until([this] { return has_room(); }, "the ring is full");
}

void HardwareRing::put_entry(uint64_t va, uint32_t words) {
  ring_->view.store<uint64_t>(put_ % options_.entries * 8, ring_entry(va, words));
  ++put_;
  is_published_ = false;
}

void HardwareRing::put_ring_fence() {
  const uint64_t at = ring_fences_offset() + ring_fences_++ % kRingFenceSlots * kRingFenceBytes;
  // Payload: low, high.
  ring_fence_words_[3] = lo32(put_ + 1);
  ring_fence_words_[4] = hi32(put_ + 1);
  ring_->view.copy_in(at, ring_fence_words_);
  put_entry(ring_->va + at, kRingFenceWords);
  ring_fence_ = put_;
}

void HardwareRing::enqueue(uint64_t va, uint32_t words) {
  BM_CHECK(words > 0 && words <= kMaxEntryWords && has_room());
  put_entry(va, words);
  if (put_ - ring_fence_ >= options_.entries / kRingFenceShare) put_ring_fence();
}

void HardwareRing::ring_doorbell() {
  if (is_published_) return;
  is_published_ = true;
  ring_->view.publish();
  ring_->view.store(userd_offset() + kUserdPut, static_cast<uint32_t>(put_ % options_.entries));
  ring_->view.publish();
  doorbell_.ring(channel_->token);
}

uint64_t HardwareRing::add_fence(Push& push) {
  release(push, fence_.va() + kDone, ++fence_value_);
  return fence_value_;
}

bool HardwareRing::is_fence_due() const {
  const bool is_due = next_ - fenced_ >= options_.command_bytes / kFenceEvery;
  return (is_due || has_oversized_) && !is_marks_full();
}

void HardwareRing::mark_due(uint64_t fence) {
  has_oversized_ = false;
  mark(fence);
  fenced_ = next_;
}

void HardwareRing::finish(Push& push) {
  // The words that hold this very fence are reserved after it and belong to the next mark.
  if (is_fence_due()) mark_due(add_fence(push));
}

Result<uint64_t> HardwareRing::submit(std::span<const uint32_t> words) {
  scratch_.assign(words.begin(), words.end());
  Push push(scratch_, classes_);
  const bool is_due = is_fence_due();
  const uint64_t fence = add_fence(push);
  if (is_due) mark_due(fence);
  const hcq::CommandSpace space = BM_TRY(reserve(scratch_.size() * sizeof(uint32_t)));
  BM_TRY(make_room());
  space.view.copy_in(0, scratch_);
  enqueue(space.va, static_cast<uint32_t>(scratch_.size()));
  covered_ = put_;
  ring_doorbell();
  return fence;
}

bool HardwareRing::has_passed(uint64_t fence) const { return passed() >= fence; }

Status HardwareRing::drain() {
  const uint64_t fence = BM_TRY(submit({}));
  return wait_until([&] { return has_passed(fence); }, "waiting for the queue to run empty");
}

bool HardwareRing::is_busy() const { return covered_ != put_ || !has_passed(fence_value_); }

Status HardwareRing::request_interrupt() {
  if (interrupted_ == put_) return {};
  std::vector<uint32_t> words;
  Push push(words, classes_);
  add_fence(push);  // waits for the engine, so that the interrupt comes after its work
  interrupt(push);
  BM_TRY(submit(words));
  interrupted_ = put_;
  return {};
}

bool HardwareRing::is_all_taken() const {
  return channel_ == nullptr || has_error() || taken_now() == put_;
}

void HardwareRing::begin_probe() {
  if (is_all_taken() || !has_room()) return;
  put_ring_fence();
  ring_doorbell();
}

std::string HardwareRing::state() const {
  return fmt::format("{} ring: {} entries put, {} or more taken, of {}; fence {} of {}",
                     options_.engine == Engine::kCompute ? "compute" : "copy", put_, taken_now(),
                     options_.entries, passed(), fence_value_);
}

}  // namespace bm::nv
