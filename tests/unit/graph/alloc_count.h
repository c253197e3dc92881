#pragma once
// Counts calls of operator new on this thread; the program replaces the global operators.
#include <cstdint>

namespace bm::fake {
uint64_t allocations_on_this_thread();
}
