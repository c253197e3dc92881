#include "drivers/nv/rm_gsp/booted_card.h"

#include <utility>

namespace bm::nv::gsp {
namespace {

class BootedCard final : public RunningCard {
 public:
  explicit BootedCard(std::unique_ptr<GspCard> card) : card_(std::move(card)) {}
  ChipId chip() const override {
    return {card_->facts().architecture, card_->facts().implementation};
  }
  PciFunction& function() override { return card_->function(); }
  GspRpc& rpc() override { return card_->rpc(); }
  const Mmio& registers() override { return card_->bus().registers(); }
  memory::IovaAllocator* iovas() override { return card_->host_memory().iovas(); }
  Status shut_down() override { return card_->leave(); }

 private:
  std::unique_ptr<GspCard> card_;
};

}  // namespace

std::unique_ptr<RunningCard> make_running(std::unique_ptr<GspCard> card) {
  return std::make_unique<BootedCard>(std::move(card));
}

}  // namespace bm::nv::gsp
