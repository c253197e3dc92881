#pragma once
// A modelled card that drivers come to and leave, one after another.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "drivers/amd/am/gpu.h"
#include "tests/sim/amd/chip/function.h"
#include "tests/unit/amd_am/firmware_files.h"

namespace bm::test {

/// Sleeps a fiftieth of what it is asked to and counts it whole, so that waits end soon and a busy
/// machine does not end them sooner.
class FastClock final : public Clock {
 public:
  uint64_t now_us() override {
    return skipped_ + static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                                std::chrono::steady_clock::now().time_since_epoch())
                                                .count());
  }
  void sleep_us(uint64_t us) override {
    std::this_thread::sleep_for(std::chrono::microseconds(us / kFactor));
    skipped_ += us - us / kFactor;
  }

 private:
  static constexpr uint64_t kFactor = 50;
  std::atomic<uint64_t> skipped_{0};
};

struct CardRig {
  explicit CardRig(sim::amd::ChipOptions wanted = {})
      : card(std::make_shared<sim::amd::Chip>(wanted)) {
    folder.write_chip(wanted.chip);
  }

  Result<std::unique_ptr<amd::am::AmGpu>> open(bool always_reset = false) {
    return amd::am::AmGpu::open(std::make_unique<sim::amd::ChipFunction>(card),
                                {.firmware = folder.search(),
                                 .clock = &clock,
                                 .always_reset = always_reset,
                                 .experimental = experimental});
  }
  std::string violations() const {
    std::string text;
    for (const std::string& line : card->violations()) text += line + "\n";
    return text;
  }

  std::string experimental = "gfx942";
  FirmwareFolder folder;
  FastClock clock;
  std::shared_ptr<sim::amd::Chip> card;
};

}  // namespace bm::test
