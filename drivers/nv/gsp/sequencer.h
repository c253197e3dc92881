#pragma once
// The list of register accesses that the resource manager has the host carry out while it boots
// (RUN_CPU_SEQUENCER): on Turing, Ampere and Ada it resets its own processor that way.
// Source: open-gpu-kernel-modules 570.144, rmgspseq.h, kernel_gsp.c (kgspExecuteSequencerBuffer),
// kernel_gsp_tu102.c (kgspExecuteSequencerCommand); nouveau, gsp/rm/r535/gsp.c
// (r535_gsp_msg_run_cpu_sequencer); nova-core, gsp/sequencer.rs.

#include <cstddef>
#include <cstdint>
#include <span>

#include "drivers/nv/gsp/falcon.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

struct SequencerTargets {
  Falcon& gsp;
  Falcon& sec2;
  uint64_t libos_address = 0;  ///< for the GSP's mailboxes
  uint32_t app_version = 0;    ///< for FALCON_OS
};

/// Runs all of `payload`, the event's. How many commands there were. Errors: kCorrupt (an operation
/// that is not known, a list that ends within one, a register outside of BAR0); kTimeout naming the
/// register; kIo (SEC2 reports an error).
Result<uint32_t> run_sequence(Bus& bus, SequencerTargets targets,
                              std::span<const std::byte> payload);

}  // namespace bm::nv::gsp
