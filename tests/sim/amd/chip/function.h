#pragma once
// The modelled chip as a PCI function of this process: what a driver opens in tests.

#include <memory>
#include <utility>

#include "tests/sim/amd/chip/chip.h"
#include "tests/sim/pci/function.h"

namespace bm::sim::amd {

class ChipFunction final : public CardFunction {
 public:
  explicit ChipFunction(const ChipOptions& options = {})
      : ChipFunction(std::make_shared<Chip>(options)) {}
  explicit ChipFunction(std::shared_ptr<Chip> chip) : CardFunction(chip), chip_(std::move(chip)) {}

  Chip& chip() { return *chip_; }

 private:
  std::shared_ptr<Chip> chip_;
};

}  // namespace bm::sim::amd
