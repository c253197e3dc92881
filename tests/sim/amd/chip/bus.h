#pragma once
// The register bus of a modelled chip. A register is there because a block declared it; whatever
// else a driver touches is a violation, kept with the access that made it.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/amd/chip/registers.h"
#include "tests/sim/amd/chip/rows.h"
#include "tests/sim/pci/violations.h"

namespace bm::sim::amd {

/// How a declared register behaves. Without functions it holds what is written to it.
struct Behavior {
  uint32_t reset = 0;
  std::function<uint32_t()> read = {};
  std::function<void(uint32_t)> write = {};
  bool is_read_only = false;
  std::mutex* guard = nullptr;  ///< held for plain accesses: queues' threads look at the value
};

/// Thread: callers serialise.
class RegisterBus {
 public:
  RegisterBus(const ChipRow& row, Violations& violations) : row_(row), violations_(violations) {}

  /// Declares a register of a block's header. The value stays where it is. Ends the process where
  /// the header has no such register.
  uint32_t& declare(Ip ip, std::string_view name, Behavior behavior = {});
  /// The same where only some headers have it: nullptr for the others.
  uint32_t* declare_if_there(Ip ip, std::string_view name, Behavior behavior = {});
  /// Every register of the block's header whose name begins so and that nothing declared yet.
  void declare_all(Ip ip, std::string_view prefix, std::mutex* guard = nullptr);
  /// One that no header lists; `source` says who does.
  uint32_t& declare_at(Ip ip, uint32_t address, std::string name, std::string source,
                       Behavior behavior = {});
  /// Dword address, of the instance that is being declared.
  std::optional<uint32_t> address_of(Ip ip, std::string_view name) const;
  /// Of every block: whose registers are declared from now on. A block without it has its first.
  void select_instance(Ip ip, uint32_t instance) { instances_[ip] = instance; }
  uint32_t instance_of(Ip ip) const {
    const auto at = instances_.find(ip);
    return at == instances_.end() ? 0 : at->second;
  }
  uint32_t base(Ip ip, uint32_t segment) const {
    return row_.ip(ip).bases[segment] + instance_of(ip) * row_.ip(ip).stride;
  }
  Field field(Ip ip, std::string_view name, std::string_view field) const {
    return field_of(row_.ip(ip).header, name, field);
  }

  uint32_t read(uint32_t address);
  void write(uint32_t address, uint32_t value);
  /// Back to the reset values of one block's registers, or of all.
  void reset(std::optional<Ip> ip = std::nullopt);
  /// Addresses that are looked at before the registers. True: it was one.
  std::function<bool(uint32_t address, bool is_write, uint32_t* value)> intercept;

  struct Declared {
    Ip ip;
    std::string name, source;
    Behavior behavior;
    uint32_t value = 0;
  };
  const Declared* find(uint32_t address) const;
  size_t size() const { return registers_.size(); }
  const ChipRow& row() const { return row_; }
  Violations& violations() { return violations_; }

 private:
  const ChipRow& row_;
  Violations& violations_;
  std::map<uint32_t, Declared> registers_;
  std::map<Ip, uint32_t> instances_;
};

}  // namespace bm::sim::amd
