#pragma once
// Modelled cards that run real code, as the runtime opens them: what goes wrong in them, and what
// comes after.

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "drivers/amd/device.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/rig.h"
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
  hal::CodeObject code(std::string_view kernel) const {
    std::ifstream file("tests/unit/amd_faults/data/" + chip_ + ".o", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    hal::CodeObject made;
    made.entry = kernel;
    made.arch = chip_;
    made.image.assign(bytes.begin(), bytes.end());
    made.num_buffers = 1;
    made.block = {.x = 32};
    return made;
  }
  using planted::Bench::launch;
  Status launch(std::string_view kernel, uint64_t at) { return launch(code(kernel), at); }
  Status works() override {
    constexpr uint64_t kBytes = 32 * 8;
    hal::Buffer* const video = BM_TRY(allocate(kBytes));
    hal::Buffer* const seen = BM_TRY(allocate(kBytes, true));
    BM_TRY(launch("numbers", hal::raw(video->va())));
    BM_TRY(copy(hal::QueueKind::kCopy, hal::raw(seen->va()), hal::raw(video->va()), kBytes));
    BM_TRY(launch("step", hal::raw(seen->va())));
    for (uint64_t i = 0; i < 32; ++i) {
      uint64_t number = 0;
      std::memcpy(&number, seen->host() + i * 8, 8);
      if (number != (i == 0 ? 7 * 3 + 1 : i * 8 + 7))
        return fail(Code::kInternal, "number {} is {}", i, number);
    }
    return {};
  }

 private:
  const std::string chip_;
  const PacketMode packets_;
  std::array<std::unique_ptr<test::CardRig>, 2> rigs_;
  am::AmGpu* gpu_ = nullptr;
};

}  // namespace bm::amd
