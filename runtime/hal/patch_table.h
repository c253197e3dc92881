#pragma once
// Patches of a recorded command list, for drivers that keep commands as steps: checked once,
// applied slot by slot when a value changed.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/command.h"

namespace bm::hal {

class PatchTable {
 public:
  /// Errors: kInvalidArgument for a patch of nothing, or two of one patch site.
  static Result<PatchTable> build(std::span<const Command> commands,
                                  std::span<const Patch> patches);

  /// Calls apply(patch, value with addend) for the patches of every slot whose value changed since
  /// the last update that was finished, or of all when `is_forced`; true when there was any.
  /// Errors: kInvalidArgument (too few values); what `apply` returns.
  template <class Apply>
  Result<bool> update(std::span<const uint64_t> values, bool is_forced, Apply&& apply) {
    if (values.size() < last_.size())
      return fail(Code::kInvalidArgument, "replay with {} values, {} wanted", values.size(),
                  last_.size());
    const bool all = is_forced || is_unfinished_;
    bool is_changed = false;
    for (size_t slot = 0; slot < last_.size(); ++slot) {
      if (values[slot] == last_[slot] && !all) continue;
      is_unfinished_ = is_changed = true;
      last_[slot] = values[slot];
      for (uint32_t i = first_[slot]; i < first_[slot + 1]; ++i)
        BM_TRY(apply(patches_[i], values[slot] + patches_[i].addend));
    }
    return is_changed;
  }
  /// After all that follows an update succeeded: until then the next one applies everything again.
  void finish() { is_unfinished_ = false; }

 private:
  std::vector<Patch> patches_;   ///< by slot
  std::vector<uint32_t> first_;  ///< slot → index into patches_; one more than slots
  std::vector<uint64_t> last_;   ///< values of the last update
  bool is_unfinished_ = true;
};

/// Words of a command for steps: address and value; destination, source and bytes; destination.
/// Calls words(Kind, words), or launch(dispatch), or nothing for a barrier. `Kind` has kWait,
/// kSignal, kTimestamp, kCopy and kWrite.
template <class Kind, class Words, class Launch>
Status take_apart(const Command& command, Words&& words, Launch&& launch) {
  struct Visitor {
    Words& words;
    Launch& launch;
    Status operator()(const Wait& c) const { return words(Kind::kWait, {raw(c.signal), c.value}); }
    Status operator()(const Signal& c) const {
      return words(Kind::kSignal, {raw(c.signal), c.value});
    }
    Status operator()(const Timestamp& c) const { return words(Kind::kTimestamp, {raw(c.dst)}); }
    Status operator()(const Barrier&) const { return {}; }
    Status operator()(const Copy& c) const {
      return words(Kind::kCopy, {raw(c.dst), raw(c.src), c.bytes});
    }
    Status operator()(const Dispatch& c) const { return launch(c); }
    Status operator()(const Write& c) const { return words(Kind::kWrite, {raw(c.dst), c.value}); }
  };
  return std::visit(Visitor{words, launch}, command);
}

}  // namespace bm::hal
