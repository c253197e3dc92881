#pragma once
// What lies in a ring or an indirect buffer, packet by packet and by name: for people who look at a
// queue that does not move. Takes words that nobody of ours wrote, too. Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/chips.h"
#include "drivers/amd/pm4/packets.h"

namespace bm::amd {

/// A packet that polls memory: done when (word & mask) `compare` value.
struct ListedWait {
  uint64_t address = 0;
  uint32_t value = 0, mask = 0;
  pm4::Compare compare = pm4::Compare::kGreaterEqual;
  bool is_met(uint32_t word) const;
};
/// A packet that runs words elsewhere.
struct ListedBuffer {
  uint64_t address = 0;
  uint32_t dwords = 0;
};
struct ListedPacket {
  uint32_t at = 0, dwords = 0;  ///< in the words listed
  std::string text;             ///< "WAIT_REG_MEM [0x…] & 0xffffffff >= 0x5"
  bool is_bad = false;          ///< no packet at all: what follows is not known either
  bool is_filler = false;       ///< NOP
  std::optional<ListedWait> wait;
  std::optional<ListedBuffer> buffer;
};

/// Up to `most` packets. The last one is bad where the words stop being packets; a packet that the
/// words cut off ends the list without being bad.
std::vector<ListedPacket> list_pm4(std::span<const uint32_t> words, CacheForm form, size_t most);
std::vector<ListedPacket> list_sdma(std::span<const uint32_t> words, SdmaForm form, size_t most);
/// Of an AQL ring. A slot that nobody has filled (type invalid) is a packet that waits to be valid:
/// it is named, and the list goes on.
std::vector<ListedPacket> list_aql(std::span<const uint32_t> words, size_t most);

}  // namespace bm::amd
