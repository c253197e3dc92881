#pragma once
// What a graph expects of its inputs, and the check that they do not alias in ways capture did not
// see.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/graph.h"

namespace bm::runtime {

class InputTable {
 public:
  /// `capture_inputs`: see make_graph. Errors: kInvalidArgument when there are not `num_inputs` or
  /// none.
  static Result<InputTable> create(uint32_t num_inputs, std::span<const Buffer> capture_inputs);

  /// Notes an argument of a call. For a slot, returns its byte offset within the input.
  /// Errors: kInvalidArgument: slot out of range, bytes before the input's begin.
  Result<uint64_t> add(const Arg& arg);
  /// Call once after the last add().
  void seal();

  /// Checks inputs and writes the address of each to `addresses`. When no address changed since the
  /// last successful call, aliasing is not looked at again. No allocation.
  /// Errors: as Graph::replay.
  Status bind(std::span<const Buffer> inputs, std::span<uint64_t> addresses);

 private:
  struct Slot {
    Device* device = nullptr;  ///< nullptr: no call uses this input
    uint64_t bytes = 0;        ///< the input must have at least these
    uint64_t capture_va = 0;
    uint64_t capture_offset = 0;
    bool is_written = false;
  };
  struct Range {
    const Device* device = nullptr;
    uint64_t begin = 0, end = 0;
  };
  static bool overlaps(const std::vector<Range>& sorted, const Range& range);
  static void merge(std::vector<Range>& ranges);
  /// The error for an input without memory, with too little, or on another device.
  Status explain_misfit(size_t slot, const Buffer& input) const;
  Status check_aliases(std::span<const uint64_t> addresses);
  Status check_captured(size_t slot, uint64_t address) const;
  Status check_pair(size_t a, size_t b, std::span<const uint64_t> addresses) const;

  std::vector<Slot> slots_;
  std::vector<Range> written_, touched_;  ///< by fixed arguments; sorted, disjoint
  std::vector<uint32_t> order_;           ///< used slots, kept sorted by address from call to call
  std::vector<uint64_t> bound_;           ///< addresses found free of conflicts
  bool is_bound_ = false;
};

}  // namespace bm::runtime
