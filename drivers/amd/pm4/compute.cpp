#include "drivers/amd/pm4/compute.h"

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd::pm4 {
namespace {

/// Pairs of base registers, each for one chiplet alone where there are several.
void set_scratch(Writer& writer, const RegisterMap& registers, std::span<const uint64_t> bases) {
  constexpr uint32_t kSetWords = 4;  // SET_SH_REG of two registers
  for (size_t xcc = 0; xcc < bases.size(); ++xcc) {
    BM_CHECK(bases[xcc] % 256 == 0);
    if (bases.size() > 1)
      writer.put(PredExec{.xccs = static_cast<uint8_t>(1u << xcc), .dwords = kSetWords});
    writer.set(registers[Reg::COMPUTE_DISPATCH_SCRATCH_BASE_LO], lo32(bases[xcc] >> 8),
               hi32(bases[xcc] >> 8));
  }
}

}  // namespace

uint32_t dispatch_initiator(RegisterSet set, bool is_wave32) {
  switch (set) {
    case RegisterSet::kGc9_4_3:
      return kGc943ComputeDispatchInitiatorComputeShaderEn.put(1) |
             kGc943ComputeDispatchInitiatorForceStartAt000.put(1);
    case RegisterSet::kGc10_3:
      return kGc1030ComputeDispatchInitiatorComputeShaderEn.put(1) |
             kGc1030ComputeDispatchInitiatorForceStartAt000.put(1) |
             kGc1030ComputeDispatchInitiatorCsW32En.put(is_wave32 ? 1 : 0);
    case RegisterSet::kGc11:
      return kGc1100ComputeDispatchInitiatorComputeShaderEn.put(1) |
             kGc1100ComputeDispatchInitiatorForceStartAt000.put(1) |
             kGc1100ComputeDispatchInitiatorCsW32En.put(is_wave32 ? 1 : 0);
    case RegisterSet::kGc12:
      return kGc1200ComputeDispatchInitiatorComputeShaderEn.put(1) |
             kGc1200ComputeDispatchInitiatorForceStartAt000.put(1) |
             kGc1200ComputeDispatchInitiatorCsW32En.put(is_wave32 ? 1 : 0);
  }
  __builtin_unreachable();
}

LaunchWords launch(Writer& writer, const RegisterMap& registers, RegisterSet set,
                   const Launch& launch) {
  BM_CHECK(launch.entry % 256 == 0 && launch.num_user_data <= kMaxUserData);
  LaunchWords words;
  writer.put(AcquireMem{cache_actions(writer.form()).acquire_kernel});
  writer.set(registers[Reg::COMPUTE_PGM_LO], lo32(launch.entry >> 8), hi32(launch.entry >> 8));
  writer.set(registers[Reg::COMPUTE_PGM_RSRC1], launch.rsrc1, launch.rsrc2);
  writer.set(registers[Reg::COMPUTE_PGM_RSRC3], launch.rsrc3);
  writer.set(registers[Reg::COMPUTE_TMPRING_SIZE], launch.tmpring);
  set_scratch(writer, registers, launch.scratch);
  writer.set(registers[Reg::COMPUTE_RESTART_X], 0, 0, 0);
  if (launch.num_user_data != 0)
    words.user_data =
        writer.put(SetRegisters{registers[Reg::COMPUTE_USER_DATA_0],
                                std::span(launch.user_data).first(launch.num_user_data)});
  writer.set(registers[Reg::COMPUTE_RESOURCE_LIMITS], 0);
  // START_X … Z, NUM_THREAD_X … Z, PIPELINESTAT_ENABLE, PERFCOUNT_ENABLE lie in this order.
  writer.set(registers[Reg::COMPUTE_START_X], 0, 0, 0, launch.threads[0], launch.threads[1],
             launch.threads[2], 0, 0);
  words.groups = writer.put(Dispatch{launch.groups[0], launch.groups[1], launch.groups[2],
                                     dispatch_initiator(set, launch.is_wave32)});
  writer.put(kWaitForKernels);
  return words;
}

uint32_t release_once(Writer& writer, const ReleaseMem& packet, uint32_t xccs, uint32_t xcc) {
  BM_CHECK(xcc < xccs && xccs <= 8);
  if (xccs > 1)
    writer.put(PredExec{.xccs = static_cast<uint8_t>(1u << xcc), .dwords = kReleaseDwords});
  return writer.put(packet);
}

void flush_bar_writes(Writer& writer, const RegisterMap& registers) {
  if (!registers.has(Reg::BIF_BX_PF0_GPU_HDP_FLUSH_REQ)) return;
  // Each client has a bit; the CP of compute takes the first, CP0.
  const uint32_t client = kNbio430BifBxPf0GpuHdpFlushReqCp0.put(1);
  writer.put(WriteThenWait{.request = registers[Reg::BIF_BX_PF0_GPU_HDP_FLUSH_REQ],
                           .done = registers[Reg::BIF_BX_PF0_GPU_HDP_FLUSH_DONE],
                           .value = client,
                           .mask = client});
}

}  // namespace bm::amd::pm4
