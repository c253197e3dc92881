#pragma once
// Modelled cards that run real code, as the runtime opens them: what goes wrong in them, and what
// comes after.

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "drivers/amd/device.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/rig.h"
#include "tests/unit/amd_faults/kernels.h"
#include "tests/unit/planted/bench.h"

namespace bm::amd {

class CardBench final : public planted::Bench {
 public:
  CardBench(const char* chip, PacketMode packets, sim::amd::ChipOptions options = {})
      : chip_(chip), packets_(packets) {
    options.chip = chip;
    options.execute = sim::amd::interpreter(chip);
    for (auto& rig : rigs_) rig = std::make_unique<test::CardRig>(options);
  }
  ~CardBench() override { close(); }

  test::CardRig& rig(uint32_t index = 0) { return *rigs_[index]; }
  sim::amd::ChipOptions& faults() { return rigs_[0]->card->options(); }
  /// Of the card that open() opened; gone with it.
  am::AmGpu& gpu() const { return *gpu_; }

  Result<std::unique_ptr<runtime::Device>> open_unit(uint32_t index) override {
    auto gpu = BM_TRY(rigs_[index]->open());
    if (index == 0) gpu_ = gpu.get();
    auto made = BM_TRY(make_device(std::move(gpu), {.packets = packets_}));
    return runtime::make_device(std::move(made), fmt::format("AMD:{}", index), "LLVM");
  }
  hal::CodeObject any_code() override { return code("numbers"); }
  hal::CodeObject code(std::string_view name) const { return faults::kernel(chip_, name); }
  using planted::Bench::launch;
  Status launch(std::string_view kernel, uint64_t at) { return launch(code(kernel), at); }
  Status works() override { return faults::kernels_and_copies_work(*this); }

 private:
  const std::string chip_;
  const PacketMode packets_;
  std::array<std::unique_ptr<test::CardRig>, 2> rigs_;
  am::AmGpu* gpu_ = nullptr;
};

}  // namespace bm::amd
