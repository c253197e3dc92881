#include "runtime/staging.h"

#include <algorithm>

#include "runtime/allocator.h"
#include "runtime/base/bits.h"
#include "runtime/stream.h"

namespace bm::runtime {

Staging::Staging(Allocator& allocator, Stream& stream, StagingOptions options)
    : allocator_(allocator), stream_(stream), options_(options) {}

uint64_t Staging::chunk_at(uint64_t offset, uint64_t total) const {
  return std::min(options_.slot_bytes, total - offset);
}

Result<Staging::Slot> Staging::new_slot() {
  StoragePtr memory = BM_TRY(allocator_.allocate(
      {.size = options_.slot_bytes, .host_visible = true, .host_memory = true, .no_cache = true}));
  return Slot{std::move(memory), {}};
}

/// The inbound slot used longest ago, free to use: waits for it only when no more may be made.
Result<Staging::Slot*> Staging::acquire_in_slot() {
  std::vector<Slot>& slots = in_.slots;
  if (slots.empty() || (slots.size() < options_.in_slots && !reached(slots[in_.next].busy_until))) {
    Result<Slot> fresh = new_slot();
    // No memory for one more slot: get by with those at hand.
    if (!fresh && slots.empty()) return tl::unexpected<Error>(std::move(fresh.error()));
    if (fresh)
      slots.insert(slots.begin() + static_cast<std::ptrdiff_t>(in_.next), std::move(*fresh));
  }
  Slot& slot = slots[in_.next];
  BM_TRY(settle(slot.busy_until));
  in_.next = (in_.next + 1) % slots.size();
  return &slot;
}

Status Staging::submit_copy(Slot& slot, hal::GpuVa dst, hal::GpuVa src, uint64_t bytes,
                            const Buffer& user) {
  const hal::Command copy = hal::Copy{dst, src, bytes};
  const Point point = BM_TRY(stream_.submit(hal::QueueKind::kCopy, {&copy, 1}));
  slot.busy_until = point;
  user.storage->used_until(point);
  return {};
}

Status Staging::copy_in(const Buffer& dst, const Fill& fill) {
  for (uint64_t offset = 0; offset < dst.size;) {
    const uint64_t bytes = chunk_at(offset, dst.size);
    // Locked per chunk, so that a long copy does not starve short ones.
    const std::lock_guard lock(in_.lock);
    Slot& slot = *BM_TRY(acquire_in_slot());
    BM_TRY(fill({slot.memory->host(), bytes}, offset));
    BM_TRY(submit_copy(slot, hal::offset(dst.va(), offset), slot.memory->va(), bytes, dst));
    offset += bytes;
  }
  return {};
}

Status Staging::copy_out(const Buffer& src, const Drain& drain) {
  const std::lock_guard lock(out_.lock);
  const uint64_t chunks = ceil_div(src.size, options_.slot_bytes);
  BM_TRY(reserve_out_slots(std::min<uint64_t>(chunks, options_.out_slots)));
  std::vector<Slot>& slots = out_.slots;
  uint64_t queued = 0;
  for (uint64_t drained = 0; drained < chunks; ++drained) {
    // Chunk k uses slot k modulo their number, which chunk k - number has left: it is drained. An
    // earlier copy that failed half way cannot still write there late: the stream is in order.
    for (; queued < chunks && queued < drained + slots.size(); ++queued) {
      Slot& slot = slots[queued % slots.size()];
      const uint64_t offset = queued * options_.slot_bytes;
      BM_TRY(submit_copy(slot, slot.memory->va(), hal::offset(src.va(), offset),
                         chunk_at(offset, src.size), src));
    }
    const Slot& slot = slots[drained % slots.size()];
    BM_TRY(wait(slot.busy_until));
    const uint64_t offset = drained * options_.slot_bytes;
    BM_TRY(drain({slot.memory->host(), chunk_at(offset, src.size)}, offset));
  }
  return {};
}

/// Makes outbound slots up to `wanted`; one is enough to go on.
Status Staging::reserve_out_slots(uint64_t wanted) {
  while (out_.slots.size() < wanted) {
    Result<Slot> fresh = new_slot();
    if (!fresh && out_.slots.empty()) return tl::unexpected<Error>(std::move(fresh.error()));
    if (!fresh) break;
    out_.slots.push_back(std::move(*fresh));
  }
  return {};
}

}  // namespace bm::runtime
