// NVIDIA without a GPU and without a kernel driver: our own boot on the modelled card, every
// generation, in this process.

#include <array>
#include <memory>

#include "drivers/nv/device.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/nv_kernels.h"
#include "tests/unit/nv_gsp/card_rig.h"

namespace bm::cts {
namespace {

namespace gsp = nv::gsp;

struct GspMachine {
  const char* name;
  const char* chip;
};
constexpr std::array kCards = {GspMachine{"GSP_tu102", "tu102"}, GspMachine{"GSP_ga100", "ga100"},
                               GspMachine{"GSP_ga102", "ga102"}, GspMachine{"GSP_ad102", "ad102"},
                               GspMachine{"GSP_gh100", "gh100"}, GspMachine{"GSP_gb100", "gb100"},
                               GspMachine{"GSP_gb202", "gb202"}};
constexpr size_t kUnits = 2;

/// Cards for the whole run, as real ones are: devices may come and go on them.
gsp::test::CardRig& card(size_t machine, uint32_t unit) {
  static std::array<std::unique_ptr<gsp::test::CardRig>, kCards.size() * kUnits> cards;
  auto& made = cards[machine * kUnits + unit];
  if (!made) made = std::make_unique<gsp::test::CardRig>(kCards[machine].chip);
  return *made;
}

template <size_t kIndex, uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  return nv::open_booted(BM_TRY(card(kIndex, kUnit).open()));
}

template <size_t... kIndex>
std::vector<Subject> all(std::index_sequence<kIndex...>) {
  return {Subject{
      kCards[kIndex].name, open<kIndex, 0>, ptx_kernel, ptx_exemptions(), {}, open<kIndex, 1>}...};
}

}  // namespace

std::vector<Subject> subjects() {
  static const ScopedSetting text("BM_NV_CODE", "ptx");
  return all(std::make_index_sequence<kCards.size()>());
}

}  // namespace bm::cts
