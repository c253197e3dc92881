#include "tests/sim/amd/chip/bus.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

std::unique_lock<std::mutex> hold(const RegisterBus::Declared& declared) {
  return declared.behavior.guard == nullptr ? std::unique_lock<std::mutex>()
                                            : std::unique_lock(*declared.behavior.guard);
}

}  // namespace

std::optional<uint32_t> RegisterBus::address_of(Ip ip, std::string_view name) const {
  const IpRow& block = row_.ip(ip);
  for (const RegisterRow& row : registers_of(block.header))
    if (row.name == name) return base(ip, row.segment) + row.offset;
  return std::nullopt;
}

uint32_t* RegisterBus::declare_if_there(Ip ip, std::string_view name, Behavior behavior) {
  const auto address = address_of(ip, name);
  if (!address) return nullptr;
  return &declare_at(ip, *address, std::string(name), std::string(row_.ip(ip).header) + "_offset.h",
                     std::move(behavior));
}

uint32_t& RegisterBus::declare(Ip ip, std::string_view name, Behavior behavior) {
  if (uint32_t* const at = declare_if_there(ip, name, std::move(behavior))) return *at;
  std::fprintf(stderr, "sim-amd chip: %s has no register %s\n",
               std::string(row_.ip(ip).header).c_str(), std::string(name).c_str());
  std::abort();
}

void RegisterBus::declare_all(Ip ip, std::string_view prefix, std::mutex* guard) {
  for (const RegisterRow& row : registers_of(row_.ip(ip).header))
    if (row.name.starts_with(prefix) && find(base(ip, row.segment) + row.offset) == nullptr)
      declare(ip, row.name, {.guard = guard});
}

uint32_t& RegisterBus::declare_at(Ip ip, uint32_t address, std::string name, std::string source,
                                  Behavior behavior) {
  const auto [at, is_new] = registers_.try_emplace(
      address, Declared{ip, std::move(name), std::move(source), std::move(behavior), 0});
  if (!is_new) {
    std::fprintf(stderr, "sim-amd chip: %s is where %s is\n", at->second.name.c_str(),
                 name.c_str());
    std::abort();
  }
  at->second.value = at->second.behavior.reset;
  return at->second.value;
}

const RegisterBus::Declared* RegisterBus::find(uint32_t address) const {
  const auto at = registers_.find(address);
  return at == registers_.end() ? nullptr : &at->second;
}

uint32_t RegisterBus::read(uint32_t address) {
  uint32_t value = 0;
  if (intercept && intercept(address, false, &value)) return value;
  const auto at = registers_.find(address);
  if (at == registers_.end()) {
    violations_.add(fmt::format("undeclared register: read of dword {:#x}", address));
    return 0;
  }
  const Declared& declared = at->second;
  if (declared.behavior.read) return declared.behavior.read();
  const auto lock = hold(declared);
  return declared.value;
}

void RegisterBus::write(uint32_t address, uint32_t value) {
  if (intercept && intercept(address, true, &value)) return;
  const auto at = registers_.find(address);
  if (at == registers_.end()) {
    violations_.add(
        fmt::format("undeclared register: write of {:#x} to dword {:#x}", value, address));
    return;
  }
  Declared& declared = at->second;
  if (declared.behavior.is_read_only) {
    violations_.add(fmt::format("{} is read-only: write of {:#x}", declared.name, value));
    return;
  }
  if (declared.behavior.write) return declared.behavior.write(value);
  const auto lock = hold(declared);
  declared.value = value;
}

void RegisterBus::reset(std::optional<Ip> ip) {
  for (auto& [address, declared] : registers_) {
    if (ip && declared.ip != *ip) continue;
    const auto lock = hold(declared);
    declared.value = declared.behavior.reset;
  }
}

}  // namespace bm::sim::amd
