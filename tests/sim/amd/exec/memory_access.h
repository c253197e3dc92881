#pragma once
// Host places of device addresses, with the wave's fault where there is none.

#include "tests/sim/amd/exec/wave.h"

namespace bm::sim::amd {

/// Null after recording a fault.
inline std::byte* place(Wave& w, uint64_t address, uint32_t bytes, Access access, uint32_t lane) {
  const Memory::Place p = w.group->memory->at(address, bytes, access);
  if (!p.host)
    w.fail(p.is_permission ? Fault::Kind::kPermission : Fault::Kind::kUnmapped, address, lane,
           access);
  return p.host;
}

}  // namespace bm::sim::amd
