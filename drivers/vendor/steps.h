#pragma once
// Steps: commands in the form that a vendor's library performs. A step's words are {destination,
// source, bytes} of a copy, {address, value} of a wait, signal or write, {address} of a timestamp.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "runtime/base/result.h"
#include "runtime/hal/command.h"

namespace bm::vendor {

/// Finds where a copy's words lead now. A copy of no bytes leads nowhere and is no error.
template <class Step, class Memory>
Status resolve_copy(Step& step, Memory& memory) {
  if (step.words[2] == 0) return {};
  step.dst = BM_TRY(memory.resolve(hal::GpuVa{step.words[0]}, step.words[2]));
  step.src = BM_TRY(memory.resolve(hal::GpuVa{step.words[1]}, step.words[2]));
  return {};
}

/// The same of a write. Errors: kInvalidArgument when its word is not aligned.
template <class Step, class Memory>
Status resolve_write(Step& step, Memory& memory) {
  if (step.words[0] % sizeof(uint64_t) != 0)
    return fail(Code::kInvalidArgument, "Write at {:#x}: not aligned to 8 bytes", step.words[0]);
  step.dst = BM_TRY(memory.resolve(hal::GpuVa{step.words[0]}, sizeof(uint64_t)));
  return {};
}

/// Takes a patch to what it changes: `argument()`, `grid(axis, blocks)`, or
/// `word(index, is_address)`. Errors: theirs; kInvalidArgument for a grid beyond 32 bits.
template <class Argument, class Grid, class Word>
Status apply_patch(const hal::Patch& patch, uint64_t value, const Argument& argument,
                   const Grid& grid, const Word& word) {
  using hal::PatchField;
  switch (patch.field) {
    case PatchField::kKernarg: return argument();
    case PatchField::kGridX:
    case PatchField::kGridY:
    case PatchField::kGridZ:
      if (value > std::numeric_limits<uint32_t>::max())
        return fail(Code::kInvalidArgument, "launch dimension {} of command {} exceeds 32 bits",
                    value, patch.command);
      return grid(static_cast<size_t>(patch.field) - static_cast<size_t>(PatchField::kGridX),
                  static_cast<uint32_t>(value));
    case PatchField::kCopyDst:
    case PatchField::kSignalAddress: return word(0, true);
    case PatchField::kCopySrc: return word(1, true);
    case PatchField::kCopyBytes: return word(2, true);
    case PatchField::kSignalValue: return word(1, false);
  }
  __builtin_unreachable();
}

}  // namespace bm::vendor
