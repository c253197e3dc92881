// A table of drivers in place of drivers/builtin.cpp: DEV=NV:0 to NV:6 are modelled cards in this
// process that no kernel driver has, one a generation; CPU is the real one. Linked into whole
// programs. What a card has against its driver ends the process.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "drivers/cpu/device.h"
#include "drivers/nv/device.h"
#include "tests/unit/nv_gsp/card_rig.h"

namespace bm::hal {
namespace {

using nv::gsp::test::CardRig;
using nv::gsp::test::kChips;

constexpr uint32_t kCards = std::size(kChips);

CardRig& card(uint32_t index) {
  static std::array<std::unique_ptr<CardRig>, kCards> cards;
  auto& made = cards[index];
  if (!made) made = std::make_unique<CardRig>(kChips[index]);
  return *made;
}

/// Asks the card when its driver has left.
class JudgedFunction final : public sim::CardFunction {
 public:
  explicit JudgedFunction(std::shared_ptr<sim::nv::card::Card> card)
      : CardFunction(card), card_(std::move(card)) {}
  ~JudgedFunction() override {
    if (card_->violations().empty()) return;
    for (const std::string& one : card_->violations())
      std::fprintf(stderr, "the card refuses: %s\n", one.c_str());
    std::abort();
  }

 private:
  std::shared_ptr<sim::nv::card::Card> card_;
};

Result<uint32_t> count(std::string_view) { return kCards; }

Result<std::unique_ptr<Device>> open(std::string_view, uint32_t index, std::string_view arch) {
  if (index >= kCards) return fail(Code::kNotFound, "no card {}", index);
  CardRig& rig = card(index);
  return nv::open_booted(BM_TRY(rig.open(std::make_unique<JudgedFunction>(rig.card))), arch);
}

constexpr DriverInfo kDrivers[] = {
    {.name = "CPU",
     .interfaces = "",
     .renderers = "LLVM CLANG",
     .help = "",
     .count = cpu::count_devices,
     .open = cpu::open_device},
    {.name = "NV",
     .interfaces = "PCI",
     .renderers = "NVRTC PTX LLVM",
     .help = "",
     .count = count,
     .open = open},
};

}  // namespace

std::span<const DriverInfo> builtin_drivers() { return kDrivers; }

}  // namespace bm::hal
