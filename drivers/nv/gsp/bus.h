#pragma once
// The way to a card's registers: BAR0, configuration space and the one bounded wait. Counts every
// access.

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "drivers/nv/gsp/registers.h"
#include "drivers/transport/clock.h"
#include "drivers/transport/pci.h"
#include "drivers/transport/stages.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// The stages of a boot, in words, in order.
std::span<const StageTerms> boot_terms();

/// The first failure is sticky: a card that is gone (all ones), a transport that failed, Ctrl-C.
/// From then on reads give all ones, writes are dropped and every wait ends at once, so that a boot
/// comes to its next check without asking after each access. Thread: callers serialise.
class Bus {
 public:
  /// `stop`: true once the user has asked for the end; nullptr: nobody asks.
  Bus(PciFunction& pci, Clock& clock, const std::atomic<bool>* stop = nullptr)
      : stages(boot_terms()), pci_(pci), clock_(clock), stop_(stop) {}

  /// Maps BAR0; memory decoding on. Errors: kUnsupported (no BAR0 of 16 MiB); of the transport.
  Status open();
  Status status() const;
  /// Keeps the first one.
  void fail_with(Error error);

  uint32_t read(const Register& from);
  void write(const Register& to, uint32_t value);
  /// Reads the register and writes it back with the bits of `mask` as in `value`.
  void update(const Register& which, uint32_t mask, uint32_t value);
  /// A register of a unit that may not answer yet: what is read is returned whatever it is, but for
  /// a card that is gone.
  uint32_t probe(const Register& from);
  /// The same word into one register, one after the other: a port.
  void write_port(const Register& to, std::span<const uint32_t> words);
  /// Consecutive registers, one transaction where the transport can.
  void read_block(uint32_t offset, std::span<uint32_t> to);

  /// Polls until (register & mask) == value. kTimeout names register, value, and what was wanted;
  /// kDeviceLost and kCancelled come at once. `what`: what the wait is for.
  Status wait_for(const Register& which, uint32_t mask, uint32_t value, uint64_t timeout_us,
                  std::string_view what);
  /// Polls until `is_done()`, which may read registers. False: time is up.
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

  PciFunction& pci() { return pci_; }
  Clock& clock() { return clock_; }
  const BusCounts& counts() const { return counts_; }
  const Mmio& registers() const { return registers_; }

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

 private:
  bool is_dead(uint32_t value);
  Status pause(uint32_t turn, uint64_t waited_us);

  PciFunction& pci_;
  Clock& clock_;
  const std::atomic<bool>* stop_;
  Mmio registers_;
  Status first_error_;
  BusCounts counts_;
};

}  // namespace bm::nv::gsp
