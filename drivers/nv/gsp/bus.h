#pragma once
// The way to a card's registers: BAR0, configuration space and the one bounded wait. Counts every
// access.

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "drivers/nv/gsp/registers.h"
#include "drivers/transport/card_bus.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// The stages of a boot, in words, in order.
std::span<const StageTerms> boot_terms();

/// Thread: callers serialise.
class Bus : public CardBus {
 public:
  /// `stop`: true once the user has asked for the end; nullptr: nobody asks.
  Bus(PciFunction& pci, Clock& clock, const std::atomic<bool>* stop = nullptr)
      : CardBus(pci, clock, boot_terms(), stop) {}

  /// Maps BAR0; memory decoding on. Errors: kUnsupported (no BAR0 of 16 MiB); of the transport.
  Status open();

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
};

}  // namespace bm::nv::gsp
