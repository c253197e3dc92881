#pragma once
// How a hub translates an address now, step by step: registers of context 0, then the entries of
// its tables, read from the card's memory. Changes nothing.

#include <cstdint>
#include <string>
#include <vector>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/generation.h"
#include "drivers/memory/page_step.h"

namespace bm::amd::am {

struct PageWalk {
  uint64_t va = 0;
  std::vector<memory::PageStep> steps = {};
  std::string problem = {};  ///< why there is no translation; empty: there is one
  bool is_mapped = false;
  bool is_root_wrong = false;  ///< the hub has no table that could be walked
  bool is_system = false, is_readable = false, is_writable = false, is_executable = false;
  uint64_t address = 0;  ///< of the byte: physical in video memory, or on the bus

  bool allows(bool is_write) const { return is_mapped && (is_write ? is_writable : is_readable); }
  /// "0x2000… -> video memory 0x1234000, read, write"; or the problem with the last entry.
  std::string text() const;
};

/// Where context 0 of a hub has its tables, valid bit included.
uint64_t read_table_base(Bus& bus, Block hub);
/// Sources: gfxhub_v3_0.c, gmc_v11_0_get_vm_pde(), amdgpu_vm_pt.c. Four levels of 9 bits, as our
/// own boot sets context 0 up; another depth is a problem of the walk's, named.
PageWalk walk_pages(Bus& bus, Block hub, uint64_t va, const Generation& generation);

}  // namespace bm::amd::am
