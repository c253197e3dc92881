#include "drivers/amd/hardware_ring.h"

#include <algorithm>
#include <thread>

#include "drivers/amd/chips.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd {
namespace {

// INDIRECT_BUFFER, whole: entries never wrap.
constexpr uint32_t kBufferEntryDwords = 4;
constexpr size_t kMarks = 256;

using BufferEntry = std::array<uint32_t, kBufferEntryDwords>;
BufferEntry buffer_entry(uint64_t va, uint32_t dwords) {
  return {pm4::header(pm4::Op::kIndirectBuffer, 3), lo32(va), hi32(va), dwords | 1u << 23};
}

}  // namespace

void RingBlock::add(const aql::Words& packet) {
  headers.push_back(packet[0]);
  words.push_back(aql::kInvalidWord);
  add(std::span(packet).subspan<1>());
}

void RingBlock::replace(uint32_t place, const aql::Words& packet) {
  headers[place] = packet[0];
  std::ranges::copy(std::span(packet).subspan<1>(), &words[place * packet.size() + 1]);
}

HardwareRing::HardwareRing(DriverInterface& driver, hcq::MemoryPool& pool,
                           const RingOptions& options)
    : Ring(pool, {.bytes = options.type == QueueType::kSdma ? 0 : options.command_bytes,
                  .domain = MemoryDomain::kSystemUncached,
                  .marks = kMarks,
                  .is_given_up = options.is_given_up}),
      gpu_(driver),
      options_(options) {}

uint32_t HardwareRing::entry_bytes() const {
  switch (options_.type) {
    case QueueType::kPm4: return kBufferEntryDwords * 4;
    case QueueType::kAql: return static_cast<uint32_t>(aql::kPacketBytes);
    case QueueType::kSdma: return 4;
  }
  __builtin_unreachable();
}

Status HardwareRing::open() {
  // Rings are whole pages; entries fill them.
  BM_CHECK(is_power_of_two(options_.entries) && ring_bytes() >= 4096);
  ring_ = BM_TRY(gpu_.allocate({.size = ring_bytes(), .domain = MemoryDomain::kSystemUncached}));
  clear_ring();
  BM_TRY(Ring::open(options_.readers * kFenceBytes, MemoryDomain::kSystemUncached));
  queue_ = BM_TRY(gpu_.create_queue({.type = options_.type,
                                     .ring = ring_.get(),
                                     .priority = options_.priority,
                                     .sdma_engine = options_.sdma_engine}));
  return {};
}

void HardwareRing::clear_ring() {
  std::vector<uint32_t> words(ring_bytes() / 4, 0);
  if (options_.type == QueueType::kAql)
    for (size_t at = 0; at < words.size(); at += aql::kPacketBytes / 4)
      words[at] = aql::kInvalidWord;
  ring_->view.copy_in(0, words);
  ring_->view.publish();
}

Status HardwareRing::restart() {
  clear_ring();
  put_ = published_ = read_ = 0;
  for (uint32_t reader = 0; reader < options_.readers; ++reader)
    fence_.view().store_release(reader * kFenceBytes, fence_value_);
  fence_.view().publish();
  forget_space();
  return queue_->restart();
}

bool HardwareRing::drains_within(std::chrono::milliseconds limit) {
  publish();
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    // Before the look: whoever was off the processor until the end looks once more.
    const bool is_over = std::chrono::steady_clock::now() >= end;
    if (has_passed(fence_value_)) return true;
    if (is_over || gpu_.take_fault()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// A dead queue never moves, and only the kernel driver knows.
const char* HardwareRing::failure(bool may_ask) const {
  return may_ask && gpu_.take_fault() ? "the GPU faulted" : nullptr;
}

/// Entries read, modulo the ring. The hardware reports dwords (PM4), bytes (SDMA) or packets (AQL),
/// wrapped at the ring's end or not.
uint64_t HardwareRing::read_entries() const {
  const uint64_t raw = queue_->read_pointer.load_acquire<uint64_t>(0);
  uint64_t entries = raw;
  switch (options_.type) {
    case QueueType::kPm4: entries = raw / kBufferEntryDwords; break;
    case QueueType::kSdma: entries = raw / 4; break;
    case QueueType::kAql: break;
  }
  return entries & (options_.entries - 1);
}

Status HardwareRing::wait_room(uint32_t count) {
  BM_CHECK(count < options_.entries);
  publish();  // what is enqueued must be known to the GPU, or it never makes room
  return wait_until([&] { return has_room(count); }, "the ring is full");
}

void HardwareRing::enqueue(uint64_t va, uint32_t dwords) {
  if (options_.type == QueueType::kAql)
    return enqueue(aql::encode(aql::Pm4Indirect{.address = va, .dwords = dwords}));
  BM_CHECK(has_room(1) && options_.type == QueueType::kPm4);
  ring_->view.copy_in(slot(), buffer_entry(va, dwords));
  ++put_;
}

void HardwareRing::add_to(RingBlock& block, uint64_t va, uint32_t dwords) const {
  if (options_.type == QueueType::kAql)
    block.add(aql::encode(aql::Pm4Indirect{.address = va, .dwords = dwords}));
  else
    block.add(buffer_entry(va, dwords));
}

std::span<const uint32_t> HardwareRing::next_part(std::span<const uint32_t> packets) const {
  return packets.first(sdma::whole_packets(packets, options_.entries / 2));
}

/// Nothing says that a packet may not pass the ring's end, and nobody's does on queues of the
/// kernel driver. Source: ROCR-Runtime, amd_blit_sdma.cpp, AcquireWriteAddress() and
/// PadRingToEnd().
void HardwareRing::enqueue(std::span<const uint32_t> packets) {
  BM_CHECK(options_.type == QueueType::kSdma && has_room(room_of(packets.size())));
  const auto left = static_cast<size_t>(options_.entries - (put_ & (options_.entries - 1)));
  if (packets.size() > left) {
    const size_t first = sdma::whole_packets(packets, left);
    BM_CHECK(left - first <= kMostFill);
    ring_->view.copy_in(slot(), packets.first(first));
    for (size_t at = first; at < left; ++at) ring_->view.store(slot() + at * 4, sdma::kNopWord);
    put_ += left;
    packets = packets.subspan(first);
  }
  ring_->view.copy_in(slot(), packets);
  put_ += packets.size();
}

/// The first word makes a packet valid, so it is written last.
void HardwareRing::enqueue(const aql::Words& packet) {
  BM_CHECK(has_room(1) && options_.type == QueueType::kAql);
  const uint64_t at = (put_ & (options_.entries - 1)) * aql::kPacketBytes;
  ring_->view.copy_in(at + 4, std::span(packet).subspan<1>());
  ring_->view.store_release(at, packet[0]);
  ++put_;
}

void HardwareRing::enqueue(const RingBlock& block, uint32_t first, uint32_t count) {
  BM_CHECK(has_room(count) && options_.type != QueueType::kSdma);
  const uint64_t dwords = entry_bytes() / 4, mask = options_.entries - 1;
  const uint64_t before_end = std::min<uint64_t>(count, options_.entries - (put_ & mask));
  const auto words = std::span(block.words).subspan(first * dwords, count * dwords);
  ring_->view.copy_in(slot(), words.first(before_end * dwords));
  ring_->view.copy_in(0, words.subspan(before_end * dwords));
  if (options_.type == QueueType::kAql)
    for (uint64_t i = 0; i < count; ++i)
      ring_->view.store_release(((put_ + i) & mask) * aql::kPacketBytes, block.headers[first + i]);
  put_ += count;
}

void HardwareRing::publish() {
  if (published_ == put_) return;
  published_ = put_;
  uint64_t pointer = put_, doorbell = put_ - 1;
  switch (options_.type) {
    case QueueType::kPm4: doorbell = pointer = put_ * kBufferEntryDwords; break;
    case QueueType::kSdma: doorbell = pointer = put_ * 4; break;
    case QueueType::kAql: break;  // the doorbell names the last packet, not the next
  }
  queue_->write_pointer.store_release(0, pointer);
  queue_->write_pointer.publish();
  queue_->doorbell.ring(doorbell);
}

void HardwareRing::finish() { mark(++fence_value_); }

uint64_t HardwareRing::passed() const {
  uint64_t least = fence_word(0);
  for (uint32_t reader = 1; reader < options_.readers; ++reader)
    least = std::min(least, fence_word(reader * kFenceBytes));
  return least;
}

Status HardwareRing::wait_passed(uint64_t fence) const {
  return wait_until([&] { return has_passed(fence); }, "an earlier replay has not ended");
}

Status HardwareRing::drain() {
  publish();
  return wait_until([&] { return has_passed(fence_value_); }, "waiting for the queue to run empty");
}

/// HSA 1.2, 2.9: packet type in the lowest byte, 2 is a dispatch; its kernel object at byte 32.
uint64_t HardwareRing::descriptor_at_read_index() const {
  constexpr uint32_t kDispatch = 2;
  if (options_.type != QueueType::kAql) return 0;
  const uint64_t mask = options_.entries - 1;
  for (uint64_t at = read_entries(); at != (put_ & mask); at = (at + 1) & mask) {
    const uint64_t packet = at * aql::kPacketBytes;
    if ((ring_->view.load<uint32_t>(packet) & 0xff) != kDispatch) continue;
    return ring_->view.load<uint64_t>(packet + 32);
  }
  return 0;
}

std::string HardwareRing::state() const {
  const char* name = options_.type == QueueType::kSdma ? "copy" : "compute";
  const uint64_t written = put_ & (options_.entries - 1), read = read_entries();
  std::string text = fmt::format(
      "{} ring: {} written, {} read, of {}{}; fence {} of {}", name, written, read,
      options_.entries, options_.type == QueueType::kSdma ? " dwords" : "", passed(), fence_value_);
  if (read == written || !is_busy()) return text;
  // Who reads waits at a packet or is halted; who never read may not have been told.
  text += passed() == 0 && read == 0
              ? ", nothing was ever read: its doorbell may not reach it, or the engine stands"
              : ", nothing new was read: the engine stands or works on what it read";
  return text;
}

}  // namespace bm::amd
