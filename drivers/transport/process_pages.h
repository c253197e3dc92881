#pragma once
// Pages of this process: whether what lies at an address is still what lay there before.

#include <cstdint>

#include "runtime/base/result.h"

namespace bm {

/// Marks the pages of a range: they are left out of core dumps, which nobody else asks for, and
/// which a new mapping at the same address does not inherit. Errors: kIo.
Status mark_pages(void* begin, uint64_t bytes);
/// True when every page of the range was marked by mark_pages() and not mapped anew since.
bool are_pages_marked(const void* begin, uint64_t bytes);

}  // namespace bm
