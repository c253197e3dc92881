#pragma once
// What Linux's mmiotrace has recorded of another driver, as a trace of ours. Format: Linux
// Documentation/trace/mmiotrace.rst, version 20070824, and kernel/trace/trace_mmiotrace.c.

#include <cstdint>
#include <string_view>

#include "drivers/transport/pci_trace.h"
#include "runtime/base/result.h"

namespace bm {

/// The accesses to one function: `vendor` and `device` 0 mean any; of those that match the one with
/// most accesses. mmiotrace sees registers and memory of BARs, no configuration space, and can miss
/// events: a line that says so becomes a mark. Errors: kCorrupt (no version line, a line that is
/// none, with its number); kNotFound (no such function, or nothing of it was seen).
Result<PciTrace> import_mmiotrace(std::string_view text, uint16_t vendor = 0, uint16_t device = 0);

}  // namespace bm
