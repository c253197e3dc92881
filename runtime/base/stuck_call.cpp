#include "runtime/base/stuck_call.h"

#include <atomic>

namespace bm {
namespace {

std::atomic<StuckCallHandler>& installed() {
  static constinit std::atomic<StuckCallHandler> handler{nullptr};
  return handler;
}

}  // namespace

void set_stuck_call_handler(StuckCallHandler handler) noexcept { installed() = handler; }

void report_stuck_call(std::string_view why) {
  if (const StuckCallHandler handler = installed()) handler(why);
}

}  // namespace bm
