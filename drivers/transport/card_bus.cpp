#include "drivers/transport/card_bus.h"

#include <algorithm>

namespace bm {

bool CardBus::is_dead(uint32_t value) {
  if (value != UINT32_MAX) return false;
  if (!status()) return true;
  constexpr uint32_t kVendor = 0, kGone = 0xffff;
  const auto vendor = read_config(kVendor, 2);
  if (vendor && *vendor != kGone) return false;
  fail_with({Code::kDeviceLost, vendor
                                    ? "the card is gone: registers and configuration space read as "
                                      "all ones (unplugged, powered off or hung)"
                                    : vendor.error().message});
  return true;
}

Status CardBus::pause(uint32_t turn, uint64_t waited_us) {
  constexpr uint32_t kSpins = 32;  // answers mostly come within a few reads
  constexpr uint64_t kLeastSleepUs = 10, kMostSleepUs = 1000;
  if (stop_ != nullptr && stop_->load(std::memory_order_relaxed)) {
    fail_with({Code::kCancelled, "interrupted; the next start of the card resets it"});
    return status();
  }
  if (turn < kSpins)
    relax();
  else
    clock_.sleep_us(std::clamp(waited_us / 8, kLeastSleepUs, kMostSleepUs));
  return {};
}

tl::unexpected<Error> CardBus::late(std::string_view what, std::string_view name, uint32_t seen,
                                    std::string_view words, uint32_t mask, uint32_t value,
                                    uint64_t waited_us) {
  return fail(Code::kTimeout, "{}: {} is {:#x}{}{}{}, wanted {:#x} of mask {:#x}; waited {} ms",
              what, name, seen, words.empty() ? "" : " (", words, words.empty() ? "" : ")", value,
              mask, waited_us / 1000);
}

Result<uint32_t> CardBus::read_config(uint32_t offset, uint32_t width) {
  ++counts_.configuration;
  return pci_.read_config(offset, width);
}

Status CardBus::write_config(uint32_t offset, uint32_t width, uint32_t value) {
  ++counts_.configuration;
  return pci_.write_config(offset, width, value);
}

}  // namespace bm
