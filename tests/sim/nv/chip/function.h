#pragma once
// The modelled card as a PCI function of this process: what a driver opens in tests.

#include <memory>
#include <utility>

#include "tests/sim/nv/chip/card.h"
#include "tests/sim/pci/function.h"

namespace bm::sim::nv::card {

class NvFunction final : public CardFunction {
 public:
  explicit NvFunction(CardOptions options)
      : NvFunction(std::make_shared<Card>(std::move(options))) {}
  /// On a card that somebody else keeps: what one driver leaves the next one finds.
  explicit NvFunction(std::shared_ptr<Card> card) : CardFunction(card), card_(std::move(card)) {}

  Card& card() { return *card_; }

 private:
  std::shared_ptr<Card> card_;
};

}  // namespace bm::sim::nv::card
