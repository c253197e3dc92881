#include "drivers/cpu/program.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "drivers/cpu/externals.h"
#include "drivers/cpu/relocate.h"
#include "runtime/base/bits.h"
#include "runtime/base/elf.h"

namespace bm::cpu {
namespace {

constexpr uint64_t kPage = 4096;
/// Keeps every distance inside the image within the 32-bit (x86-64) and most of the 26-bit forms,
/// and refuses objects whose .bss is only a number.
constexpr uint64_t kMaxImageBytes = 256 << 20;
constexpr uint64_t kSlotBytes = 8;
constexpr uint32_t kX86Unwind = 0x70000001;

#if defined(__aarch64__)
constexpr uint16_t kHostMachine = elf::kMachineAArch64;
#else
constexpr uint16_t kHostMachine = elf::kMachineX86_64;
#endif

enum Part : size_t { kCode, kConstants, kData, kParts };

/// Not needed to run: unwind tables, notes.
bool is_skipped(const elf::Section& section) {
  return section.type == elf::kNote || section.type == kX86Unwind || section.name == ".eh_frame" ||
         section.name == ".gcc_except_table";
}

Part part_of(const elf::Section& section) {
  if (section.has(elf::kExec)) return kCode;
  // Constant after relocation, which happens before pages are protected.
  if (!section.has(elf::kWrite) || section.name.starts_with(".data.rel.ro")) return kConstants;
  return kData;
}

/// Lays an object out, copies, relocates and protects it.
class Loader {
 public:
  Loader(const hal::CodeObject& code, const elf::File& file) : code_(code), file_(file) {}

  Status prepare();
  Status build();
  Result<KernelEntry> entry() const;
  ImageMemory take_memory() { return std::move(memory_); }

 private:
  struct Patch {
    const RelocationRule* rule;
    const elf::Section* target;
    uint32_t target_index;
    elf::Relocation relocation;
  };
  Status check_section(const elf::Section& section) const;
  Status collect_relocations(const elf::Section& table);
  Status resolve_external(const RelocationRule& rule, uint32_t symbol);
  Status lay_out();
  Result<uint64_t> place_sections(Part part, uint64_t offset);
  Status fill_tables();
  Status apply(const Patch& patch);
  Result<uint64_t> symbol_address(uint32_t symbol) const;
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory_.bytes().data()); }

  const hal::CodeObject& code_;
  const elf::File& file_;
  std::vector<Patch> patches_;
  std::map<uint32_t, const void*> externals_;  ///< undefined symbol → host function
  std::map<uint32_t, uint64_t> trampolines_;   ///< undefined symbol → offset in the image
  std::map<uint32_t, uint64_t> slots_;         ///< symbol → offset in the image
  std::vector<uint64_t> section_offset_;       ///< kNotLoaded or offset in the image
  std::array<uint64_t, kParts + 1> part_begin_{};
  uint64_t table_offset_ = 0;
  ImageMemory memory_;
  static constexpr uint64_t kNotLoaded = ~uint64_t{0};
};

Status Loader::check_section(const elf::Section& section) const {
  if (section.has(elf::kTls))
    return fail(Code::kUnsupported, "section '{}' holds thread-local data", section.name);
  if (section.has(elf::kCompressed))
    return fail(Code::kUnsupported, "section '{}' is compressed", section.name);
  if (section.type == elf::kInitArray || section.type == elf::kFiniArray ||
      section.type == elf::kPreinitArray)
    return fail(Code::kUnsupported, "section '{}': constructors and destructors would not run",
                section.name);
  if (section.alignment > kPage)
    return fail(Code::kUnsupported,
                "section '{}' wants an alignment of {} bytes, at most {} is given", section.name,
                section.alignment, kPage);
  return {};
}

Status Loader::prepare() {
  const auto sections = file_.sections();
  section_offset_.assign(sections.size(), kNotLoaded);
  for (const elf::Section& section : sections) {
    if (!section.has(elf::kAlloc) || is_skipped(section)) continue;
    BM_TRY(check_section(section));
  }
  for (const elf::Section& section : sections)
    if (section.type == elf::kRela || section.type == elf::kRel)
      BM_TRY(collect_relocations(section));
  return {};
}

Status Loader::collect_relocations(const elf::Section& table) {
  const auto relocations = BM_TRY(file_.relocations(table));
  const elf::Section& target = file_.sections()[table.info];
  if (!target.has(elf::kAlloc) || is_skipped(target)) return {};
  if (table.type == elf::kRel)
    return fail(Code::kUnsupported, "section '{}': relocations without addends", table.name);
  if (target.type == elf::kNobits)
    return fail(Code::kCorrupt, "section '{}' relocates '{}', which has no contents", table.name,
                target.name);
  if (table.link != file_.symbol_section())
    return fail(Code::kCorrupt, "section '{}' uses another symbol table", table.name);
  for (const elf::Relocation& relocation : relocations) {
    const RelocationRule* rule = find_relocation_rule(file_.machine(), relocation.type);
    if (rule == nullptr)
      return fail(Code::kUnsupported, "relocation type {} at {:#x} of '{}'", relocation.type,
                  relocation.offset, target.name);
    if (rule->value == RelocationValue::kNone) continue;
    if (relocation.symbol >= file_.symbols().size())
      return fail(Code::kCorrupt, "section '{}' relocates without a symbol table", table.name);
    const elf::Symbol& symbol = file_.symbols()[relocation.symbol];
    if (relocation.symbol != 0 && !symbol.is_defined()) {
      BM_TRY(resolve_external(*rule, relocation.symbol));
      if (rule->uses_trampoline() || rule->value == RelocationValue::kRelative)
        trampolines_.emplace(relocation.symbol, 0);
    }
    if (rule->uses_slot()) slots_.emplace(relocation.symbol, 0);
    patches_.push_back({rule, &target, table.info, relocation});
  }
  return {};
}

Status Loader::resolve_external(const RelocationRule& rule, uint32_t index) {
  const elf::Symbol& symbol = file_.symbols()[index];
  // Code of the large model names the table itself; this form does not read the symbol's value.
  if (rule.value == RelocationValue::kTableRelative) {
    externals_.emplace(index, nullptr);
    return {};
  }
  const void* address = find_external(symbol.name);
  if (address == nullptr)
    return fail(Code::kUnsupported,
                "undefined symbol '{}': kernels may call only libm, memory functions and the "
                "compiler's runtime",
                symbol.name);
  externals_.emplace(index, address);
  return {};
}

Result<uint64_t> Loader::place_sections(Part part, uint64_t offset) {
  const auto sections = file_.sections();
  for (size_t i = 1; i < sections.size(); ++i) {
    const elf::Section& section = sections[i];
    if (!section.has(elf::kAlloc) || is_skipped(section) || part_of(section) != part) continue;
    offset = align_up(offset, section.alignment);
    if (section.size > kMaxImageBytes || offset + section.size > kMaxImageBytes)
      return fail(Code::kUnsupported, "section '{}' of {} bytes: the image would exceed {} bytes",
                  section.name, section.size, kMaxImageBytes);
    section_offset_[i] = offset;
    offset += section.size;
  }
  return offset;
}

Status Loader::lay_out() {
  uint64_t offset = BM_TRY(place_sections(kCode, 0));
  offset = align_up(offset, kTrampolineBytes);
  for (auto& [symbol, at] : trampolines_) {
    at = offset;
    offset += kTrampolineBytes;
  }
  part_begin_[kConstants] = align_up(offset, kPage);
  offset = BM_TRY(place_sections(kConstants, part_begin_[kConstants]));
  table_offset_ = offset = align_up(offset, kSlotBytes);
  for (auto& [symbol, at] : slots_) {
    at = offset;
    offset += kSlotBytes;
  }
  part_begin_[kData] = align_up(offset, kPage);
  offset = BM_TRY(place_sections(kData, part_begin_[kData]));
  part_begin_[kParts] = align_up(std::max<uint64_t>(offset, 1), kPage);
  return {};
}

Result<uint64_t> Loader::symbol_address(uint32_t index) const {
  if (index == 0) return uint64_t{0};
  const elf::Symbol& symbol = file_.symbols()[index];
  if (!symbol.is_defined()) return reinterpret_cast<uint64_t>(externals_.at(index));
  if (symbol.section == elf::kAbsolute) return symbol.value;
  if (symbol.section >= elf::kFirstReserved)
    return fail(Code::kUnsupported,
                "symbol '{}' is common data (section {:#x}); compile with -fno-common", symbol.name,
                symbol.section);
  if (symbol.type == elf::SymbolType::kThreadLocal || symbol.type == elf::SymbolType::kIndirect)
    return fail(Code::kUnsupported, "symbol '{}' is thread-local or indirect", symbol.name);
  if (section_offset_[symbol.section] == kNotLoaded)
    return fail(Code::kUnsupported, "symbol '{}' is in section '{}', which is not loaded",
                symbol.name, file_.sections()[symbol.section].name);
  return base() + section_offset_[symbol.section] + symbol.value;
}

Status Loader::fill_tables() {
  const auto image = memory_.bytes();
  for (const auto& [symbol, offset] : trampolines_) {
    const uint64_t target = BM_TRY(symbol_address(symbol));
    BM_TRY(write_trampoline(file_.machine(), target, image.subspan(offset, kTrampolineBytes)));
  }
  for (const auto& [symbol, offset] : slots_) {
    const uint64_t address = BM_TRY(symbol_address(symbol));
    std::memcpy(image.data() + offset, &address, sizeof address);
  }
  return {};
}

Status Loader::apply(const Patch& patch) {
  const elf::Relocation& relocation = patch.relocation;
  const uint64_t section = section_offset_[patch.target_index];
  RelocationPlace at{.place = base() + section + relocation.offset,
                     .symbol = BM_TRY(symbol_address(relocation.symbol)),
                     .trampoline = 0,
                     .slot = 0,
                     .table = base() + table_offset_,
                     .addend = relocation.addend};
  at.trampoline = at.symbol;
  if (const auto found = trampolines_.find(relocation.symbol); found != trampolines_.end()) {
    at.trampoline = base() + found->second;
    // gcc marks some calls PC32: a function of the host is too far for that.
    if (patch.rule->value == RelocationValue::kRelative) at.symbol = at.trampoline;
  }
  if (const auto found = slots_.find(relocation.symbol); found != slots_.end())
    at.slot = base() + found->second;
  auto applied = apply_relocation(
      *patch.rule, at,
      memory_.bytes().subspan(section + relocation.offset, patch.target->size - relocation.offset));
  if (!applied)
    return tl::unexpected(
        std::move(applied.error())
            .within(fmt::format("section '{}' offset {:#x} symbol '{}'", patch.target->name,
                                relocation.offset, file_.symbols()[relocation.symbol].name)));
  return {};
}

Status Loader::build() {
  BM_TRY(lay_out());
  const bool low = std::any_of(patches_.begin(), patches_.end(),
                               [](const Patch& patch) { return patch.rule->wants_low_address(); });
  memory_ = BM_TRY(ImageMemory::map(part_begin_[kParts], low));
  for (size_t i = 1; i < section_offset_.size(); ++i) {
    const auto bytes = file_.sections()[i].bytes;
    if (section_offset_[i] != kNotLoaded && !bytes.empty())
      std::memcpy(memory_.bytes().data() + section_offset_[i], bytes.data(), bytes.size());
  }
  BM_TRY(fill_tables());
  for (const Patch& patch : patches_) BM_TRY(apply(patch));
  BM_TRY(memory_.protect(0, part_begin_[kConstants], PROT_READ | PROT_EXEC));
  BM_TRY(memory_.protect(part_begin_[kConstants], part_begin_[kData] - part_begin_[kConstants],
                         PROT_READ));
  auto* begin = reinterpret_cast<char*>(memory_.bytes().data());
  __builtin___clear_cache(begin, begin + part_begin_[kConstants]);
  return {};
}

Result<KernelEntry> Loader::entry() const {
  const elf::Symbol* symbol = file_.find_symbol(code_.entry);
  if (symbol == nullptr)
    return fail(Code::kInvalidArgument, "the object does not define '{}'", code_.entry);
  const bool is_code = symbol->section < elf::kFirstReserved &&
                       section_offset_[symbol->section] != kNotLoaded &&
                       file_.sections()[symbol->section].has(elf::kExec);
  if (symbol->type != elf::SymbolType::kFunction || !is_code ||
      symbol->value >= file_.sections()[symbol->section].size)
    return fail(Code::kInvalidArgument, "'{}' is not a function of the object's code", code_.entry);
  return reinterpret_cast<KernelEntry>(base() + section_offset_[symbol->section] + symbol->value);
}

}  // namespace

Result<ImageMemory> ImageMemory::map(uint64_t size, bool low) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_32BIT)
  if (low) flags |= MAP_32BIT;
#else
  (void)low;
#endif
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED)
    return fail(Code::kOutOfMemory, "{} bytes for code{}: {}", size, low ? " below 2 GiB" : "",
                errno_text(errno));
  return ImageMemory({static_cast<std::byte*>(memory), size});
}

ImageMemory::~ImageMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Status ImageMemory::protect(uint64_t offset, uint64_t size, int protection) {
  if (size == 0 || mprotect(bytes_.data() + offset, size, protection) == 0) return {};
  return fail(code_from_errno(errno), "mprotect of {} bytes of code: {}", size, errno_text(errno));
}

Result<std::unique_ptr<CpuProgram>> CpuProgram::load(const hal::CodeObject& code,
                                                     std::string_view arch) {
  if (code.arch != arch)
    return fail(Code::kInvalidArgument, "kernel '{}' was made for '{}', this device is '{}'",
                code.entry, code.arch, arch);
  if (code.block != hal::Dim3{})
    return fail(Code::kInvalidArgument,
                "kernel '{}' wants {}x{}x{} threads per block; the CPU runs one", code.entry,
                code.block.x, code.block.y, code.block.z);
  if (code.shared_memory_bytes != 0)
    return fail(Code::kUnsupported, "kernel '{}' needs {} bytes of shared memory; the CPU has none",
                code.entry, code.shared_memory_bytes);
  const auto attempt = [&]() -> Result<std::unique_ptr<CpuProgram>> {
    const elf::File file = BM_TRY(elf::File::parse(code.image));
    if (file.type() != elf::FileType::kRelocatable || file.machine() != kHostMachine)
      return fail(Code::kInvalidArgument,
                  "ELF type {} machine {}; wanted a relocatable object of machine {}",
                  static_cast<int>(file.type()), file.machine(), kHostMachine);
    Loader loader(code, file);
    BM_TRY(loader.prepare());
    BM_TRY(loader.build());
    const KernelEntry entry = BM_TRY(loader.entry());
    return std::unique_ptr<CpuProgram>(new CpuProgram(code, loader.take_memory(), entry));
  };
  auto program = attempt();
  if (!program)
    return tl::unexpected(
        std::move(program.error()).within(fmt::format("kernel '{}'", code.entry)));
  return program;
}

}  // namespace bm::cpu
