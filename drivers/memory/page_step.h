#pragma once
// A step of a walk through the page tables of a card, as a report on a fault shows it.

#include <cstdint>
#include <string_view>

namespace bm::memory {

struct PageStep {
  std::string_view level;  ///< "PDB2"
  uint64_t table = 0;      ///< physical address of the table
  uint32_t index = 0;
  uint64_t entry = 0;
};

}  // namespace bm::memory
