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
class FastClock final : public amd::am::Clock {
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
    const firmware::amd::ChipId ids[] = {
        {{11, 0, 0}, {13, 0, 0}, {13, 0, 0}, {6, 0, 0}, 0x744c, 0},
        {{11, 0, 2}, {13, 0, 7}, {13, 0, 7}, {6, 0, 2}, 0x7480, 0},
        {{11, 0, 3}, {13, 0, 10}, {13, 0, 10}, {6, 0, 3}, 0x747e, 0},
        {{12, 0, 0}, {14, 0, 2}, {14, 0, 2}, {7, 0, 0}, 0x7590, 0},
        {{12, 0, 1}, {14, 0, 3}, {14, 0, 3}, {7, 0, 1}, 0x7550, 0}};
    for (const auto& id : ids) {
      const auto set = firmware::amd::firmware_set(id);
      if (set && set->arch == wanted.chip) folder.write(*set);
    }
  }

  Result<std::unique_ptr<amd::am::AmGpu>> open(bool always_reset = false) {
    return amd::am::AmGpu::open(
        std::make_unique<sim::amd::ChipFunction>(card),
        {.firmware = folder.search(), .clock = &clock, .always_reset = always_reset});
  }
  std::string violations() const {
    std::string text;
    for (const std::string& line : card->violations()) text += line + "\n";
    return text;
  }

  FirmwareFolder folder;
  FastClock clock;
  std::shared_ptr<sim::amd::Chip> card;
};

}  // namespace bm::test
