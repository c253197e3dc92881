#include "drivers/amd/am/page_walk.h"

#include <span>

#include <fmt/format.h>

#include "drivers/memory/page_table_format.h"

namespace bm::amd::am {
namespace {

// amdgpu_vm.h, AMDGPU_PTE_* and AMDGPU_PDE_PTE*.
constexpr uint64_t kValid = 1, kSystem = 2, kExecutable = 1 << 4, kReadable = 1 << 5,
                   kWriteable = 1 << 6;
constexpr uint64_t kAddress = 0x0000'ffff'ffff'f000;

uint64_t read_pair(Bus& bus, Block hub, Reg low, Reg high) {
  return uint64_t{bus.read({hub, high})} << 32 | bus.read({hub, low});
}

}  // namespace

uint64_t read_table_base(Bus& bus, Block hub) {
  return read_pair(bus, hub, Reg::VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32,
                   Reg::VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32);
}

std::string PageWalk::text() const {
  if (!is_mapped) {
    std::string text = fmt::format("{:#x}: {}", va, problem);
    if (!steps.empty())
      text += fmt::format(" ({} entry {} at {:#x} is {:#x})", steps.back().level,
                          steps.back().index, steps.back().table, steps.back().entry);
    return text;
  }
  return fmt::format("{:#x} -> {} {:#x},{}{}{}", va, is_system ? "host memory" : "video memory",
                     address, is_readable ? " read" : " no read",
                     is_writable ? ", write" : ", read-only", is_executable ? ", execute" : "");
}

PageWalk walk_pages(Bus& bus, Block hub, uint64_t va, const Generation& generation) {
  using enum Field;
  PageWalk walk{.va = va};
  const auto stop = [&](std::string why) {
    walk.problem = std::move(why);
    return walk;
  };
  const uint32_t control = bus.read({hub, Reg::VM_CONTEXT0_CNTL});
  const uint32_t depth = bus.get(hub, VM_CONTEXT0_CNTL_page_table_depth, control);
  const uint64_t base = read_table_base(bus, hub);
  const uint64_t first = read_pair(bus, hub, Reg::VM_CONTEXT0_PAGE_TABLE_START_ADDR_LO32,
                                   Reg::VM_CONTEXT0_PAGE_TABLE_START_ADDR_HI32),
                 last = read_pair(bus, hub, Reg::VM_CONTEXT0_PAGE_TABLE_END_ADDR_LO32,
                                  Reg::VM_CONTEXT0_PAGE_TABLE_END_ADDR_HI32);
  if (!bus.status()) return stop("the card does not answer");
  walk.is_root_wrong = true;
  if (bus.get(hub, VM_CONTEXT0_CNTL_enable_context, control) == 0) return stop("context 0 is off");
  if ((base & kValid) == 0)
    return stop(fmt::format("the page table base {:#x} has no valid bit", base));
  walk.is_root_wrong = false;
  const uint32_t block_size = bus.get(hub, VM_CONTEXT0_CNTL_page_table_block_size, control);
  const memory::PageTableFormat& format = generation.tables();
  if (depth + 1 + (generation.table_block_size != 0 ? 1 : 0) != format.levels.size() ||
      block_size != generation.table_block_size)
    return stop(fmt::format("context 0 has tables of another shape (depth {}): not walked", depth));
  if (va >> 12 < first || va >> 12 > last)
    return stop(fmt::format("outside context 0's range {:#x} to {:#x}", first << 12, last << 12));
  const uint64_t offset = va - (first << 12);
  uint64_t table = base;
  for (size_t level = 0; level < format.levels.size(); ++level) {
    const memory::PageLevel& how = format.levels[level];
    if ((table & kSystem) != 0) return stop("its tables lie in host memory: not walked");
    memory::PageStep step{.level = how.name, .table = table & kAddress};
    step.index = static_cast<uint32_t>(offset >> how.shift & (how.entries() - 1));
    bus.read_memory(step.table + uint64_t{step.index} * 8,
                    std::as_writable_bytes(std::span(&step.entry, 1)));
    if (!bus.status()) return stop("the card's memory cannot be read");
    walk.steps.push_back(step);
    if ((step.entry & kValid) == 0) return stop("not mapped");
    const bool is_leaf = generation.is_leaf(static_cast<uint32_t>(level), step.entry);
    table = step.entry;
    if (!is_leaf) continue;
    walk.is_mapped = true;
    walk.is_system = (step.entry & kSystem) != 0;
    walk.is_readable = (step.entry & kReadable) != 0;
    walk.is_writable = (step.entry & kWriteable) != 0;
    walk.is_executable = (step.entry & kExecutable) != 0;
    walk.address =
        (step.entry & kAddress & ~(how.entry_bytes() - 1)) | (offset & (how.entry_bytes() - 1));
    return walk;
  }
  return stop("the last table has no leaf");
}

}  // namespace bm::amd::am
