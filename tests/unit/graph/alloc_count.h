#pragma once
// Counts calls of operator new on this thread; the program replaces the global operators.
#include <cstdint>
#include <optional>

namespace bm::fake {
/// Nothing in builds with sanitizers.
std::optional<uint64_t> allocations_on_this_thread();
}  // namespace bm::fake
