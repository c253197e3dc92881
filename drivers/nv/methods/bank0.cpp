#include "drivers/nv/methods/bank0.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

void encode_bank0(const Bank0Layout& layout, const Bank0Facts& facts, std::span<std::byte> bank) {
  std::ranges::fill(bank.first(std::min<size_t>(layout.params, bank.size())), std::byte{0});
  put_dims(bank, layout.block_dims, facts.block);
  put_dims(bank, layout.grid_dims, facts.grid);
  put(bank, layout.shared_window, facts.shared_window);
  put(bank, layout.local_window, facts.local_window);
  put(bank, layout.stack_pointer, kInitialStackPointer);
  put(bank, layout.sm_count, facts.sm_count);
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
            .sm_count = kNoWord,
            .memory_descriptor = kNoWord,
            .params = kPtxParams};
  return layout;
}

}  // namespace bm::nv
