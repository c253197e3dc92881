#include "drivers/amd/scratch.h"

#include <algorithm>

#include "drivers/amd/chips.h"
#include "runtime/base/bits.h"

namespace bm::amd {
namespace {

constexpr uint64_t kFirstWaveBytes = 128 * 32;
constexpr uint64_t kAreaUnit = 64_KiB;
constexpr uint32_t kSmallestShare = 32;

}  // namespace

ScratchSize scratch_size(const GpuFacts& facts, uint64_t wave_bytes, uint32_t share) {
  const ChipRow& chip = *facts.chip;
  const RegisterField count = kGc1100ComputeTmpringSizeWaves;
  ScratchSize size;
  size.wave_bytes = align_up(wave_bytes, uint64_t{chip.scratch_unit});
  // WAVES counts per shader engine or per chiplet; the waves of a chiplet are a multiple of its
  // engines either way. Source: ROCR-Runtime, amd_aql_queue.cpp, FillComputeTmpRingSize(), which
  // asserts it, and FillComputeTmpRingSize_Gfx11().
  const uint64_t engines = std::max<uint64_t>(facts.engines_per_xcc, 1);
  const uint64_t step = chip.is_scratch_per_engine ? 1 : engines;
  const uint64_t all = uint64_t{facts.scratch_slots_per_cu} * facts.cus_per_xcc;
  const uint64_t each = std::clamp<uint64_t>(all / engines / share, 1, count.max() / step);
  const uint64_t counted = each * step;
  size.xcc_bytes = align_up(size.wave_bytes * each * engines, kAreaUnit);
  size.tmpring =
      count.put(static_cast<uint32_t>(counted)) |
      chip.scratch_wave_size.put(static_cast<uint32_t>(size.wave_bytes / chip.scratch_unit));
  return size;
}

Status Scratch::grow(const GpuFacts& facts, hcq::MemoryPool& pool, uint64_t wave_bytes) {
  auto area = std::make_shared<ScratchArea>();
  for (uint32_t share = 1;; share *= 2) {
    area->size = scratch_size(facts, std::max(wave_bytes, kFirstWaveBytes), share);
    auto memory = pool.allocate(area->size.xcc_bytes * facts.xccs, MemoryDomain::kVideo, kAreaUnit);
    if (memory) {
      area->memory = std::move(*memory);
      break;
    }
    if (memory.error().code != Code::kOutOfMemory || share == kSmallestShare)
      return fail(
          memory.error().code,
          "{} bytes of scratch for each wave are at least {} bytes in all: {}; compile with "
          "fewer spills or free memory",
          wave_bytes, area->size.xcc_bytes * facts.xccs, memory.error().message);
  }
  for (uint32_t xcc = 0; xcc < facts.xccs; ++xcc)
    area->bases.push_back(area->memory.va() + xcc * area->size.xcc_bytes);
  area_ = std::move(area);
  return {};
}

}  // namespace bm::amd
