#pragma once
// Heap allocations of this thread, counted by the operator new of allocation_counter.cpp.

#include <cstdint>

namespace bm::test {
uint64_t allocations_of_this_thread();
}
