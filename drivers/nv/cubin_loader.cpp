#include "drivers/nv/cubin_loader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

constexpr uint64_t kTextAlignment = 128, kPrefetchSlack = 4096;
// Far above what compilers here emit; a hostile size would otherwise be allocated.
constexpr uint64_t kMaxImageBytes = 64ULL << 20;
constexpr uint64_t kMaxBankBytes = 64 << 10;
// One of four register files per multiprocessor, and how a warp's share of it is rounded.
constexpr uint32_t kRegistersPerQuarter = 16384, kRegisterGranule = 8, kWarp = 32;
// Functions that recurse or are called by address have no depth that the compiler could tell: they
// get what CUDA gives every thread (default of cudaLimitStackSize).
constexpr uint32_t kCallStackBytes = 1024;
constexpr uint32_t kMaxThreads = 1024, kMaxBarriers = 16, kMaxRegisters = 255;
// nvlink and ptxas count the system's share of shared memory in from sm_90 on.
constexpr uint32_t kFirstReservingSm = 80, kFirstCountingSm = 90, kSystemSharedBytes = 0x400;

bool is_text(const elf::Section& section) {
  return section.has(elf::kExec) && section.type == elf::kProgbits;
}
bool is_shared(const elf::Section& section) { return section.name.starts_with(".nv.shared"); }

uint32_t field_bytes(uint32_t type) { return type <= 4 ? (type == 1 || type == 3 ? 4 : 8) : 16; }

std::string relocation_name(const elf::Section& table, const elf::Relocation& relocation,
                            const elf::Symbol& symbol) {
  return fmt::format("cubin: '{}' offset {:#x}, symbol '{}'", table.name, relocation.offset,
                     symbol.name);
}

}  // namespace

Result<ProgramImage> CubinLoader::load(std::string_view kernel) {
  BM_TRY(find_kernel(kernel));
  BM_TRY(read_module_info());
  BM_TRY(read_kernel_info());
  BM_TRY(read_shared());
  BM_TRY(include(text_));
  BM_TRY(include_banks());
  BM_TRY(follow_relocations());
  reserve_calls();
  limit_threads();
  BM_TRY(lay_out());
  for (const Patch& patch : patches_) BM_TRY(add_fixup(patch));
  return std::move(result_);
}

Status CubinLoader::find_kernel(std::string_view kernel) {
  constexpr uint8_t kEntry = 0x10;  // st_other of a kernel
  std::string found;
  for (size_t i = 1; i < file_.symbols().size(); ++i) {
    const elf::Symbol& symbol = file_.symbols()[i];
    if (symbol.type != elf::SymbolType::kFunction || (symbol.other & kEntry) == 0) continue;
    if (symbol.section == elf::kUndefined || symbol.section >= file_.sections().size()) continue;
    if (symbol.name != kernel) {
      if (found.size() < 400) found += (found.empty() ? "" : ", ") + std::string(symbol.name);
      continue;
    }
    const elf::Section& text = file_.sections()[symbol.section];
    if (!is_text(text) || text.bytes.empty() || symbol.value != 0)
      return fail(Code::kCorrupt, "cubin: kernel '{}' is not the start of a code section", kernel);
    symbol_ = static_cast<uint32_t>(i);
    text_ = symbol.section;
    info().name = kernel;
    info().code_bytes = text.size;
    return {};
  }
  return fail(Code::kNotFound, "cubin has no kernel '{}'; it has: {}", kernel,
              found.empty() ? "none" : found);
}

Status CubinLoader::read_module_info() {
  const elf::Section& text = file_.sections()[text_];
  std::vector<InfoRecord> module;
  if (const elf::Section* section = file_.find_section(".nv.info"))
    module = BM_TRY(read_info(*section));
  // Up to sm_89 the count is also in the text section's sh_info.
  info().registers = symbol_value(module, Attribute::kRegisters, symbol_).value_or(text.info >> 24);
  if (info().registers == 0 || info().registers > kMaxRegisters)
    return fail(Code::kCorrupt, "cubin: kernel '{}' has {} registers", info().name,
                info().registers);
  info().stack_bytes =
      std::max(symbol_value(module, Attribute::kFrameSize, symbol_).value_or(0),
               symbol_value(module, Attribute::kMinStackSize, symbol_).value_or(0));
  // CUDA up to 12: barriers are in the section's flags. Later an attribute of the kernel.
  info().barriers = static_cast<uint32_t>(text.flags >> 20) & 0x7f;
  return {};
}

void CubinLoader::apply(const InfoRecord& record) {
  const auto dim3 = [&] { return hal::Dim3{record.word(0), record.word(1), record.word(2)}; };
  switch (Attribute{record.attribute}) {
    case Attribute::kMaxThreads:
      info().max_threads = static_cast<uint32_t>(std::min<uint64_t>(
          kMaxThreads, uint64_t{record.word(0)} * record.word(1) * record.word(2)));
      break;
    case Attribute::kRequiredBlock: info().required_block = dim3(); break;
    case Attribute::kClusterSize: info().cluster = dim3(); break;
    case Attribute::kMaxClusterRank: info().max_cluster_rank = record.word(0); break;
    case Attribute::kBarriers: info().barriers = record.value; break;
    case Attribute::kParamBank:
      info().param_base = record.word(1) & 0xffff;
      info().param_bytes = record.word(1) >> 16;
      break;
    case Attribute::kParameter:
      info().parameters.push_back({record.word(1) >> 16, record.word(2) >> 18});
      break;
    case Attribute::kParameterV2:
      info().parameters.push_back({record.word(1) >> 16, record.word(2)});
      break;
    case Attribute::kExplicitCluster:
    case Attribute::kParamBytes:
    case Attribute::kFrameSize:
    case Attribute::kMinStackSize:
    case Attribute::kRegisters: break;
  }
}

Status CubinLoader::read_kernel_info() {
  if (const auto* section = file_.find_section(".nv.info." + info().name))
    for (const InfoRecord& record : BM_TRY(read_info(*section))) apply(record);
  std::sort(info().parameters.begin(), info().parameters.end(),
            [](const Parameter& a, const Parameter& b) { return a.offset < b.offset; });
  for (const Parameter& p : info().parameters)
    if (p.bytes > info().param_bytes || p.offset > info().param_bytes - p.bytes)
      return fail(Code::kCorrupt, "cubin: kernel '{}' has a parameter of {} bytes at {}, {} in all",
                  info().name, p.bytes, p.offset, info().param_bytes);
  if (info().barriers > kMaxBarriers)
    return fail(Code::kCorrupt, "cubin: kernel '{}' uses {} barriers of {}", info().name,
                info().barriers, kMaxBarriers);
  const elf::Section* bank = file_.find_section(".nv.constant0." + info().name);
  const uint64_t size = bank != nullptr ? bank->size : 0;
  if (info().param_base == 0) info().param_base = static_cast<uint32_t>(size);
  if (size > kMaxBankBytes || size != info().param_base + info().param_bytes)
    return fail(Code::kCorrupt,
                "cubin: kernel '{}' has a constant bank 0 of {} bytes, parameters end at {}",
                info().name, size, info().param_base + info().param_bytes);
  info().banks[0].bytes = static_cast<uint32_t>(align_up(size, 16));
  return {};
}

void CubinLoader::reserve_calls() {
  for (const elf::Symbol& symbol : file_.symbols()) {
    if (symbol.type != elf::SymbolType::kFunction || &symbol == &file_.symbols()[symbol_]) continue;
    if (std::find(included_.begin(), included_.end(), symbol.section) == included_.end()) continue;
    // The compiler's own ("$kernel$__internal_…", "$__internal_0_$__cuda_…") are in its figure.
    if (symbol.name.find("__internal") != symbol.name.npos ||
        symbol.name.find("__cuda") != symbol.name.npos)
      continue;
    info().stack_bytes = std::max(info().stack_bytes, kCallStackBytes);
  }
}

void CubinLoader::limit_threads() {
  const uint32_t per_thread = static_cast<uint32_t>(align_up(info().registers, kRegisterGranule));
  const uint32_t warps = 4 * (kRegistersPerQuarter / (per_thread * kWarp));
  info().max_threads = std::min(info().max_threads, warps * kWarp);
}

Status CubinLoader::read_shared() {
  const elf::Section* section = file_.find_section(".nv.shared." + info().name);
  const uint64_t size = section != nullptr ? section->size : 0;
  if (size > 1 << 20)
    return fail(Code::kCorrupt, "cubin: kernel '{}' has {} bytes of shared memory", info().name,
                size);
  const uint32_t sm = info().sm, bytes = static_cast<uint32_t>(size);
  info().shared_reserved_bytes = sm >= kFirstReservingSm ? kSystemSharedBytes : 0;
  info().shared_bytes = sm >= kFirstCountingSm ? std::max(bytes, kSystemSharedBytes)
                                               : bytes + info().shared_reserved_bytes;
  return {};
}

Status CubinLoader::include(uint32_t section) {
  if (std::find(included_.begin(), included_.end(), section) == included_.end())
    included_.push_back(section);
  return {};
}

Status CubinLoader::include_banks() {
  for (uint32_t bank = 1; bank < info().banks.size(); ++bank) {
    const std::string module = fmt::format(".nv.constant{}", bank);
    const elf::Section* section = file_.find_section(module + "." + info().name);
    if (section == nullptr) section = file_.find_section(module);
    if (section == nullptr || section->size == 0) continue;
    if (section->size > kMaxBankBytes)
      return fail(Code::kCorrupt, "cubin: '{}' has {} bytes, a bank holds {}", section->name,
                  section->size, kMaxBankBytes);
    info().banks[bank].bytes = static_cast<uint32_t>(align_up(section->size, 16));
    bank_of_section_[index_of(*section)] = bank;
    BM_TRY(include(index_of(*section)));
  }
  return {};
}

Status CubinLoader::follow_relocations() {
  // included_ grows while symbols lead to further sections.
  for (size_t i = 0; i < included_.size(); ++i)
    for (const elf::Section& table : file_.sections())
      if ((table.type == elf::kRel || table.type == elf::kRela) && table.info == included_[i])
        BM_TRY(follow(table));
  return {};
}

Status CubinLoader::follow(const elf::Section& table) {
  if (table.size != 0 && table.link != file_.symbol_section())
    return fail(Code::kCorrupt, "cubin: '{}' does not use the module's symbol table", table.name);
  for (const elf::Relocation& relocation : BM_TRY(file_.relocations(table))) {
    Patch patch = BM_TRY(patch_of(table, relocation));
    BM_TRY(check_symbol(table, patch));
    patches_.push_back(patch);
  }
  return {};
}

Result<CubinLoader::Patch> CubinLoader::patch_of(const elf::Section& table,
                                                 const elf::Relocation& relocation) const {
  // Names: R_CUDA_64 and _G64, _32 and _G32, _ABS32_LO_32, _ABS32_HI_32, _ABS47_34,
  // _ABS55_16_34. Call targets are stored in units of 4 bytes, as relative branches show.
  static constexpr struct {
    uint32_t type;
    Field field;
  } kTypes[] = {{0x01, Field::kWord32},     {0x02, Field::kWord64},    {0x03, Field::kWord32},
                {0x04, Field::kWord64},     {0x37, Field::kLow32At32}, {0x38, Field::kLow32At32},
                {0x39, Field::kHigh32At32}, {0x3a, Field::kCall47},    {0x4b, Field::kCall55}};
  const elf::Symbol& symbol = file_.symbols()[relocation.symbol];
  const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const auto& row) { return row.type == relocation.type; });
  if (known == std::end(kTypes))
    return fail(
        Code::kUnsupported,
        "{}: relocation type {:#x} is not known; code compiled with -rdc needs nvlink first",
        relocation_name(table, relocation, symbol), relocation.type);
  const elf::Section& target = file_.sections()[table.info];
  const uint32_t bytes = field_bytes(relocation.type);
  if (target.bytes.size() < bytes || relocation.offset > target.bytes.size() - bytes)
    return fail(Code::kCorrupt, "{}: patches outside '{}' of {} bytes",
                relocation_name(table, relocation, symbol), target.name, target.bytes.size());
  Patch patch{.section = table.info,
              .symbol = relocation.symbol,
              .offset = relocation.offset,
              .addend = static_cast<uint64_t>(relocation.addend),
              .field = known->field};
  if (table.type == elf::kRel) patch.addend = BM_TRY(addend_of(table, patch));
  return patch;
}

Result<uint64_t> CubinLoader::addend_of(const elf::Section& table, const Patch& patch) const {
  const std::byte* at = file_.sections()[patch.section].bytes.data() + patch.offset;
  uint64_t words[2] = {};
  switch (patch.field) {
    case Field::kWord64: std::memcpy(words, at, 8); return words[0];
    case Field::kWord32: std::memcpy(words, at, 4); return words[0];
    case Field::kLow32At32: std::memcpy(words, at + 4, 4); return words[0];
    case Field::kHigh32At32:
    case Field::kCall47:
    case Field::kCall55: break;
  }
  // Compilers give such patch sites their addend in a RELA section; zero in the instruction.
  std::memcpy(words, at, 16);
  const bool is_zero = patch.field == Field::kHigh32At32
                           ? words[0] >> 32 == 0
                           : words[0] >> 34 == 0 && (words[1] & 0x1ffff) == 0;
  if (is_zero) return 0;
  return fail(Code::kUnsupported, "cubin: '{}' offset {:#x}: addend inside an instruction",
              table.name, patch.offset);
}

Status CubinLoader::check_symbol(const elf::Section& table, const Patch& patch) {
  const elf::Symbol& symbol = file_.symbols()[patch.symbol];
  if (!symbol.is_defined())
    return fail(
        Code::kUnsupported,
        "cubin: '{}' offset {:#x} needs '{}', which is defined nowhere; device-side printf, "
        "malloc and assert are not available",
        table.name, patch.offset, symbol.name);
  if (symbol.section >= file_.sections().size())
    return fail(Code::kUnsupported, "cubin: '{}': symbol '{}' is in special section {:#x}",
                table.name, symbol.name, symbol.section);
  const elf::Section& section = file_.sections()[symbol.section];
  if (is_shared(section)) return {};  // an offset in shared memory, not in the image
  if (!section.has(elf::kAlloc) ||
      (section.type != elf::kProgbits && section.type != elf::kNobits) ||
      section.name.starts_with(".nv.constant0"))
    return fail(Code::kUnsupported, "cubin: '{}': symbol '{}' is in '{}', which is not loaded",
                table.name, symbol.name, section.name);
  return include(symbol.section);
}

Status CubinLoader::place(uint32_t section, uint64_t alignment) {
  const elf::Section& source = file_.sections()[section];
  std::vector<std::byte>& bytes = result_.bytes_;
  const uint64_t start = align_up(bytes.size(), std::max(alignment, source.alignment));
  if (source.alignment > ProgramImage::kAlignment)
    return fail(Code::kUnsupported, "cubin: '{}' wants alignment {}", source.name,
                source.alignment);
  if (source.size > kMaxImageBytes || start > kMaxImageBytes - source.size)
    return fail(Code::kUnsupported, "cubin: '{}' of {} bytes makes the image larger than {} MiB",
                source.name, source.size, kMaxImageBytes >> 20);
  bytes.resize(start + source.size);
  if (!source.bytes.empty()) std::memcpy(bytes.data() + start, source.bytes.data(), source.size);
  place_[section] = start;
  return {};
}

Status CubinLoader::lay_out() {
  // Code last: what follows the last instruction is fetched too.
  for (uint32_t section : included_)
    if (!is_text(file_.sections()[section])) BM_TRY(place(section, ProgramImage::kAlignment));
  for (const auto& [section, bank] : bank_of_section_) info().banks[bank].offset = place_[section];
  BM_TRY(place(text_, ProgramImage::kAlignment));
  for (uint32_t section : included_)
    if (section != text_ && is_text(file_.sections()[section]))
      BM_TRY(place(section, kTextAlignment));
  info().code_offset = place_[text_];
  result_.bytes_.resize(align_up(result_.bytes_.size() + kPrefetchSlack, ProgramImage::kAlignment));
  return {};
}

Status CubinLoader::add_fixup(const Patch& patch) {
  const elf::Symbol& symbol = file_.symbols()[patch.symbol];
  const bool is_relative = !is_shared(file_.sections()[symbol.section]);
  const uint64_t base = is_relative ? place_[symbol.section] : 0;
  result_.fixups_.push_back({.place = place_[patch.section] + patch.offset,
                             .value = base + symbol.value + patch.addend,
                             .field = patch.field,
                             .is_relative = is_relative});
  return {};
}

}  // namespace bm::nv
