#include "tests/sim/amd/chip/gmc.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

// amdgpu_vm.h, AMDGPU_PTE_* and AMDGPU_PDE_*.
constexpr uint64_t kValid = 1, kSystem = 2, kExecutable = 16, kReadable = 32, kWritable = 64;
constexpr uint64_t kAddress = 0x0000'ffff'ffff'f000, kLeafGfx11 = uint64_t{1} << 54,
                   kLeafGfx12 = uint64_t{1} << 63;
// What no flag is: below the address bit 12 on, above it what the formats leave free. gfx11: MTYPE
// 50:48, PRT 51, PDE_PTE 54, LOG 55, TF 56, NOALLOC 58. gfx12: MTYPE 55:54, PRT 56, NOALLOC 58 (DCC
// as well), block size 62:58, leaf 63.
constexpr uint64_t kReservedGfx11 = 0xfa30'0000'0000'0000, kReservedGfx12 = 0x003f'0000'0000'0000;
// gfx9 (AMDGPU_PTE_*_VG10): PRT 51, PDE_PTE 54, LOG 55, TF 56, MTYPE 58:57, block fragment size
// 63:59 of directories.
constexpr uint64_t kReservedGfx9 = 0x0037'0000'0000'0000;
constexpr uint64_t kTranslateFurther = uint64_t{1} << 56, kBlockSizeShift = 59;
constexpr uint32_t kSystemBits = 44;
constexpr uint64_t kPage = 4096;

}  // namespace

Hub::Hub(HubKind kind, RegisterBus& bus, Fabric& fabric)
    : kind_(kind),
      // Before gfx10 both hubs' registers have the same names.
      prefix_(bus.row().generation == 9 ? ""
              : kind == HubKind::kGc    ? "GC"
                                        : "MM"),
      ip_(kind == HubKind::kGc ? Ip::kGc : Ip::kMmhub),
      bus_(bus),
      fabric_(fabric) {
  context0_ = &declare("VM_CONTEXT0_CNTL");
  base_lo_ = &declare("VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32");
  base_hi_ = &declare("VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32");
  start_lo_ = &declare("VM_CONTEXT0_PAGE_TABLE_START_ADDR_LO32");
  start_hi_ = &declare("VM_CONTEXT0_PAGE_TABLE_START_ADDR_HI32");
  end_lo_ = &declare("VM_CONTEXT0_PAGE_TABLE_END_ADDR_LO32");
  end_hi_ = &declare("VM_CONTEXT0_PAGE_TABLE_END_ADDR_HI32");
  aperture_low_ = &declare("MC_VM_SYSTEM_APERTURE_LOW_ADDR");
  aperture_high_ = &declare("MC_VM_SYSTEM_APERTURE_HIGH_ADDR");
  l1_ = &declare("MC_VM_MX_L1_TLB_CNTL");
  const uint64_t last = fabric_.fb_base + fabric_.vram->size() - 1;
  declare("MC_VM_FB_LOCATION_BASE",
          {.reset = static_cast<uint32_t>(fabric_.fb_base >> 24), .is_read_only = true});
  declare("MC_VM_FB_LOCATION_TOP",
          {.reset = static_cast<uint32_t>(last >> 24), .is_read_only = true});
  bus_.declare_if_there(ip_, name("MC_VM_FB_OFFSET"), {.is_read_only = true});
  // gfx12 has the status in two words.
  const std::string status = name("VM_L2_PROTECTION_FAULT_STATUS");
  fault_status_ = bus_.declare_if_there(ip_, status, {.is_read_only = true, .guard = &mutex_});
  if (fault_status_ == nullptr) {
    fault_status_ = &bus_.declare(ip_, status + "_LO32", {.is_read_only = true, .guard = &mutex_});
    bus_.declare(ip_, status + "_HI32", {.is_read_only = true});
  }
  fault_lo_ = &declare("VM_L2_PROTECTION_FAULT_ADDR_LO32", {.is_read_only = true});
  fault_hi_ = &declare("VM_L2_PROTECTION_FAULT_ADDR_HI32", {.is_read_only = true});
  const Field clear =
      bus_.field(ip_, name("VM_L2_PROTECTION_FAULT_CNTL"), "CLEAR_PROTECTION_FAULT_STATUS_ADDR");
  fault_cntl_ = &declare("VM_L2_PROTECTION_FAULT_CNTL", {.write = [this, clear](uint32_t value) {
                           const std::lock_guard lock(mutex_);
                           *fault_cntl_ = value & ~clear.mask;
                           if (clear.of(value) != 0) *fault_status_ = *fault_lo_ = *fault_hi_ = 0;
                         }});
  // INVALIDATE_ALL_L1_TLBS and INVALIDATE_L2_CACHE.
  declare("VM_L2_CNTL2", {.write = [this](uint32_t value) {
            const std::lock_guard lock(mutex_);
            if ((value & 3) != 3) return;
            leaves_.clear();
            directories_.clear();
            ++generation_;
          }});
  declare_engines();
  bus_.declare_all(ip_, name("VM_"), &mutex_);
  bus_.declare_all(ip_, name("MC_"), &mutex_);
  if (kind == HubKind::kMm) bus_.declare_all(ip_, "MM_");
  enable_ = bus_.field(ip_, name("VM_CONTEXT0_CNTL"), "ENABLE_CONTEXT");
  depth_ = bus_.field(ip_, name("VM_CONTEXT0_CNTL"), "PAGE_TABLE_DEPTH");
  block_size_ = bus_.field(ip_, name("VM_CONTEXT0_CNTL"), "PAGE_TABLE_BLOCK_SIZE");
  tells_ = bus_.field(ip_, name("VM_CONTEXT0_CNTL"), "VALID_PROTECTION_FAULT_ENABLE_INTERRUPT");
  system_mode_ = bus_.field(ip_, name("MC_VM_MX_L1_TLB_CNTL"), "SYSTEM_ACCESS_MODE");
  enable_l1_ = bus_.field(ip_, name("MC_VM_MX_L1_TLB_CNTL"), "ENABLE_L1_TLB");
}

uint32_t& Hub::declare(std::string_view rest, Behavior behavior) {
  behavior.guard = &mutex_;
  return bus_.declare(ip_, name(rest), std::move(behavior));
}

void Hub::declare_engines() {
  for (uint32_t i = 0; i < 18; ++i) {
    Engine& engine = engines_[i];
    const std::string base = fmt::format("VM_INVALIDATE_ENG{}_", i);
    engine.range_lo = &declare(base + "ADDR_RANGE_LO32");
    engine.range_hi = &declare(base + "ADDR_RANGE_HI32");
    declare(base + "SEM", {.read =
                               [this, &engine] {
                                 const std::lock_guard lock(mutex_);
                                 return std::exchange(engine.is_held, true) ? 0u : 1u;
                               },
                           .write =
                               [this, &engine](uint32_t value) {
                                 const std::lock_guard lock(mutex_);
                                 if (value == 0) engine.is_held = false;
                               }});
    declare(
        base + "REQ", {.write = [this, &engine, i](uint32_t value) {
          const std::lock_guard lock(mutex_);
          // gmc_v9_0_use_invalidate_semaphore(): not on 9.4.3.
          if (kind_ == HubKind::kMm && bus_.row().generation != 9 && !engine.is_held)
            violation(fmt::format("{}VM_INVALIDATE_ENG{}_REQ without the semaphore", prefix_, i));
          engine.request = value;
          engine.answered = 0;
          engine.polls = 1;
        }});
    declare(base + "ACK", {.read = [this, &engine, i] {
              const std::lock_guard lock(mutex_);
              if (engine.request != 0 && engine.polls-- <= 0) acknowledge(i);
              return engine.answered;
            }});
  }
}

void Hub::acknowledge(uint32_t engine_index) {
  Engine& engine = engines_[engine_index];
  const uint32_t request = std::exchange(engine.request, 0);
  engine.answered = request & 0xffff;
  if (*engine.range_lo != UINT32_MAX || (*engine.range_hi & 0x1f) != 0x1f) {
    violation(fmt::format("{}VM_INVALIDATE_ENG{}: its address range is not all, nothing is flushed",
                          prefix_, engine_index));
    return;
  }
  if ((request & 1) == 0) return;  // not VMID 0
  const std::string reg = name("VM_INVALIDATE_ENG17_REQ");
  const auto has = [&](std::string_view field) {
    return bus_.field(ip_, reg, field).of(request) != 0;
  };
  const uint32_t depth = depth_.of(*context0_);
  if (has("INVALIDATE_L2_PTES") && has("INVALIDATE_L1_PTES")) {
    leaves_.clear();
    // Entries that translate further are entries of page tables, too.
    std::erase_if(directories_, [&](const auto& kept) { return kept.first.first >= depth; });
  }
  // PDE0 points to the tables of leaves: the last directory level.
  const std::array<std::string_view, 3> levels = {"INVALIDATE_L2_PDE0", "INVALIDATE_L2_PDE1",
                                                  "INVALIDATE_L2_PDE2"};
  for (uint32_t i = 0; i < levels.size(); ++i)
    if (has(levels[i]))
      std::erase_if(directories_,
                    [&](const auto& kept) { return kept.first.first + i + 1 == depth; });
  if (has("CLEAR_PROTECTION_FAULT_STATUS_ADDR")) *fault_status_ = *fault_lo_ = *fault_hi_ = 0;
  ++generation_;
}

void Hub::violation(std::string text) {
  if (told_[text]++ < 8) bus_.violations().add(std::move(text));
}

bool Hub::is_set_up() const { return enable_.of(*context0_) != 0; }

void Hub::reset() {
  const std::lock_guard lock(mutex_);
  leaves_.clear();
  directories_.clear();
  for (auto& [index, engine] : engines_) {
    engine.request = engine.answered = 0;
    engine.is_held = false;
  }
  ++generation_;
}

/// Video memory in the GPU's own addresses, past the page tables: SYSTEM_ACCESS_MODE 3.
std::optional<Hub::Place> Hub::aperture(uint64_t va) {
  const uint64_t offset = va - fabric_.fb_base;
  if (va < fabric_.fb_base || offset >= fabric_.vram->size()) return std::nullopt;
  // Before anybody set the hub up the boot loader's own view is in force.
  if (enable_l1_.of(*l1_) != 0) {
    const uint64_t low = uint64_t{*aperture_low_} << 18,
                   high = (uint64_t{*aperture_high_} << 18) + ((1 << 18) - 1);
    if (system_mode_.of(*l1_) != 3 || va < low || va > high) return std::nullopt;
  }
  const uint64_t start = offset / kPage * kPage;
  std::byte* const host = fabric_.vram->at(start, kPage);
  return Place{host + offset % kPage, kPage - offset % kPage, va / kPage * kPage, kPage, host};
}

bool Hub::read_table(uint64_t address, bool is_system, uint64_t* value) {
  ++fabric_.table_reads;
  if (!is_system) {
    const std::lock_guard lock(fabric_.table_mutex);
    fabric_.table_pages.insert(address / kPage);
    return fabric_.vram->read(address, std::as_writable_bytes(std::span(value, 1)));
  }
  if (!fabric_.is_bus_master()) return false;
  const std::byte* const from = fabric_.system->at(address, 8, false);
  if (from != nullptr) std::memcpy(value, from, 8);
  return from != nullptr;
}

void Hub::check_entry(uint64_t value, uint32_t level, bool is_leaf) {
  const bool is_gfx12 = bus_.row().pte == PteFormat::kGfx12;
  const bool is_gfx9 = bus_.row().pte == PteFormat::kGfx9;
  if ((value & (is_gfx12 ? kReservedGfx12 : is_gfx9 ? kReservedGfx9 : kReservedGfx11)) != 0)
    violation(fmt::format("page table entry {:#x} of level {} has reserved bits", value, level));
  if (is_leaf && is_gfx12 && (value & kLeafGfx12) == 0)
    violation(fmt::format("page table entry {:#x} without IS_PTE", value));
  if ((value & kSystem) != 0 && (value & kAddress) >> kSystemBits != 0)
    violation(fmt::format("page table entry {:#x}: a bus address of more than 44 bits", value));
}

/// A TLB may take a whole fragment for what its first entry says.
void Hub::check_fragment(uint64_t table, bool is_system, uint64_t index, uint64_t value) {
  const uint64_t log2 = value >> 7 & 0x1f;
  if (log2 == 0) return;
  const uint64_t count = std::min<uint64_t>(uint64_t{1} << log2, 512);
  const uint64_t first = index / count * count;
  for (const uint64_t other : {first, first + count - 1}) {
    uint64_t there = 0;
    if (!read_table(table + other * 8, is_system, &there)) continue;
    const uint64_t expected = (value & kAddress) + other * kPage - index * kPage;
    if ((there & ~kAddress) != (value & ~kAddress) || (there & kAddress) != expected) {
      violation(fmt::format("page table entry {:#x}: its fragment of {} pages holds {:#x}", value,
                            count, there));
      return;
    }
  }
}

std::optional<Hub::Place> Hub::place(uint64_t va, uint64_t page_va, uint64_t page_bytes,
                                     uint64_t value, const char** why) {
  const uint64_t address = value & kAddress, offset = va - page_va;
  uint64_t room = page_bytes;
  std::byte* start = nullptr;
  if ((value & kSystem) == 0) {
    start = fabric_.vram->at(address + offset / kPage * kPage, kPage);
    if (start == nullptr) *why = "beyond video memory";
    room = kPage;
  } else if (!fabric_.is_bus_master()) {
    *why = "bus mastering is off";
  } else {
    start = fabric_.system->at(address + offset / kPage * kPage, kPage, (value & kWritable) != 0);
    if (start == nullptr) *why = "nothing is mapped for DMA there";
    room = kPage;
  }
  if (start == nullptr) return std::nullopt;
  const uint64_t inside = offset % kPage;
  return Place{start + inside,
               room - inside,
               page_va + offset / kPage * kPage,
               room,
               start,
               (value & kReadable) != 0,
               (value & kWritable) != 0,
               (value & kExecutable) != 0};
}

std::optional<uint64_t> Hub::entry(uint32_t level, uint64_t table, uint64_t index, uint64_t key) {
  const auto kept = directories_.find({level, key});
  if (kept != directories_.end()) return kept->second;
  uint64_t value = 0;
  if (!read_table((table & kAddress) + index * 8, (table & kSystem) != 0, &value))
    return std::nullopt;
  return value;
}

std::optional<Hub::Place> Hub::translate_locked(uint64_t va, HubAccess /*access*/,
                                                const char** why) {
  if (const auto direct = aperture(va)) return direct;
  if (enable_.of(*context0_) == 0) {
    *why = "context 0 is off";
    return std::nullopt;
  }
  const auto pair = [](const uint32_t* lo, const uint32_t* hi) {
    return uint64_t{*hi} << 32 | *lo;
  };
  const uint64_t first = pair(start_lo_, start_hi_), last = pair(end_lo_, end_hi_);
  if (va >> 12 < first || va >> 12 > last) {
    *why = "outside context 0's range";
    return std::nullopt;
  }
  const auto kept = leaves_.upper_bound(va);
  if (kept != leaves_.begin()) {
    const auto& [page, leaf] = *std::prev(kept);
    if (va - page < leaf.bytes) return place(va, page, leaf.bytes, leaf.value, why);
  }
  ++walks_;
  uint64_t table = pair(base_lo_, base_hi_);
  if ((table & kValid) == 0) {
    violation(fmt::format("{}VM_CONTEXT0_PAGE_TABLE_BASE_ADDR {:#x} without its valid bit", prefix_,
                          table));
    *why = "no page directory";
    return std::nullopt;
  }
  const bool is_gfx12 = bus_.row().pte == PteFormat::kGfx12;
  if (bus_.row().pte == PteFormat::kGfx9 && block_size_.of(*context0_) != 0)
    return walk_further(va, (va >> 12) - first, table, why);
  const uint32_t depth = depth_.of(*context0_), leaf_bits = 9 + block_size_.of(*context0_);
  const uint64_t page = (va >> 12) - first;
  for (uint32_t level = 0;; ++level) {
    const bool is_last = level == depth;
    const uint32_t shift = is_last ? 0 : leaf_bits + 9 * (depth - level - 1);
    const uint32_t bits = level == 0 ? 52 - shift : is_last ? leaf_bits : 9;
    const uint64_t index = page >> shift & ((uint64_t{1} << bits) - 1), key = page >> shift;
    const auto value = entry(level, table, index, key);
    if (!value || (*value & kValid) == 0) {
      *why = value ? "no valid entry" : "the page table is nowhere";
      return std::nullopt;
    }
    const bool is_leaf = is_last || (*value & (is_gfx12 ? kLeafGfx12 : kLeafGfx11)) != 0;
    check_entry(*value, level, is_leaf);
    if (!is_leaf) {
      directories_[{level, key}] = *value;
      table = *value;
      continue;
    }
    const uint64_t bytes = kPage << shift, page_va = ((page >> shift << shift) + first) << 12;
    if (((*value & kAddress) & (bytes - 1)) != 0)
      violation(fmt::format("page table entry {:#x} of a page of {:#x} bytes is not aligned",
                            *value, bytes));
    if (is_last) check_fragment(table & kAddress, (table & kSystem) != 0, index, *value);
    if (enable_l1_.of(*l1_) != 0) leaves_[page_va] = {bytes, *value};
    return place(va, page_va, bytes, *value, why);
  }
}

/// gfx9 with a block size: entries of the last directory cover 2^(9 + size) pages. Each says in
/// bits 63:59 how many pages one entry of its table stands for; such an entry is a page of that
/// size, or has TF and names a table of 4 KiB pages.
/// Source: gmc_v9_0_get_vm_pde(), gfxhub_v1_2_xcc_setup_vmid_config(), amdgpu_vm.h.
std::optional<Hub::Place> Hub::walk_further(uint64_t va, uint64_t page, uint64_t root,
                                            const char** why) {
  const uint32_t depth = depth_.of(*context0_), size = block_size_.of(*context0_);
  uint64_t table = root;
  const auto take = [&](uint32_t level, uint64_t index, uint64_t key) -> std::optional<uint64_t> {
    const auto value = entry(level, table, index, key);
    if (value && (*value & kValid) != 0) return value;
    *why = value ? "no valid entry" : "the page table is nowhere";
    return std::nullopt;
  };
  const auto leaf = [&](uint64_t value, uint32_t shift) {
    const uint64_t bytes = kPage << shift, page_va = (page >> shift << shift) * kPage;
    if (((value & kAddress) & (bytes - 1)) != 0)
      violation(fmt::format("page table entry {:#x} of a page of {:#x} bytes is not aligned", value,
                            bytes));
    const uint64_t start = va - (page * kPage + va % kPage) + page_va;
    if (enable_l1_.of(*l1_) != 0) leaves_[start] = {bytes, value};
    return place(va, start, bytes, value, why);
  };
  for (uint32_t level = 0; level < depth; ++level) {
    const uint32_t shift = 9 + size + 9 * (depth - level - 1);
    const uint64_t key = page >> shift;
    const auto value = take(level, level == 0 ? key : key & 0x1ff, key);
    if (!value) return std::nullopt;
    check_entry(*value, level, (*value & kLeafGfx11) != 0);
    if ((*value & kLeafGfx11) != 0) return leaf(*value, shift);
    const uint64_t block = *value >> kBlockSizeShift;
    if (block != (level + 1 == depth ? size : 0u))
      violation(
          fmt::format("page directory entry {:#x} of level {} has a block fragment size of "
                      "{}, the context {}",
                      *value, level, block, size));
    directories_[{level, key}] = *value;
    table = *value;
  }
  const uint64_t block_key = page >> size;
  const auto block = take(depth, block_key & 0x1ff, block_key);
  if (!block) return std::nullopt;
  const bool goes_further = (*block & kTranslateFurther) != 0;
  check_entry(*block, depth, !goes_further);
  if ((*block & kLeafGfx11) != 0)
    violation(
        fmt::format("page table entry {:#x} has PDE_PTE, which only directories have", *block));
  if (!goes_further) return leaf(*block, size);
  directories_[{depth, block_key}] = *block;
  table = *block;
  const auto value = take(depth + 1, page & ((1u << size) - 1), page);
  if (!value) return std::nullopt;
  check_entry(*value, depth + 1, true);
  check_fragment(table & kAddress, (table & kSystem) != 0, page & ((1u << size) - 1), *value);
  return leaf(*value, 0);
}

std::optional<Hub::Place> Hub::translate(uint64_t va, HubAccess access) {
  const std::lock_guard lock(mutex_);
  const char* why = "";
  auto found = translate_locked(va, access, &why);
  if (found) {
    if ((access == HubAccess::kRead && found->is_readable) ||
        (access == HubAccess::kWrite && found->is_writable) ||
        (access == HubAccess::kExecute && found->is_executable))
      return found;
    why = "the page does not allow it";
  }
  latch(va, access, why);
  return std::nullopt;
}

/// The first one stays until it is cleared.
void Hub::latch(uint64_t va, HubAccess access, const char* why) {
  if (*fault_status_ != 0) {
    *fault_status_ |= 1;  // MORE_FAULTS
    return;
  }
  const bool is_permission = std::string_view(why) == "the page does not allow it";
  std::string reg = name("VM_L2_PROTECTION_FAULT_STATUS");
  if (!find_field(bus_.row().ip(ip_).header, reg, "RW")) reg += "_LO32";
  // Which bit of PERMISSION_FAULTS is which is in no public source: read 2, write 4, execute 8,
  // with 1 where nothing is mapped.
  const uint32_t bits = !is_permission                  ? 1u
                        : access == HubAccess::kWrite   ? 4u
                        : access == HubAccess::kExecute ? 8u
                                                        : 2u;
  *fault_status_ = bus_.field(ip_, reg, "PERMISSION_FAULTS").put(bits) |
                   bus_.field(ip_, reg, "WALKER_ERROR").put(is_permission ? 0 : 1) |
                   bus_.field(ip_, reg, "RW").put(access == HubAccess::kWrite ? 1 : 0);
  *fault_lo_ = static_cast<uint32_t>(va >> 12);
  *fault_hi_ = static_cast<uint32_t>(va >> 44);
}

void Hub::report_fault(uint64_t va, bool is_write, uint32_t client) {
  bool is_told = false;
  {
    const std::lock_guard lock(mutex_);
    if (*fault_status_ == 0) latch(va, is_write ? HubAccess::kWrite : HubAccess::kRead, "");
    std::string reg = name("VM_L2_PROTECTION_FAULT_STATUS");
    if (!find_field(bus_.row().ip(ip_).header, reg, "CID")) reg += "_LO32";
    const Field cid = bus_.field(ip_, reg, "CID");
    if (cid.of(*fault_status_) == 0) *fault_status_ |= cid.put(client);
    is_told = tells_.of(*context0_) != 0;
  }
  if (is_told && on_fault) on_fault(va, is_write);
}

bool Hub::read(uint64_t va, std::span<std::byte> to) {
  for (uint64_t done = 0; done < to.size();) {
    const auto from = translate(va + done, HubAccess::kRead);
    if (!from) return false;
    const uint64_t part = std::min<uint64_t>(from->bytes, to.size() - done);
    std::memcpy(&to[done], from->host, part);
    done += part;
  }
  return true;
}

bool Hub::write(uint64_t va, std::span<const std::byte> from) {
  for (uint64_t done = 0; done < from.size();) {
    const auto to = translate(va + done, HubAccess::kWrite);
    if (!to) return false;
    const uint64_t part = std::min<uint64_t>(to->bytes, from.size() - done);
    std::memcpy(to->host, &from[done], part);
    done += part;
  }
  return true;
}

std::byte* Hub::at(uint32_t /*gpu_id*/, uint64_t va, uint64_t bytes, bool is_write) {
  const auto found = translate(va, is_write ? HubAccess::kWrite : HubAccess::kRead);
  return found && found->bytes >= bytes ? found->host : nullptr;
}

uint64_t Hub::contiguous(uint32_t /*gpu_id*/, uint64_t va, uint64_t bytes) {
  return std::min(bytes, kPage - va % kPage);
}

std::optional<GpuMemory::Range> Hub::local_range(uint32_t /*gpu_id*/, uint64_t va) {
  const std::lock_guard lock(mutex_);
  const char* why = "";
  // Nothing is accessed yet: whoever does says whether it is a write, and faults then.
  const auto found = translate_locked(va, HubAccess::kRead, &why);
  if (!found) return std::nullopt;
  // Accesses may cross pages: what follows in the host's memory as well belongs to the range.
  constexpr uint64_t kMost = 2 << 20;
  uint64_t bytes = found->length;
  while (bytes < kMost) {
    const auto next = translate_locked(found->va + bytes, HubAccess::kRead, &why);
    if (!next || next->start != found->start + bytes || next->is_readable != found->is_readable ||
        next->is_writable != found->is_writable || next->is_executable != found->is_executable)
      break;
    bytes += next->length;
  }
  return Range{found->va,           bytes, found->start, found->is_readable, found->is_writable,
               found->is_executable};
}

}  // namespace bm::sim::amd
