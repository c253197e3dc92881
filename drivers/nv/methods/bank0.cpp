#include "drivers/nv/methods/bank0.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

template <class T>
void put(std::span<std::byte> bank, uint16_t offset, T value) {
  if (offset == kNoWord || offset + sizeof value > bank.size()) return;
  std::memcpy(bank.data() + offset, &value, sizeof value);
}

void put_dims(std::span<std::byte> bank, uint16_t offset, const hal::Dim3& dims) {
  if (offset == kNoWord) return;
  put(bank, offset, dims.x);
  put(bank, static_cast<uint16_t>(offset + 4), dims.y);
  put(bank, static_cast<uint16_t>(offset + 8), dims.z);
}

hal::Dim3 clusters_of(const hal::Dim3& grid, const hal::Dim3& cluster) {
  return {ceil_div(grid.x, cluster.x), ceil_div(grid.y, cluster.y), ceil_div(grid.z, cluster.z)};
}

/// 1 / `count`, never less: code multiplies a block's number with it and drops the fraction.
float inverse(uint32_t count) {
  const float nearest = 1.0f / static_cast<float>(count);
  const bool is_less = static_cast<double>(nearest) * count < 1;
  return is_less ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}

/// The words that may be looked for in two places.
void put_cluster(std::span<std::byte> bank, const Bank0Layout& layout, const Bank0Facts& facts,
                 uint16_t lower) {
  const auto at = [lower](uint16_t offset) {
    return offset == kNoWord ? offset : static_cast<uint16_t>(offset - lower);
  };
  put(bank, at(layout.dynamic_shared), facts.dynamic_shared);
  put_dims(bank, at(layout.cluster_dims), facts.cluster);
  put_dims(bank, at(layout.cluster_grid), clusters_of(facts.grid, facts.cluster));
  put(bank, at(layout.cluster_size), facts.cluster.x * facts.cluster.y * facts.cluster.z);
  if (layout.cluster_inverse != kNoWord)
    put(bank, at(layout.cluster_inverse),
        std::array{inverse(facts.cluster.x), inverse(facts.cluster.y), inverse(facts.cluster.z)});
}

}  // namespace

GridWords grid_words(const Bank0Layout& layout, uint32_t axis) {
  const auto along = [axis](uint16_t offset) {
    return offset == kNoWord ? offset : static_cast<uint16_t>(offset + 4 * axis);
  };
  return {along(layout.grid_dims), along(layout.cluster_grid)};
}

void encode_bank0(const Bank0Layout& layout, const Bank0Facts& facts, std::span<std::byte> bank) {
  std::ranges::fill(bank.first(std::min<size_t>(layout.params, bank.size())), std::byte{0});
  put_dims(bank, layout.block_dims, facts.block);
  put_dims(bank, layout.grid_dims, facts.grid);
  put(bank, layout.shared_window, facts.shared_window);
  put(bank, layout.local_window, facts.local_window);
  put(bank, layout.stack_pointer, kInitialStackPointer);
  put(bank, layout.grid_id, facts.grid_id);
  put(bank, layout.sm_count, facts.sm_count);
  put(bank, layout.reserved_shared, facts.reserved_shared);
  put(bank, layout.is_clustered, uint32_t{facts.has_cluster});
  put_cluster(bank, layout, facts, 0);
  if (layout.second_place != 0) put_cluster(bank, layout, facts, layout.second_place);
}

void encode_ptx_counts(uint32_t buffers, uint32_t scalars, std::span<std::byte> bank) {
  put(bank, kPtxBufferCount, buffers);
  put(bank, kPtxScalarCount, scalars);
}

Bank0Layout bank0_layout(const ChipRow& chip, bool is_ptx) {
  Bank0Layout layout = chip.bank0;
  if (!is_ptx || layout.params == kPtxParams) return layout;
  // The launch facts of later generations lie where the model expects parameters.
  layout = {.block_dims = 0x0,
            .grid_dims = 0xc,
            .shared_window = 0x18,
            .local_window = 0x20,
            .stack_pointer = 0x28,
            .params = kPtxParams};
  return layout;
}

}  // namespace bm::nv
