#pragma once
// Doorbell trap: the page is given to the program read-only; a store to it faults, is looked at,
// then done by single-stepping. For programs that submit from one thread at a time. x86-64.

#include <cstddef>

namespace nvsnoop {

/// Protects the first page of a doorbell mapping. NVSNOOP_DOORBELL=0 leaves it alone.
void trap_doorbell(void* address);
void forget_doorbell(void* address, size_t bytes);

}  // namespace nvsnoop
