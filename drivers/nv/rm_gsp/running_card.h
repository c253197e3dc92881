#pragma once
// What the lower half of a boot leaves: a card whose GSP runs the resource manager. The upper half
// (stages P12 to P16) works over this alone.

#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/memory/iova.h"
#include "drivers/nv/gsp/rpc.h"
#include "drivers/transport/mmio.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// NV_PMC_BOOT_42.
/// Source: open-gpu-kernel-modules 570.144, published/nv_ref.h.
struct ChipId {
  uint32_t architecture = 0;    ///< 29:24: 0x16 Turing … 0x1b Blackwell B
  uint32_t implementation = 0;  ///< 23:20
};

class RunningCard {
 public:
  /// Memory of this process is out of the card's reach afterwards; the GSP need not be stopped.
  virtual ~RunningCard() = default;
  virtual ChipId chip() const = 0;
  virtual PciFunction& function() = 0;
  virtual GspRpc& rpc() = 0;
  virtual const Mmio& registers() = 0;  ///< BAR0
  /// Whoever gives bus addresses out for this function; nullptr: there is no IOMMU.
  virtual memory::IovaAllocator* iovas() = 0;
  /// Stage P17: the GSP is unloaded, so that the next boot needs no reset. All objects are freed.
  virtual Status shut_down() = 0;
};

/// Stages of the upper half, numbered on from the lower.
enum class UpperStage : uint8_t {
  kStaticInfo = 12,  ///< static info, engines, runlists
  kMemory = 13,      ///< video memory, page tables, BAR1, TLBs
  kGolden = 14,      ///< golden context
  kObjects = 15,     ///< objects, channels, tokens
  kFaults = 16,      ///< faults
};

/// "stage P14 (golden context)"
std::string_view upper_stage_name(UpperStage stage);

/// `error` of a stage, which it names.
Error at_stage(UpperStage stage, Error error);

}  // namespace bm::nv::gsp
