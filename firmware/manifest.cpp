#include "firmware/manifest.h"

#include <algorithm>

namespace bm::firmware {
namespace {

constexpr Row kRows[] = {
#include "firmware/manifest.gen.inc"
};

}  // namespace

std::span<const Row> manifest() { return kRows; }

std::span<const Row> versions_of(std::string_view name) {
  const auto [first, last] = std::ranges::equal_range(kRows, name, {}, &Row::name);
  return {first, last};
}

}  // namespace bm::firmware
