#pragma once
// The interrupt handler block: a ring of 32-byte entries that say who wanted attention.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/generation.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/amd/am/video_memory.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

inline constexpr uint32_t kInterruptBytes = 32;
using InterruptWords = std::array<uint32_t, kInterruptBytes / 4>;

/// Source: amdgpu_ih_decode_iv_helper() in amdgpu_ih.c.
struct Interrupt {
  uint8_t client = 0, source = 0, ring = 0, vmid = 0, node = 0;
  bool is_mmhub = false;  ///< the VMID is the multimedia hub's
  uint16_t pasid = 0;
  uint64_t timestamp = 0;
  std::array<uint32_t, 4> data{};
};
Interrupt decode_interrupt(const InterruptWords& words);

enum class InterruptKind : uint8_t {
  kDone,         ///< end of pipe, SDMA trap
  kMemoryFault,  ///< refused by page tables
  kWave,         ///< a shader's own: s_sendmsg
  kError,        ///< everything after which a queue does not go on
  kOther,
};
struct InterruptMeaning {
  InterruptKind kind = InterruptKind::kOther;
  std::string text;       ///< "illegal instruction", for messages
  uint64_t address = 0;   ///< kMemoryFault
  bool is_write = false;  ///< kMemoryFault
};
/// Clients: soc21_ih_clientid.h; sources: ivsrcid/gfx/irqsrcs_gfx_11_0_0.h and _12_0_0.h; SQ words:
/// kfd_int_process_v11.c. Before: soc15_ih_clientid.h, irqsrcs_gfx_9_0.h, irqsrcs_sdma0_4_0.h,
/// kfd_int_process_v9.c.
InterruptMeaning explain_interrupt(const Interrupt& interrupt, InterruptForm form);

class InterruptRings {
 public:
  InterruptRings(Bus& bus, Gmc& gmc, VideoMemory& memory) : bus_(bus), gmc_(gmc), memory_(memory) {}

  Status allocate_boot();
  /// `has_msi`: the card rearms its interrupt when the read pointer moves.
  /// Source: ih_v6_0_irq_init(), ih_v7_0_irq_init(), vega20_ih_irq_init().
  Status start(bool has_msi);
  Status stop();
  /// Entries since the last call, oldest first; the read pointer follows, in bytes.
  std::vector<Interrupt> drain();
  /// For a warm boot: what the last process has not read is dropped.
  void skip();

 private:
  Bus& bus_;
  Gmc& gmc_;
  VideoMemory& memory_;
  uint64_t ring_ = 0, ring1_ = 0, pointer_ = 0;
  uint32_t read_ = 0;
};

}  // namespace bm::amd::am
