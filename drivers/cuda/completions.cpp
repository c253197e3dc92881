#include "drivers/cuda/completions.h"

#include <algorithm>
#include <atomic>

namespace bm::cuda {

Completions::~Completions() {
  for (const Slot& slot : ring_)
    for (const CuEvent event : {slot.plain, slot.timed})
      if (event != nullptr) context_.api.cuEventDestroy(event);
}

Result<bool> Completions::push(const Action& action, CuStream stream, uint64_t order) {
  const Api& api = context_.api;
  if (is_full()) return false;
  Slot& slot = ring_[pushed_ % kCapacity];
  const bool is_timestamp = action.kind == Action::Kind::kTimestamp;
  CuEvent& event = is_timestamp ? slot.timed : slot.plain;
  if (event == nullptr)
    BM_TRY(
        context_.done(api.cuEventCreate(&event, is_timestamp ? kEventDefault : kEventDisableTiming),
                      "cuEventCreate"));
  if (is_timestamp) slot.clock_base = BM_TRY(clock_.acquire());
  const CuResult error = api.cuEventRecord(event, stream);
  if (error != kSuccess && is_timestamp) clock_.release(slot.clock_base);
  BM_TRY(context_.done(error, "cuEventRecord"));
  slot.action = action;
  slot.order = order;
  ++pushed_;
  ++(action.kind == Action::Kind::kMark ? marks_ : actions_);
  return true;
}

Result<bool> Completions::look() {
  const uint64_t before = complete_;
  for (; complete_ != pushed_; ++complete_) {
    const CuResult state = context_.api.cuEventQuery(ring_[complete_ % kCapacity].event());
    if (state == kErrorNotReady) break;
    BM_TRY(context_.done(state, "work in flight"));
  }
  return complete_ != before;
}

Status Completions::perform_next() {
  const Slot& slot = ring_[retired_ % kCapacity];
  BM_TRY(perform(slot));
  ++retired_;
  --(slot.action.kind == Action::Kind::kMark ? marks_ : actions_);
  return {};
}

Status Completions::perform(const Slot& slot) {
  const Action& action = slot.action;
  switch (action.kind) {
    case Action::Kind::kMark: return {};
    case Action::Kind::kStore:
      std::atomic_ref(*action.word).store(action.value, std::memory_order_release);
      return {};
    case Action::Kind::kTimestamp:
      // Bases differ by what their measurements do: time must not go back for that.
      last_stamp_ns_ =
          std::max(last_stamp_ns_, BM_TRY(clock_.time_of(slot.timed, slot.clock_base)));
      clock_.release(slot.clock_base);
      std::atomic_ref(*action.word)
          .store(static_cast<uint64_t>(last_stamp_ns_), std::memory_order_release);
      return {};
  }
  __builtin_unreachable();
}

bool Completions::has_store(const uint64_t* word, uint64_t at_least) const {
  for (uint64_t i = retired_; actions_ != 0 && i != pushed_; ++i) {
    const Action& action = ring_[i % kCapacity].action;
    if (action.kind == Action::Kind::kStore && action.word == word && action.value >= at_least)
      return true;
  }
  return false;
}

CuEvent Completions::find_store(const uint64_t* word, uint64_t value) const {
  for (uint64_t i = pushed_; actions_ != 0 && i != retired_; --i) {
    const Slot& slot = ring_[(i - 1) % kCapacity];
    const Action& action = slot.action;
    if (action.kind == Action::Kind::kStore && action.word == word && action.value == value)
      return slot.plain;
  }
  return nullptr;
}

}  // namespace bm::cuda
