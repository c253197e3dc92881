#pragma once
// Memory of a client that the card's engines reach.

#include <sys/mman.h>

#include <cstdint>

namespace bm::sim {

/// Gives a client's pages back while an engine may still be in the middle of them: what it reads or
/// writes from now on is nobody's. The addresses are not used again.
inline void retire_client_memory(void* host, uint64_t bytes) {
  (void)mmap(host, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace bm::sim
