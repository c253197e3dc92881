#include "tests/sim/nv/chip/bus.h"

#include <utility>

#include <fmt/format.h>

#include "tests/sim/notify/give_up.h"

namespace bm::sim::nv::card {

uint32_t& RegisterFile::declare(uint32_t address, std::string name, std::string source,
                                Behavior behavior) {
  const auto [at, is_new] = registers_.try_emplace(
      address, Register{std::move(name), std::move(source), std::move(behavior), 0});
  if (!is_new) sim::give_up("two registers at one address: " + at->second.name + ", " + name);
  at->second.value = at->second.behavior.reset;
  return at->second.value;
}

uint32_t RegisterFile::read(uint32_t address) {
  const auto at = registers_.find(address);
  if (at == registers_.end()) {
    violations_.add(fmt::format("undocumented register: read of {:#x}", address));
    return 0xbadf1100;
  }
  return at->second.behavior.read ? at->second.behavior.read() : at->second.value;
}

void RegisterFile::write(uint32_t address, uint32_t value) {
  const auto at = registers_.find(address);
  if (at == registers_.end()) {
    violations_.add(fmt::format("undocumented register: write of {:#x} to {:#x}", value, address));
    return;
  }
  Register& one = at->second;
  if (one.behavior.is_read_only) {
    violations_.add(fmt::format("{} is read-only: write of {:#x}", one.name, value));
    return;
  }
  if (one.behavior.write)
    one.behavior.write(value);
  else
    one.value = value;
}

void RegisterFile::reset() {
  for (auto& [address, one] : registers_) one.value = one.behavior.reset;
}

std::string RegisterFile::name_of(uint32_t address) const {
  const auto at = registers_.find(address);
  return at == registers_.end() ? fmt::format("{:#x}", address) : at->second.name;
}

}  // namespace bm::sim::nv::card
