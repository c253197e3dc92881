#pragma once
// Constant bank 0: what code finds about its launch, and its parameters.
//
// Source: offsets in chips.cpp; their meaning from the instructions that use them.

#include <cstddef>
#include <cstdint>
#include <span>

#include "drivers/nv/chips.h"
#include "runtime/hal/program.h"

namespace bm::nv {

/// Launch facts beside the parameters.
struct Bank0Facts {
  hal::Dim3 block, grid, cluster;
  bool has_cluster = false;  ///< else `cluster` is 1 × 1 × 1
  uint64_t shared_window = 0, local_window = 0;
  uint64_t grid_id = 0;
  uint32_t sm_count = 0;
  uint32_t dynamic_shared = 0, reserved_shared = 0;  ///< bytes
};

/// Writes everything before the parameters; `bank` is zeroed up to `layout.params`.
void encode_bank0(const Bank0Layout& layout, const Bank0Facts& facts, std::span<std::byte> bank);

/// Offsets of the words that hold the grid's extent along `axis` in blocks and in clusters; kNoWord
/// where there is none. The second place of the latter is Bank0Layout::second_place lower.
struct GridWords {
  uint16_t blocks, clusters;
};
GridWords grid_words(const Bank0Layout& layout, uint32_t axis);

/// Models of GPUs that execute PTX text: parameters start here whatever the generation …
inline constexpr uint32_t kPtxParams = 0x160;
/// … and these words hold the number of buffers and of scalars.
inline constexpr uint32_t kPtxBufferCount = 80 * 4;
inline constexpr uint32_t kPtxScalarCount = 81 * 4;
void encode_ptx_counts(uint32_t buffers, uint32_t scalars, std::span<std::byte> bank);

/// Layout of bank 0 for code of `chip`; with `is_ptx` for PTX text, whose parameters lie elsewhere.
Bank0Layout bank0_layout(const ChipRow& chip, bool is_ptx);

}  // namespace bm::nv
