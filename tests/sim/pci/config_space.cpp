#include "tests/sim/pci/config_space.h"

#include <bit>
#include <cstring>

namespace bm::sim {
namespace {
constexpr uint32_t kCommand = 4, kBars = 0x10, kErrors = 0x150, kResizable = 0x200;
constexpr uint64_t kLeastBar = uint64_t{256} << 20;
}  // namespace

ConfigSpace::ConfigSpace(const ConfigLayout& layout)
    : bars_(layout.bars),
      resizable_(layout.resizable_bar),
      largest_bar_(layout.largest_bar),
      power_on_bytes_(layout.bars[layout.resizable_bar].bytes),
      has_function_reset_(layout.has_function_reset),
      at_(layout.capabilities) {
  put(0x00, 2, layout.vendor);
  put(0x02, 2, layout.device);
  put(kCommand, 2, 0, 0x0547);
  put(0x06, 2, 0x0010);
  put(0x08, 4, 0x03000000u | layout.revision);
  put(0x2c, 2, layout.subsystem_vendor);
  put(0x2e, 2, layout.subsystem_device);
  put(0x34, 1, at_.power);
  put(at_.power, 4, 0x0003'0001u | uint32_t{at_.express} << 8);
  put(at_.power + 4, 2, 0x0008, 0x0003);  // No_Soft_Reset
  put(at_.express, 4, 0x0002'0010u | uint32_t{at_.msi} << 8);
  put(at_.express + 4, 4, has_function_reset_ ? 1u << 28 : 0);
  put(at_.express + 8, 2, 0, 0xffff);
  put(at_.msi, 4, 0x0080'0005, 0x0071'0000);  // 64-bit, one vector
  put(at_.msi + 4, 4, 0, 0xfffffffc);
  put(at_.msi + 8, 4, 0, 0xffffffff);
  put(at_.msi + 12, 2, 0, 0xffff);
  put(0x100, 4, 0x0001'000b | kErrors << 20);  // vendor specific, empty
  put(kErrors, 4, 0x0002'0001 | kResizable << 20);
  put(kResizable, 4, 0x0001'0015);
  uint32_t sizes = 0;  // bit 4 + n: 2^n MiB
  for (uint64_t bytes = kLeastBar; bytes <= largest_bar_; bytes *= 2)
    sizes |= 1u << (4 + std::countr_zero(bytes >> 20));
  put(kResizable + 4, 4, sizes);
  put(kResizable + 8, 4,
      1u << 5 | static_cast<uint32_t>(std::countr_zero(power_on_bytes_ >> 20)) << 8 | resizable_,
      0x3f00);
  put_bar_masks();
  for (uint32_t i = 0; i < bars_.size(); ++i)
    if (bars_[i].bytes != 0)
      put(kBars + i * 4, 4, (bars_[i].is_prefetchable ? 8 : 0) | (bars_[i].is_64_bit ? 4 : 0),
          static_cast<uint32_t>(~(bars_[i].bytes - 1)));
  power_on();
}

void ConfigSpace::put(uint32_t offset, uint32_t width, uint32_t value, uint32_t writable) {
  std::memcpy(&initial_[offset], &value, width);
  std::memcpy(&writable_[offset], &writable, width);
}

void ConfigSpace::put_bar_masks() {
  for (uint32_t i = 0; i < bars_.size(); ++i) {
    if (bars_[i].bytes == 0) continue;
    const uint64_t mask = ~(bars_[i].bytes - 1);
    const auto low = static_cast<uint32_t>(mask), high = static_cast<uint32_t>(mask >> 32);
    std::memcpy(&writable_[kBars + i * 4], &low, 4);
    if (bars_[i].is_64_bit) std::memcpy(&writable_[kBars + i * 4 + 4], &high, 4);
  }
}

void ConfigSpace::power_on() {
  bytes_ = initial_;
  bars_[resizable_].bytes = power_on_bytes_;
  put_bar_masks();
}

uint32_t ConfigSpace::read(uint32_t offset, uint32_t width) const {
  uint32_t value = 0;
  std::memcpy(&value, &bytes_[offset], width);
  return value;
}

ConfigSpace::Effect ConfigSpace::write(uint32_t offset, uint32_t width, uint32_t value) {
  for (uint32_t i = 0; i < width; ++i) {
    const uint8_t mask = writable_[offset + i];
    const auto byte = static_cast<uint8_t>(value >> i * 8);
    bytes_[offset + i] = static_cast<uint8_t>((bytes_[offset + i] & ~mask) | (byte & mask));
  }
  if (has_function_reset_ && (read(at_.express + 8, 2) & 0x8000) != 0) {
    bytes_[at_.express + 9] = static_cast<uint8_t>(bytes_[at_.express + 9] & 0x7f);
    return Effect::kFunctionReset;
  }
  const uint64_t wanted = uint64_t{1} << (20 + (read(kResizable + 8, 4) >> 8 & 0x3f));
  if (wanted != bars_[resizable_].bytes && resize_bar(wanted)) return Effect::kBarResized;
  return Effect::kNone;
}

bool ConfigSpace::resize_bar(uint64_t bytes) {
  if (!std::has_single_bit(bytes) || bytes < kLeastBar || bytes > largest_bar_) return false;
  bars_[resizable_].bytes = bytes;
  const uint32_t control = (read(kResizable + 8, 4) & ~0x3f00u) |
                           static_cast<uint32_t>(std::countr_zero(bytes >> 20)) << 8;
  std::memcpy(&bytes_[kResizable + 8], &control, 4);
  put_bar_masks();
  return true;
}

uint64_t ConfigSpace::bar_address(uint32_t index) const {
  const uint64_t low = read(kBars + index * 4, 4) & ~0xfu;
  return bars_[index].is_64_bit ? low | uint64_t{read(kBars + index * 4 + 4, 4)} << 32 : low;
}

void ConfigSpace::set_bar_address(uint32_t index, uint64_t address) {
  write(kBars + index * 4, 4, static_cast<uint32_t>(address));
  if (bars_[index].is_64_bit) write(kBars + index * 4 + 4, 4, static_cast<uint32_t>(address >> 32));
}

bool ConfigSpace::decodes_memory() const {
  return (read(kCommand, 2) & 2) != 0 && (read(at_.power + 4, 2) & 3) == 0;
}
bool ConfigSpace::is_bus_master() const {
  return (read(kCommand, 2) & 4) != 0 && (read(at_.power + 4, 2) & 3) == 0;
}
bool ConfigSpace::has_msi() const { return (read(at_.msi + 2, 2) & 1) != 0; }
void ConfigSpace::set_command(bool memory, bool master) {
  write(kCommand, 2, (read(kCommand, 2) & ~6u) | (memory ? 2 : 0) | (master ? 4 : 0));
}
void ConfigSpace::set_msi(bool on) {
  write(at_.msi + 2, 2, (read(at_.msi + 2, 2) & ~1u) | (on ? 1 : 0));
}

}  // namespace bm::sim
