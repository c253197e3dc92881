#pragma once
// Host places of device addresses, with the wave's fault where there is none.

#include <cstring>

#include "tests/sim/amd/exec/wave.h"

namespace bm::sim::amd {

/// Host memory of one access: in two parts where it goes over the end of a page whose neighbour
/// lies elsewhere (accesses of several dwords are aligned to one).
struct HostPlace {
  std::byte* at = nullptr;
  std::byte* rest = nullptr;  ///< behind the end of the page
  uint32_t before = 0;        ///< bytes in front of it, if there is a rest

  explicit operator bool() const { return at != nullptr; }
  void read(void* to, uint32_t bytes) const {
    const uint32_t first = rest ? before : bytes;
    std::memcpy(to, at, first);
    if (rest) std::memcpy(static_cast<std::byte*>(to) + first, rest, bytes - first);
  }
  void write(const void* from, uint32_t bytes) const {
    const uint32_t first = rest ? before : bytes;
    std::memcpy(at, from, first);
    if (rest) std::memcpy(rest, static_cast<const std::byte*>(from) + first, bytes - first);
  }
};

/// Nothing after recording a fault.
inline HostPlace place(Wave& w, uint64_t address, uint32_t bytes, Access access, uint32_t lane) {
  constexpr uint32_t kLeastPage = 4096;
  const Memory::Place p = w.group->memory->at(address, bytes, access);
  if (p.host) return {.at = p.host};
  const auto before = static_cast<uint32_t>(kLeastPage - address % kLeastPage);
  if (p.is_permission || access == Access::kAtomic || before >= bytes) {
    w.fail(p.is_permission ? Fault::Kind::kPermission : Fault::Kind::kUnmapped, address, lane,
           access);
    return {};
  }
  const HostPlace first = place(w, address, before, access, lane);
  if (!first) return {};
  const HostPlace rest = place(w, address + before, bytes - before, access, lane);
  if (!rest) return {};
  return {.at = first.at, .rest = rest.at, .before = before};
}

}  // namespace bm::sim::amd
