#pragma once
// What an NVIDIA card that no kernel driver has is doing, as its registers and video memory say it:
// boots, resets and repairs nothing. What has to be written to read at all is the window that shows
// video memory, which is put back.
//
// A fault of a channel is told to the process that booted the card alone: the GSP keeps it, and its
// queues, logs and most rings lie in that process's memory. What is seen from outside ends there.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/memory/page_step.h"
#include "drivers/nv/gsp/bus.h"
#include "drivers/nv/gsp/card.h"
#include "drivers/nv/rm_gsp/card_row.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// What a verdict may name.
enum class GspCause : uint8_t {
  kCardGone,
  kRomRunning,
  kNotBooted,
  kFwsecFailed,   ///< FRTS: protected memory is not set up
  kBooterFailed,  ///< the program on SEC2 that starts the GSP
  kFspMessage,    ///< half a message lies in the FSP's queue
  kFmcFailed,     ///< the GSP is locked down, and its first program has left a code
  kGspLocked,     ///< it answers to another processor alone
  kGspHalted,     ///< protected memory is set up, and the core does not run
  kMmuFault,      ///< of a BAR, or by physical address
  kGspRunning,    ///< nothing is wrong that shows from outside
};
/// "gsp-halted", for scripts.
std::string_view gsp_cause_name(GspCause cause);

struct PageWalk {
  uint64_t va = 0, root = 0;
  std::vector<memory::PageStep> steps = {};
  bool is_mapped = false;
  std::string problem = {};  ///< why not
  bool is_system = false, is_peer = false;
  uint64_t address = 0, page_bytes = 0;  ///< of the byte asked for
};

struct SeenRegister {
  std::string_view name;
  uint32_t value = 0;
  std::string fields;
};

struct Autopsy {
  GspCause cause = GspCause::kNotBooted;
  std::string verdict, remedy;
  CardFacts facts;
  uint64_t video_bytes = 0;  ///< 0: not known
  std::vector<SeenRegister> registers;
  std::vector<PageWalk> walks;
  /// Verdict first, then a line for each thing seen.
  std::string text() const;
};

/// `addresses`: on the GPU, walked from the directory that the TLBs were last told of.
/// Errors: kUnsupported (not a chip of ours); of the transport.
Result<Autopsy> examine(Bus& bus, std::span<const uint64_t> addresses = {});

}  // namespace bm::nv::gsp
