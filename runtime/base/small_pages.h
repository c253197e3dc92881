#pragma once
// Memory that is touched bit by bit.

#include <cstddef>
#include <span>

namespace bm {

/// Whole pages of `memory` that are not there yet come one by one as they are touched, not 2 MiB at
/// a time: what is never used of it is never cleared, and takes no memory. Advice to the system;
/// contents stay. Source: madvise(2), MADV_NOHUGEPAGE.
void prefer_small_pages(std::span<std::byte> memory);

}  // namespace bm
