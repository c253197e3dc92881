#include "drivers/nv/rm_gsp/video_window.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "drivers/nv/rm_gsp/bounded_wait.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::nv::gsp {
namespace {

// Source: open-gpu-kernel-modules 570.144: maxwell/gm107/dev_bus.h (NV_PBUS_BAR0_WINDOW),
// ga100/dev_bus.h (NV_PBUS_BAR1_BLOCK), hopper/gh100/pri_nv_xal_ep.h (NV_XAL_EP_BAR0_WINDOW),
// hopper/gh100/dev_vm.h (NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR1_BLOCK_LOW_ADDR, pending bits 1:0).
// All fields of the blocks are 0: physical, video memory.
constexpr uint64_t kBusWindow = 0x1700, kXalWindow = 0x10fd40;
constexpr uint64_t kBusBlock = 0x1704, kFunctionBlock = 0xb80000 + 0xf60;
constexpr uint32_t kBlockBusy = 3;
constexpr uint64_t kPramin = 0x700000, kPraminBytes = 1 << 20, kPraminStep = 64 << 10;
constexpr uint64_t kLeastRegisters = 16 << 20;
// TIMEOUT: a bind of BAR1 takes microseconds; 100 ms are for a busy machine.
constexpr uint64_t kBlockTimeoutUs = 100'000;

}  // namespace

Result<VideoWindow> VideoWindow::open(const Mmio& registers, const HostView& bar1,
                                      uint64_t video_bytes, WindowRegisters where) {
  if (registers.size() < kLeastRegisters || bar1.size() == 0)
    return fail(Code::kUnsupported, "BAR0 of {:#x} bytes and BAR1 of {:#x} bytes: no NVIDIA GPU",
                registers.size(), bar1.size());
  const uint64_t seen = align_down(std::min(bar1.size(), video_bytes), uint64_t{4096});
  VideoWindow window(registers, bar1.slice(0, seen), where);
  BM_TRY(window.block_bar1());
  return window;
}

Status VideoWindow::block_bar1() {
  registers_.write32(kBusBlock, 0);
  if (where_ == WindowRegisters::kBus) return registers_.status();
  registers_.write32(kFunctionBlock, 0);
  return wait_until(registers_, kFunctionBlock, kBlockBusy, 0, kBlockTimeoutUs,
                    "making BAR1 physical");
}

std::pair<uint64_t, uint64_t> VideoWindow::aim(uint64_t address) {
  const uint64_t base = align_down(address, kPraminStep);
  if (base != base_) {
    const bool is_bus = where_ == WindowRegisters::kBus;
    registers_.write32(is_bus ? kBusWindow : kXalWindow, static_cast<uint32_t>(base >> 16));
    // The write has arrived once the register is read.
    static_cast<void>(registers_.read32(is_bus ? kBusWindow : kXalWindow));
    base_ = base;
  }
  return {kPramin + (address - base), kPraminBytes - (address - base)};
}

void VideoWindow::write(uint64_t address, std::span<const std::byte> from) {
  BM_CHECK(is_aligned(address, 4) && from.size() % 4 == 0);
  if (is_visible(address, from.size())) {
    bar1_.copy_in(address, from);
    return;
  }
  std::vector<uint32_t> words;
  while (!from.empty()) {
    const auto [at, room] = aim(address);
    const size_t bytes = std::min<uint64_t>(room, from.size());
    words.resize(bytes / 4);
    std::memcpy(words.data(), from.data(), bytes);
    registers_.write_block(at, words);
    from = from.subspan(bytes);
    address += bytes;
  }
}

void VideoWindow::read(uint64_t address, std::span<std::byte> to) {
  BM_CHECK(is_aligned(address, 4) && to.size() % 4 == 0);
  if (is_visible(address, to.size())) {
    bar1_.copy_out(address, to);
    return;
  }
  std::vector<uint32_t> words;
  while (!to.empty()) {
    const auto [at, room] = aim(address);
    const size_t bytes = std::min<uint64_t>(room, to.size());
    words.resize(bytes / 4);
    registers_.read_block(at, words);
    std::memcpy(to.data(), words.data(), bytes);
    to = to.subspan(bytes);
    address += bytes;
  }
}

void VideoWindow::fill_zero(uint64_t address, uint64_t bytes) {
  BM_CHECK(is_aligned(address, 4) && bytes % 4 == 0);
  if (is_visible(address, bytes)) {
    bar1_.fill(address, bytes, std::byte{0});
    return;
  }
  constexpr std::array<std::byte, 4096> kZeros{};
  for (uint64_t done = 0; done < bytes; done += kZeros.size())
    write(address + done, std::span(kZeros).first(std::min<uint64_t>(kZeros.size(), bytes - done)));
}

void VideoWindow::publish() { bar1_.publish(); }

}  // namespace bm::nv::gsp
