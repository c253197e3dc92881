#pragma once
// Generations of cards as the upper half sees them: one row per family. What is done otherwise for
// one than for another is here.

#include <array>
#include <cstdint>
#include <string_view>

#include "drivers/memory/page_table_format.h"
#include "drivers/nv/rm_gsp/channel_memory.h"
#include "drivers/nv/rm_gsp/running_card.h"
#include "drivers/nv/rm_gsp/video_window.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

struct CardRow {
  std::string_view family;
  uint32_t architecture = 0, first = 0, last = 0;  ///< implementations
  const memory::PageTableFormat& (*page_tables)() = nullptr;
  WindowRegisters window{};
  TokenForm token{};
  /// What the kernel's half of the resource manager would list: usermode, channel, compute, copy.
  std::array<uint32_t, 4> classes{};
};

/// Errors: kUnsupported naming architecture and implementation.
Result<const CardRow*> find_card_row(ChipId chip);

}  // namespace bm::nv::gsp
