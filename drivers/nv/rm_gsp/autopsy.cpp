#include "drivers/nv/rm_gsp/autopsy.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "drivers/nv/gsp/register_names.h"

namespace bm::nv::gsp {
namespace {

// What a unit that does not answer reads as; 0xbadf41xx: it answers to another processor alone.
constexpr uint32_t kNoAnswer = 0xbadf, kLocked = 0xbadf41;
constexpr uint32_t kValid = 1u << 31;

// Source: open-gpu-kernel-modules 570.144, published/turing/tu102 and hopper/gh100/dev_mmu.h
// (NV_MMU_VER2_*, NV_MMU_VER3_*): IS_PTE and VALID are bit 0, APERTURE 2:1; an address lies in 53:8
// (a big page table's in 53:4) of version 2, in 51:12 (51:8) of version 3.
struct Entry {
  uint64_t word = 0;
  bool is_v3 = false;
  bool is_valid() const { return (word & 1) != 0; }
  uint32_t aperture() const { return word >> 1 & 3; }
  uint64_t table(bool is_big) const {
    if (is_v3) return word & ((uint64_t{1} << 52) - (is_big ? 256 : 4096));
    const uint64_t field = word & ((uint64_t{1} << 54) - 1);
    return is_big ? field >> 4 << 8 : field >> 8 << 12;
  }
};
constexpr uint32_t kDirectoryVideo = 1, kLeafVideo = 0, kLeafPeer = 1;

class Look {
 public:
  Look(Bus& bus, const CardRow& row) : bus_(bus), row_(row) {
    const bool is_bus = row.window == WindowRegisters::kBus;
    window_ = {"BAR0_WINDOW", is_bus ? 0x1700u : 0x10fd40u};
    kept_ = bus_.probe(window_);
  }
  ~Look() { bus_.write(window_, kept_); }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

  uint64_t word(uint64_t address) {
    constexpr uint64_t kPramin = 0x700000, kStep = 64 << 10;
    bus_.write(window_, static_cast<uint32_t>(address / kStep));
    (void)bus_.probe(window_);  // the write has arrived once it is read
    const auto at = static_cast<uint32_t>(kPramin + address % kStep);
    const uint64_t low = bus_.probe({"PRAMIN", at});
    return low | uint64_t{bus_.probe({"PRAMIN", at + 4})} << 32;
  }

  PageWalk walk(uint64_t root, uint64_t va) {
    PageWalk seen{.va = va, .root = root};
    const memory::PageTableFormat& format = row_.page_tables();
    if (root == 0) {
      seen.problem = "the TLBs were told of no page directory";
      return seen;
    }
    if (format.va_bits < 64 && va >> format.va_bits != 0) {
      seen.problem = fmt::format("beyond the {} bits of an address", format.va_bits);
      return seen;
    }
    descend(format, 0, root, &seen);
    return seen;
  }

 private:
  bool is_v3() const { return &row_.page_tables() == &memory::nv_mmu_v3_page_tables(); }

  bool descend(const memory::PageTableFormat& format, uint32_t number, uint64_t table,
               PageWalk* seen) {
    const memory::PageLevel& level = format.levels[number];
    const auto index = static_cast<uint32_t>(seen->va >> level.shift & (level.entries() - 1));
    const uint64_t at = table + uint64_t{index} * level.words * 8;
    const bool is_table = level.children[0] >= 0 || level.children[1] >= 0;
    for (uint32_t half = 0; half < level.words; ++half) {
      const Entry entry{word(at + half * 8), is_v3()};
      seen->steps.push_back({level.name, table, index, entry.word});
      if (level.has_leaf && half == 0 && entry.is_valid()) {
        leaf(entry, level, seen);
        return true;
      }
      if (!is_table || level.children[half] < 0 || entry.aperture() == 0) continue;
      if (entry.aperture() != kDirectoryVideo) {
        seen->problem =
            fmt::format("{} {}: the next table lies in the host's memory", level.name, index);
        continue;
      }
      const bool is_big = level.words == 2 && half == 0;
      if (descend(format, static_cast<uint32_t>(level.children[half]), entry.table(is_big), seen))
        return true;
    }
    if (seen->problem.empty())
      seen->problem =
          fmt::format("{} {} of the table at {:#x} names nothing", level.name, index, table);
    return false;
  }

  void leaf(const Entry& entry, const memory::PageLevel& level, PageWalk* seen) {
    seen->problem.clear();
    seen->is_mapped = true;
    seen->is_peer = entry.aperture() == kLeafPeer;
    seen->is_system = !seen->is_peer && entry.aperture() != kLeafVideo;
    seen->page_bytes = level.entry_bytes();
    uint64_t base = entry.table(false);
    if (!is_v3() && !seen->is_system) base &= (uint64_t{1} << 37) - 1;  // ADDRESS_VID 32:8
    seen->address = base + (seen->va & (seen->page_bytes - 1));
  }

  Bus& bus_;
  const CardRow& row_;
  Register window_;
  uint32_t kept_ = 0;
};

std::optional<uint32_t> value_of(const Autopsy& seen, std::string_view name) {
  for (const SeenRegister& one : seen.registers)
    if (one.name == name && one.value >> 16 != kNoAnswer) return one.value;
  return std::nullopt;
}
uint32_t value_or_0(const Autopsy& seen, std::string_view name) {
  return value_of(seen, name).value_or(0);
}

struct Verdict {
  GspCause cause;
  std::string text, remedy;
};

Verdict judge_fault(const Autopsy& seen) {
  const uint32_t info = value_or_0(seen, "MMU_FAULT_INFO");
  const uint64_t address = (value_or_0(seen, "MMU_FAULT_ADDR_LO") & ~0xfffu) |
                           uint64_t{value_or_0(seen, "MMU_FAULT_ADDR_HI")} << 32;
  return {GspCause::kMmuFault,
          fmt::format("the MMU reports a fault at {:#x}: type {:#x}, access {:#x}, client {:#x}",
                      address, info & 0x1f, info >> 16 & 0xf, info >> 8 & 0x7f),
          "gpu autopsy --address walks the page tables there; the next boot resets the card"};
}

Verdict judge_unprotected(const Autopsy& seen) {
  const uint32_t frts = value_or_0(seen, "PBUS_SW_SCRATCH_0E") >> 16;
  if (frts != 0)
    return {GspCause::kFwsecFailed,
            fmt::format("FWSEC has refused to set protected memory up: code {:#x}", frts),
            "look at P8 of gpu boot --trace; a damaged ROM, or another region than it wants"};
  return {GspCause::kNotBooted, "nobody has booted it since its last reset, or who did has left",
          "nothing is wrong: gpu boot boots it"};
}

bool is_active(const Autopsy& seen) {
  return (value_or_0(seen, "PGSP_RISCV_CPUCTL") & falcon_reg::kRiscvActive) != 0 ||
         (value_or_0(seen, "PGSP_RISCV_CORE_SWITCH_STATUS") & 1) != 0;
}

Verdict judge_protected(const Autopsy& seen) {
  const std::string again = "the next boot resets the card";
  const uint32_t mailbox = value_or_0(seen, "PGSP_FALCON_MAILBOX0");
  if ((value_or_0(seen, "PGSP_FALCON_HWCFG2") & falcon_reg::kHwcfg2Lockdown) != 0)
    return mailbox != 0
               ? Verdict{GspCause::kFmcFailed,
                         fmt::format("the GSP is still locked down, and its FMC says {:#x}",
                                     mailbox),
                         again}
               : Verdict{GspCause::kGspLocked, "the GSP is still locked down by its FMC", again};
  if (is_active(seen))
    return {GspCause::kGspRunning,
            "its GSP runs: a process has the card, or one was killed that had it",
            "none where a process has it, which is told of its channels' faults; " + again};
  const uint32_t booter = value_or_0(seen, "PSEC_FALCON_MAILBOX0");
  if (booter != 0 && value_of(seen, "PSEC_FALCON_CPUCTL"))
    return {GspCause::kBooterFailed,
            fmt::format("protected memory is set up, the GSP does not run, and SEC2's mailbox says "
                        "{:#x}",
                        booter),
            again};
  return {
      GspCause::kGspHalted,
      fmt::format("protected memory is set up, and the GSP does not run: mailbox {:#x}", mailbox),
      "its log is the booting process's; " + again};
}

Verdict judge(const Autopsy& seen, bool is_rom_through) {
  if (!is_rom_through)
    return {GspCause::kRomRunning, "the program in its ROM is not through",
            "power on every auxiliary plug; else the ROM is damaged"};
  if ((value_or_0(seen, "MMU_FAULT_STATUS") & kValid) != 0 ||
      (value_or_0(seen, "MMU_FAULT_INFO") & kValid) != 0)
    return judge_fault(seen);
  if (value_or_0(seen, "PFSP_QUEUE_HEAD") != value_or_0(seen, "PFSP_QUEUE_TAIL"))
    return {GspCause::kFspMessage, "half a message lies in the queue of its FSP",
            "a process was killed while it wrote; the next boot resets the card"};
  for (const SeenRegister& one : seen.registers)
    if (one.name == "PGSP_FALCON_MAILBOX0" && one.value >> 8 == kLocked)
      return {GspCause::kGspLocked,
              "its GSP answers to another processor alone: the FMC has not "
              "let go of it",
              "wait some seconds; then the next boot resets the card"};
  return value_or_0(seen, "PFB_PRI_MMU_WPR2_ADDR_HI") >> 4 == 0 ? judge_unprotected(seen)
                                                                : judge_protected(seen);
}

}  // namespace

std::string_view gsp_cause_name(GspCause cause) {
  switch (cause) {
    case GspCause::kCardGone: return "card-gone";
    case GspCause::kRomRunning: return "rom-running";
    case GspCause::kNotBooted: return "not-booted";
    case GspCause::kFwsecFailed: return "fwsec-failed";
    case GspCause::kBooterFailed: return "booter-failed";
    case GspCause::kFspMessage: return "fsp-message";
    case GspCause::kFmcFailed: return "fmc-failed";
    case GspCause::kGspLocked: return "gsp-locked";
    case GspCause::kGspHalted: return "gsp-halted";
    case GspCause::kMmuFault: return "mmu-fault";
    case GspCause::kGspRunning: return "gsp-running";
  }
  __builtin_unreachable();
}

Result<Autopsy> examine(Bus& bus, std::span<const uint64_t> addresses) {
  Autopsy seen;
  const auto gone = [&](uint32_t boot0) {
    seen.cause = GspCause::kCardGone;
    seen.verdict =
        fmt::format("PMC_BOOT_0 reads {:#x}: the card does not decode its registers", boot0);
    seen.remedy = "look at its power and its slot; switch the machine off and on";
    return seen;
  };
  const uint32_t boot0 = bus.probe(reg::kBoot0);
  if (boot0 == UINT32_MAX || boot0 == 0 || boot0 >> 16 == kNoAnswer) return gone(boot0);
  BM_TRY(bus.status());
  seen.facts = BM_TRY(identify(bus));
  const Generation& generation = *seen.facts.generation;
  // TIMEOUT: a ROM whose program is through says so at once; 100 ms are for one that ends just now.
  const bool is_through = BM_TRY(bus.poll(100'000, [&] { return is_rom_done(bus, generation); }));
  if (is_through) seen.video_bytes = read_memory_bytes(bus, generation).value_or(0);
  for (const NamedRegister& one : named_registers())
    if (one.is_there(generation)) {
      const uint32_t value = bus.probe({one.name, one.offset});
      seen.registers.push_back({one.name, value, fields_text(one, value)});
    }
  if (!addresses.empty()) {
    const CardRow* const row =
        BM_TRY(find_card_row({seen.facts.architecture, seen.facts.implementation}));
    const uint64_t unit = (value_or_0(seen, "MMU_INVALIDATE_PDB") >> 4) |
                          uint64_t{value_or_0(seen, "MMU_INVALIDATE_UPPER_PDB")} << 28;
    Look look(bus, *row);
    for (const uint64_t va : addresses) seen.walks.push_back(look.walk(unit << 12, va));
  }
  BM_TRY(bus.status());
  Verdict verdict = judge(seen, is_through);
  seen.cause = verdict.cause;
  seen.verdict = std::move(verdict.text);
  seen.remedy = std::move(verdict.remedy);
  return seen;
}

std::string Autopsy::text() const {
  std::string out =
      fmt::format("cause: {}: {}; remedy: {}\n", gsp_cause_name(cause), verdict, remedy);
  if (facts.generation != nullptr)
    out += fmt::format("{} ({}), {} MiB of video memory\n", facts.chip, facts.generation->family,
                       video_bytes / kMiB);
  for (const PageWalk& walk : walks) {
    out += walk.is_mapped ? fmt::format("{:#x}: {} {:#x}, page of {:#x} bytes\n", walk.va,
                                        walk.is_system ? "memory of the host at bus address"
                                        : walk.is_peer ? "another card's memory at"
                                                       : "video memory at",
                                        walk.address, walk.page_bytes)
                          : fmt::format("{:#x}: not mapped: {}\n", walk.va, walk.problem);
    for (const memory::PageStep& step : walk.steps)
      out += fmt::format("  {:<7} table {:#x}, entry {:#x}: {:#x}\n", step.level, step.table,
                         step.index, step.entry);
  }
  for (const SeenRegister& one : registers)
    out += fmt::format("{:<32} {:#010x}{}{}\n", one.name, one.value, one.fields.empty() ? "" : "  ",
                       one.fields);
  return out;
}

}  // namespace bm::nv::gsp
