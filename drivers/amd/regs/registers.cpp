#include "drivers/amd/regs/registers.h"

#include <string>

namespace bm::amd {

const char* register_name(Reg reg) {
  switch (reg) {
#define BM_NAME(name) \
  case Reg::name: return #name
    BM_NAME(COMPUTE_DISPATCH_INITIATOR);
    BM_NAME(COMPUTE_START_X);
    BM_NAME(COMPUTE_START_Y);
    BM_NAME(COMPUTE_START_Z);
    BM_NAME(COMPUTE_NUM_THREAD_X);
    BM_NAME(COMPUTE_NUM_THREAD_Y);
    BM_NAME(COMPUTE_NUM_THREAD_Z);
    BM_NAME(COMPUTE_PIPELINESTAT_ENABLE);
    BM_NAME(COMPUTE_PERFCOUNT_ENABLE);
    BM_NAME(COMPUTE_PGM_LO);
    BM_NAME(COMPUTE_PGM_HI);
    BM_NAME(COMPUTE_DISPATCH_SCRATCH_BASE_LO);
    BM_NAME(COMPUTE_DISPATCH_SCRATCH_BASE_HI);
    BM_NAME(COMPUTE_PGM_RSRC1);
    BM_NAME(COMPUTE_PGM_RSRC2);
    BM_NAME(COMPUTE_PGM_RSRC3);
    BM_NAME(COMPUTE_RESOURCE_LIMITS);
    BM_NAME(COMPUTE_TMPRING_SIZE);
    BM_NAME(COMPUTE_RESTART_X);
    BM_NAME(COMPUTE_RESTART_Y);
    BM_NAME(COMPUTE_RESTART_Z);
    BM_NAME(COMPUTE_USER_DATA_0);
    BM_NAME(BIF_BX_PF0_GPU_HDP_FLUSH_REQ);
    BM_NAME(BIF_BX_PF0_GPU_HDP_FLUSH_DONE);
#undef BM_NAME
  }
  __builtin_unreachable();
}

std::span<const RegisterAt> gc_registers(RegisterSet set) {
  switch (set) {
    case RegisterSet::kGc9_4_3: return kGc943;
    case RegisterSet::kGc10_3: return kGc1030;
    case RegisterSet::kGc11: return kGc1100;
    case RegisterSet::kGc12: return kGc1200;
  }
  __builtin_unreachable();
}

std::span<const RegisterAt> bus_registers(uint32_t major, uint32_t minor, uint32_t revision) {
  struct Row {
    uint32_t major, minor, revision;
    std::span<const RegisterAt> table;
  };
  static constexpr Row kRows[] = {
      {4, 3, 0, kNbio430}, {4, 3, 1, kNbio430}, {6, 3, 1, kNbif631}, {7, 9, 0, kNbio790}};
  for (const Row& row : kRows)
    if (row.major == major && row.minor == minor && row.revision == revision) return row.table;
  return {};
}

Status RegisterMap::add(std::span<const RegisterAt> table,
                        std::span<const uint32_t> segment_bases) {
  std::string missing;
  for (const RegisterAt& row : table) {
    if (row.segment >= segment_bases.size()) {
      missing += fmt::format(" {} (segment {})", register_name(row.reg), row.segment);
      continue;
    }
    addresses_[static_cast<size_t>(row.reg)] = segment_bases[row.segment] + row.offset;
  }
  if (missing.empty()) return {};
  return fail(Code::kUnsupported, "IP discovery gives {} segments, which lack{}",
              segment_bases.size(), missing);
}

const char* RegisterMap::name_at(uint32_t address) const {
  for (size_t i = 0; i < kRegisters; ++i)
    if (addresses_[i] != 0 && addresses_[i] == address) return register_name(static_cast<Reg>(i));
  return nullptr;
}

}  // namespace bm::amd
