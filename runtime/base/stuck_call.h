#pragma once
// A call into somebody else's library that never returns: nobody can take its thread back.

#include <string_view>

namespace bm {

using StuckCallHandler = void (*)(std::string_view why);

/// What a program does then, on a thread of the driver's: usually end itself. Without a handler
/// (nullptr, and at first) only the calls of other threads fail, with `why`.
void set_stuck_call_handler(StuckCallHandler handler) noexcept;

/// For drivers that have found such a call.
void report_stuck_call(std::string_view why);

}  // namespace bm
