#include "drivers/hcq/recording.h"

#include "runtime/base/bits.h"

namespace bm::hcq {

tl::unexpected<Error> no_such_patch(const hal::Patch& patch, size_t commands) {
  return fail(Code::kInvalidArgument, "patch field {} (word {}) does not exist in command {} of {}",
              static_cast<int>(patch.field), patch.word, patch.command, commands);
}

uint32_t aligned_words(size_t words) {
  return align_up(static_cast<uint32_t>(words), static_cast<uint32_t>(MemoryPool::kAlignment / 4));
}

}  // namespace bm::hcq
