#pragma once
// The register file. A register is there because a block declared it, with the header that has it;
// whatever else a driver reads or writes is held against it.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tests/sim/pci/violations.h"

namespace bm::sim::nv::card {

/// How a register behaves. Without functions it holds what is written to it.
struct Behavior {
  uint32_t reset = 0;
  std::function<uint32_t()> read = {};
  std::function<void(uint32_t)> write = {};
  bool is_read_only = false;
};

/// Thread: callers serialise.
class RegisterFile {
 public:
  explicit RegisterFile(Violations& violations) : violations_(violations) {}

  /// `address`: in bytes of BAR 0. `source`: the header. Ends the process where one is already.
  uint32_t& declare(uint32_t address, std::string name, std::string source, Behavior behavior = {});
  uint32_t read(uint32_t address);
  void write(uint32_t address, uint32_t value);
  /// Back to the reset values.
  void reset();
  Violations& violations() { return violations_; }
  std::string name_of(uint32_t address) const;

 private:
  struct Register {
    std::string name, source;
    Behavior behavior;
    uint32_t value = 0;
  };
  Violations& violations_;
  std::map<uint32_t, Register> registers_;
};

}  // namespace bm::sim::nv::card
