#pragma once
// What the host does when a stream reaches a place: stores of signals a stream cannot write itself,
// and timestamps.

#include <cstdint>
#include <vector>

#include "drivers/cuda/clock.h"
#include "drivers/cuda/context.h"
#include "runtime/base/result.h"

namespace bm::cuda {

struct Action {
  enum class Kind : uint8_t {
    kMark,       ///< nothing: bounds what is in flight
    kStore,      ///< *word = value
    kTimestamp,  ///< *word = time of the place
  };
  Kind kind = Kind::kMark;
  uint64_t* word = nullptr;
  uint64_t value = 0;
};

/// Ring of actions of one stream, performed in order when their events are complete. Thread: under
/// the submission lock, context current.
class Completions {
 public:
  static constexpr size_t kCapacity = 512;

  Completions(const Context& context, Clock& clock)
      : context_(context), clock_(clock), ring_(kCapacity) {}
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  /// Records the place. False: no room now. `order` grows from action to action of the device.
  Result<bool> push(const Action& action, CuStream stream, uint64_t order);
  bool is_full() const { return pushed_ - retired_ == kCapacity; }

  /// Asks which actions are complete. True: more than before. Errors: the device's.
  Result<bool> look();
  /// The order of the next action known to be complete, or UINT64_MAX.
  uint64_t next_complete() const {
    return retired_ == complete_ ? UINT64_MAX : ring_[retired_ % kCapacity].order;
  }
  /// Performs that action.
  Status perform_next();

  bool is_empty() const { return pushed_ == retired_; }
  /// Stores and timestamps not performed yet: later signals must not overtake them.
  bool has_actions() const { return actions_ != 0; }
  uint32_t marks() const { return marks_; }
  /// Whether a store not performed yet satisfies a wait of the same stream.
  bool has_store(const uint64_t* word, uint64_t at_least) const;
  /// Event of the latest store of exactly this value not performed yet, or nullptr. A larger one
  /// may itself stand behind the waiter.
  CuEvent find_store(const uint64_t* word, uint64_t value) const;

 private:
  struct Slot {
    CuEvent plain = nullptr, timed = nullptr;  ///< made when first needed
    Action action;
    uint64_t order = 0;
    uint32_t clock_base = 0;
    CuEvent event() const { return action.kind == Action::Kind::kTimestamp ? timed : plain; }
  };
  Status perform(const Slot& slot);

  const Context& context_;
  Clock& clock_;
  std::vector<Slot> ring_;
  uint64_t pushed_ = 0, complete_ = 0, retired_ = 0;
  uint32_t actions_ = 0, marks_ = 0;
  int64_t last_stamp_ns_ = 0;
};

}  // namespace bm::cuda
