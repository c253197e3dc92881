#pragma once
// A trace of a PCI function: every access and every call that a driver made, in order, as lines of
// text. pci_recorder.h writes one, pci_replay.h plays the function from one.
//
// After the first line "# bellmetal pci trace 1" and the lines of the function (`function`, `bar`,
// `dma`) each line begins with microseconds since the start of the trace, then:
//   r BAR OFFSET WIDTH VALUE [xN]   a read, N times in a row with the same answer
//   w BAR OFFSET WIDTH VALUE
//   R BAR OFFSET BYTES DATA         a burst: words in hexadecimal as bytes lie, "00000000*16" is 16
//   W BAR OFFSET BYTES #HASH        FNV-1a of what was written; the bytes may be somebody's
//   firmware c OFFSET WIDTH VALUE [xN]       configuration space; C writes call TEXT = ANSWER
//   everything else; "!code message" is an error mark TEXT                       what the driver
//   says of itself: a stage begins

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm {

struct PciAccess {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kReadBlock,
    kWriteBlock,
    kReadConfig,
    kWriteConfig,
    kCall,
    kMark,
  };
  Kind kind = Kind::kRead;
  uint32_t bar = 0;
  uint32_t width = 0;                ///< bytes of a single access
  uint64_t offset = 0;               ///< bytes
  uint64_t value = 0;                ///< of a single access; of kWriteBlock the hash of its bytes
  uint64_t bytes = 0;                ///< of a burst
  uint64_t repeats = 1;              ///< reads in a row with the same answer
  uint64_t us = 0;                   ///< since the start
  std::string text = {};             ///< of kCall what was asked, of kMark all of it
  std::string answer = {};           ///< of kCall
  std::vector<std::byte> data = {};  ///< of kReadBlock
};

struct PciTrace {
  PciIdentity identity;
  std::array<PciBar, kPciBars> bars{};
  DmaLimits limits;
  std::vector<PciAccess> accesses;
  bool is_cut = false;  ///< the last line had no end: it is left out
};

/// The lines of `text` that have an end. What a machine leaves that stops while it writes ends in
/// the middle of a line, whose number may still look like one, or in bytes that are 0; `is_cut`
/// says so.
std::string_view whole_lines(std::string_view text, bool* is_cut);

/// What stands in a trace before its accesses.
std::string pci_trace_head(const PciFunction& function);
/// One line with its end.
std::string to_line(const PciAccess& access);
/// Errors: kCorrupt naming the line; the last one is left out where it has no end.
Result<PciTrace> parse_pci_trace(std::string_view text);

/// FNV-1a, 64 bits.
uint64_t trace_hash(std::span<const std::byte> bytes);

}  // namespace bm
