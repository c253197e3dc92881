#pragma once
// What every way to a card's registers has: the sticky first failure, the bounded wait, counts of
// accesses and the stages of a boot.

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "drivers/transport/clock.h"
#include "drivers/transport/mmio.h"
#include "drivers/transport/pci.h"
#include "drivers/transport/stages.h"
#include "runtime/base/result.h"

namespace bm {

/// The first failure is sticky: a card that is gone (all ones), a transport that failed, Ctrl-C.
/// From then on reads give all ones, writes are dropped and every wait ends at once, so that a boot
/// comes to its next check without asking after each access. Thread: callers serialise.
class CardBus {
 public:
  Status status() const {
    if (!first_error_) return first_error_;
    return pci_.status();
  }
  /// Keeps the first one.
  void fail_with(Error error) {
    if (first_error_) first_error_ = tl::unexpected(std::move(error));
  }

  /// Polls until `is_done()`, which may read registers. False: time is up. Errors: of status().
  template <class Done>
  Result<bool> poll(uint64_t timeout_us, Done&& is_done) {
    const uint64_t begun = clock_.now_us();
    for (uint32_t turn = 0;; ++turn) {
      // Before the look: whoever was off the processor until the end of the wait looks once more.
      const uint64_t waited = clock_.now_us() - begun;
      const bool done = is_done();
      BM_TRY(status());
      if (done) return true;
      if (waited >= timeout_us) return false;
      BM_TRY(pause(turn, waited));
    }
  }
  void sleep_us(uint64_t us) { clock_.sleep_us(us); }

  const Mmio& registers() const { return registers_; }
  PciFunction& pci() { return pci_; }
  Clock& clock() { return clock_; }
  const BusCounts& counts() const { return counts_; }

  Result<uint32_t> read_config(uint32_t offset, uint32_t width);
  Status write_config(uint32_t offset, uint32_t width, uint32_t value);

  StageLog stages;
  /// One stage: `work` is a Status(); its end checks the bus. Errors name the stage.
  template <class Work>
  Status run(std::string_view name, Work&& work) {
    stages.begin(name, counts_, clock_.now_us());
    Status done = work();
    // What the bus has met is the cause of what the stage says.
    if (const Status seen = status(); !seen) done = seen;
    stages.end(done, counts_, clock_.now_us());
    if (!done) return tl::unexpected(stages.explain(done.error()));
    return {};
  }

 protected:
  /// `terms`: of the boot's stages. `stop`: true once the user has asked for the end; nullptr:
  /// nobody asks.
  CardBus(PciFunction& pci, Clock& clock, std::span<const StageTerms> terms,
          const std::atomic<bool>* stop = nullptr)
      : stages(terms), pci_(pci), clock_(clock), stop_(stop) {}

  /// Registers can hold all ones; a card that is gone says so in configuration space, too.
  bool is_dead(uint32_t value);
  /// kTimeout of a register that stays `seen`, which `words` says in words.
  static tl::unexpected<Error> late(std::string_view what, std::string_view name, uint32_t seen,
                                    std::string_view words, uint32_t mask, uint32_t value,
                                    uint64_t waited_us);

  PciFunction& pci_;
  Clock& clock_;
  Mmio registers_;
  Status first_error_;
  BusCounts counts_;

 private:
  Status pause(uint32_t turn, uint64_t waited_us);

  const std::atomic<bool>* stop_;
};

}  // namespace bm
