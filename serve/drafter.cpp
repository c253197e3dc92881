#include "serve/drafter.h"

#include <algorithm>

namespace bm::serve {

std::vector<int32_t> LookupDrafter::draft(uint64_t /*id*/, std::span<const int32_t> tokens,
                                          size_t most) {
  if (most == 0) return {};
  for (size_t n = std::min(kLongest, tokens.size() - std::min<size_t>(tokens.size(), 1));
       n >= kShortest; --n) {
    const std::span<const int32_t> end = tokens.last(n);
    // The latest place says most about what comes next.
    for (size_t at = tokens.size() - n; at-- > 0;) {
      if (!std::ranges::equal(tokens.subspan(at, n), end)) continue;
      const auto next = tokens.subspan(at + n, std::min(most, tokens.size() - at - n));
      return {next.begin(), next.end()};
    }
  }
  return {};
}

}  // namespace bm::serve
