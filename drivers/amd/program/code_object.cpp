#include "drivers/amd/program/code_object.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "drivers/amd/regs/registers.h"
#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"
#include "runtime/base/elf.h"

namespace bm::amd {
namespace {

constexpr uint8_t kOsAbiHsa = 64;
// EI_ABIVERSION of code object versions 4 to 6; 6 may hold generic targets, which the machine
// number then tells.
constexpr uint8_t kFirstAbi = 2, kLastAbi = 4;
constexpr uint32_t kMachineMask = 0xff;
constexpr uint64_t kMostBytes = 256_MiB;
constexpr uint64_t kDescriptorBytes = 64, kEntryAlignment = 256;
constexpr uint32_t kLoadable = 1;  // PT_LOAD
/// Scratch of a lane given to kernels whose stack the compiler cannot bound.
constexpr uint32_t kDynamicStack = 16384;

enum Relocation : uint32_t {
  kNone = 0,
  kAbs32Lo = 1,
  kAbs32Hi = 2,
  kAbs64 = 3,
  kRel32 = 4,
  kRel64 = 5,
  kAbs32 = 6,
  kRel32Lo = 10,
  kRel32Hi = 11,
  kRelative64 = 13,
};

// KERNEL_CODE_PROPERTY_*.
enum Property : uint16_t {
  kPrivateBuffer = 1 << 0,
  kDispatchPtr = 1 << 1,
  kQueuePtr = 1 << 2,
  kKernargPtr = 1 << 3,
  kDispatchId = 1 << 4,
  kFlatScratchInit = 1 << 5,
  kPrivateSize = 1 << 6,
  kWave32 = 1 << 10,
  kDynamicStackUse = 1 << 11,
};

RegisterField vgprs_field(RegisterSet set) {
  switch (set) {
    case RegisterSet::kGc9_4_3: return kGc943ComputePgmRsrc1Vgprs;
    case RegisterSet::kGc10_3: return kGc1030ComputePgmRsrc1Vgprs;
    case RegisterSet::kGc11: return kGc1100ComputePgmRsrc1Vgprs;
    case RegisterSet::kGc12: return kGc1200ComputePgmRsrc1Vgprs;
  }
  __builtin_unreachable();
}

}  // namespace

class CodeObjectLoader {
 public:
  CodeObjectLoader(elf::File file, std::string_view kernel, const ChipRow& chip)
      : file_(std::move(file)), name_(kernel), chip_(chip) {}

  Result<ProgramImage> run() {
    BM_TRY(check_target());
    BM_TRY(file_.type() == elf::FileType::kRelocatable ? place_sections() : place_segments());
    BM_TRY(find_kernel());
    BM_TRY(apply_relocations());
    BM_TRY(read_descriptor());
    return std::move(image_);
  }

 private:
  Status check_target() const;
  Status place_sections();
  Status place_segments();
  Status find_kernel();
  Status read_descriptor();
  Status read_properties(uint16_t properties);
  Status apply_relocations();
  Status apply(const elf::Section& target, uint64_t base, const elf::Relocation& relocation);
  Result<uint64_t> address_of(const elf::Symbol& symbol) const;
  std::string kernel_names() const;
  bool is_relocatable() const { return file_.type() == elf::FileType::kRelocatable; }

  elf::File file_;
  std::string_view name_;
  const ChipRow& chip_;
  ProgramImage image_;
  /// Offset of each section in the image; nothing for those that are not loaded.
  std::vector<std::optional<uint64_t>> places_;
};

Status CodeObjectLoader::check_target() const {
  if (file_.machine() != elf::kMachineAmdGpu)
    return fail(Code::kUnsupported, "kernel '{}': an ELF file for machine {}, not for AMD GPUs",
                name_, file_.machine());
  if (file_.type() != elf::FileType::kRelocatable && file_.type() != elf::FileType::kShared)
    return fail(Code::kUnsupported, "kernel '{}': ELF type {} is no code object", name_,
                static_cast<int>(file_.type()));
  if (file_.os_abi() != kOsAbiHsa)
    return fail(Code::kUnsupported, "kernel '{}': compiled for OS ABI {}; target amdgcn-amd-amdhsa",
                name_, file_.os_abi());
  if (file_.abi_version() < kFirstAbi || file_.abi_version() > kLastAbi)
    return fail(Code::kUnsupported,
                "kernel '{}': code object version {}; compile for version 4 to 6 "
                "(-mcode-object-version=5)",
                name_, file_.abi_version() + 2);
  const auto machine = static_cast<uint8_t>(file_.flags() & kMachineMask);
  if (machine == chip_.elf_machine) return {};
  const ChipRow* other = find_chip_by_machine(machine);
  return fail(Code::kInvalidArgument, "kernel '{}': compiled for {}, this GPU is {}", name_,
              other != nullptr ? std::string(other->name) : fmt::format("machine {:#x}", machine),
              chip_.name);
}

/// Loaded sections one after the other, as aligned as they ask.
Status CodeObjectLoader::place_sections() {
  const auto sections = file_.sections();
  places_.resize(sections.size());
  uint64_t end = 0;
  for (size_t i = 0; i < sections.size(); ++i) {
    const elf::Section& section = sections[i];
    if (!section.has(elf::kAlloc) || section.type == elf::kNote || section.size == 0) continue;
    if (section.has(elf::kTls) || section.has(elf::kCompressed))
      return fail(Code::kUnsupported, "kernel '{}': section {} cannot be loaded", name_,
                  section.name);
    if (section.alignment > ProgramImage::kAlignment)
      return fail(Code::kUnsupported, "kernel '{}': section {} aligned to {}", name_, section.name,
                  section.alignment);
    const auto at = checked_align_up(end, std::max<uint64_t>(section.alignment, 64));
    const auto past = at ? checked_add(*at, section.size) : std::nullopt;
    const auto fetched =
        past && section.has(elf::kExec) ? checked_add(*past, ProgramImage::kFetchAhead) : past;
    if (!fetched || *fetched > kMostBytes)
      return fail(Code::kCorrupt, "kernel '{}': section {} of {} bytes", name_, section.name,
                  section.size);
    places_[i] = *at;
    end = *fetched;
  }
  image_.bytes_.resize(align_up(end, 256));
  for (size_t i = 0; i < sections.size(); ++i)
    if (places_[i] && !sections[i].bytes.empty())
      std::memcpy(image_.bytes_.data() + *places_[i], sections[i].bytes.data(),
                  sections[i].bytes.size());
  return {};
}

/// Segments where the linker put them.
Status CodeObjectLoader::place_segments() {
  uint64_t end = 0;
  for (const elf::Segment& segment : file_.segments()) {
    if (segment.type != kLoadable) continue;
    const auto past = checked_add(segment.address, segment.memory_size);
    if (!past || *past > kMostBytes - ProgramImage::kFetchAhead ||
        segment.bytes.size() > segment.memory_size)
      return fail(Code::kCorrupt, "kernel '{}': segment of {} bytes at {:#x}", name_,
                  segment.memory_size, segment.address);
    end = std::max(end, *past);
  }
  image_.bytes_.resize(align_up(end + ProgramImage::kFetchAhead, 256));
  for (const elf::Segment& segment : file_.segments())
    if (segment.type == kLoadable && !segment.bytes.empty())
      std::memcpy(image_.bytes_.data() + segment.address, segment.bytes.data(),
                  segment.bytes.size());
  return {};
}

std::string CodeObjectLoader::kernel_names() const {
  std::string names;
  for (const elf::Symbol& symbol : file_.symbols())
    if (symbol.is_defined() && symbol.name.ends_with(".kd"))
      names += fmt::format(" '{}'", symbol.name.substr(0, symbol.name.size() - 3));
  return names.empty() ? " none" : names;
}

/// Offset in the image. Errors: kUnsupported for symbols nobody defines.
Result<uint64_t> CodeObjectLoader::address_of(const elf::Symbol& symbol) const {
  if (!symbol.is_defined())
    return fail(Code::kUnsupported, "kernel '{}': symbol '{}' is defined nowhere; link its library",
                name_, symbol.name);
  if (symbol.section >= elf::kFirstReserved)
    return fail(Code::kUnsupported, "kernel '{}': symbol '{}' in section {:#x}", name_, symbol.name,
                symbol.section);
  if (!is_relocatable()) return symbol.value;
  if (!places_[symbol.section])
    return fail(Code::kCorrupt, "kernel '{}': symbol '{}' in section {}, which is not loaded",
                name_, symbol.name, symbol.section);
  return *places_[symbol.section] + symbol.value;
}

Status CodeObjectLoader::find_kernel() {
  const elf::Symbol* symbol = file_.find_symbol(std::string(name_) + ".kd");
  if (symbol == nullptr)
    return fail(Code::kInvalidArgument, "no kernel '{}' in the code object; it has{}", name_,
                kernel_names());
  const uint64_t at = BM_TRY(address_of(*symbol));
  if (at % kDescriptorBytes != 0 || at > image_.bytes_.size() ||
      image_.bytes_.size() - at < kDescriptorBytes)
    return fail(Code::kCorrupt, "kernel '{}': descriptor at {:#x} of {} bytes", name_, at,
                image_.bytes_.size());
  image_.kernel_.name = std::string(name_);
  image_.kernel_.descriptor_offset = at;
  return {};
}

Status CodeObjectLoader::read_properties(uint16_t properties) {
  KernelFacts& kernel = image_.kernel_;
  // With architected flat scratch (gfx940, RDNA3 and later) no code asks for them.
  kernel.takes_private_buffer = (properties & kPrivateBuffer) != 0;
  kernel.takes_flat_scratch = (properties & kFlatScratchInit) != 0;
  kernel.has_dynamic_stack = (properties & kDynamicStackUse) != 0;
  const bool has_stack = kernel.private_bytes != 0 || kernel.has_dynamic_stack;
  if (has_stack && (kernel.takes_private_buffer || kernel.takes_flat_scratch))
    return fail(
        Code::kUnsupported,
        "kernel '{}' has a stack and wants {} at its start, which is not provided; keep "
        "local arrays in registers or LDS",
        name_,
        kernel.takes_private_buffer ? "a private segment buffer" : "initial flat scratch values");
  kernel.takes_dispatch_packet = (properties & kDispatchPtr) != 0;
  kernel.takes_queue = (properties & kQueuePtr) != 0;
  kernel.takes_kernarg = (properties & kKernargPtr) != 0;
  kernel.takes_dispatch_id = (properties & kDispatchId) != 0;
  kernel.takes_private_size = (properties & kPrivateSize) != 0;
  kernel.is_wave32 = (properties & kWave32) != 0;
  if (kernel.is_wave32 && !chip_.has_wave32)
    return fail(Code::kCorrupt, "kernel '{}': waves of 32 lanes, which {} does not have", name_,
                chip_.name);
  return {};
}

Status CodeObjectLoader::read_descriptor() {
  KernelFacts& kernel = image_.kernel_;
  ByteReader reader(std::span(image_.bytes_).subspan(kernel.descriptor_offset, kDescriptorBytes));
  kernel.group_bytes = BM_TRY(reader.read<uint32_t>());
  kernel.private_bytes = BM_TRY(reader.read<uint32_t>());
  kernel.kernarg_bytes = BM_TRY(reader.read<uint32_t>());
  BM_TRY(reader.seek(16));
  const auto entry = BM_TRY(reader.read<int64_t>());
  BM_TRY(reader.seek(44));
  kernel.rsrc3 = BM_TRY(reader.read<uint32_t>());
  kernel.rsrc1 = BM_TRY(reader.read<uint32_t>());
  kernel.rsrc2 = BM_TRY(reader.read<uint32_t>());
  const auto properties = BM_TRY(reader.read<uint16_t>());
  BM_TRY(read_properties(properties));
  kernel.entry_offset = kernel.descriptor_offset + static_cast<uint64_t>(entry);
  if (kernel.entry_offset >= image_.bytes_.size() || kernel.entry_offset % kEntryAlignment != 0)
    return fail(Code::kCorrupt, "kernel '{}': entry at {:#x} of {} bytes", name_,
                kernel.entry_offset, image_.bytes_.size());
  if (kernel.has_dynamic_stack)
    kernel.private_bytes = std::max(kernel.private_bytes, kDynamicStack);
  // In waves of 64 lanes chips with both sizes count in half as many registers.
  const uint32_t step =
      chip_.has_wave32 && !kernel.is_wave32 ? chip_.vgpr_granule32 / 2u : chip_.vgpr_granule32;
  kernel.vgprs = (vgprs_field(chip_.registers).get(kernel.rsrc1) + 1) * step;
  return {};
}

Status CodeObjectLoader::apply_relocations() {
  const auto sections = file_.sections();
  for (const elf::Section& table : sections) {
    if (table.type == elf::kRel)
      return fail(Code::kUnsupported, "kernel '{}': section {} has relocations without addends",
                  name_, table.name);
    if (table.type != elf::kRela) continue;
    uint64_t base = 0;
    const elf::Section* target = &table;
    if (is_relocatable()) {
      if (table.info >= sections.size())
        return fail(Code::kCorrupt, "kernel '{}': {} belongs to section {}", name_, table.name,
                    table.info);
      target = &sections[table.info];
      if (!places_[table.info]) continue;
      base = *places_[table.info];
    }
    if (table.link != file_.symbol_section() && is_relocatable())
      return fail(Code::kCorrupt, "kernel '{}': {} uses symbol table {}", name_, table.name,
                  table.link);
    const std::vector<elf::Relocation> list = BM_TRY(file_.relocations(table));
    for (const elf::Relocation& relocation : list) BM_TRY(apply(*target, base, relocation));
  }
  return {};
}

Status CodeObjectLoader::apply(const elf::Section& target, uint64_t base,
                               const elf::Relocation& relocation) {
  using Field = ProgramImage::Field;
  if (relocation.type == kNone) return {};
  struct Row {
    Field field;
    uint8_t bytes;
    bool is_relative;
  };
  const auto row = [&]() -> std::optional<Row> {
    switch (relocation.type) {
      case kAbs32Lo: return Row{Field::kLow32, 4, false};
      case kAbs32Hi: return Row{Field::kHigh32, 4, false};
      case kAbs64:
      case kRelative64: return Row{Field::kWord64, 8, false};
      case kAbs32: return Row{Field::kWord32, 4, false};
      case kRel32: return Row{Field::kWord32, 4, true};
      case kRel32Lo: return Row{Field::kLow32, 4, true};
      case kRel32Hi: return Row{Field::kHigh32, 4, true};
      case kRel64: return Row{Field::kWord64, 8, true};
      default: return std::nullopt;
    }
  }();
  if (!row && relocation.symbol != 0 && is_relocatable())
    BM_TRY(address_of(file_.symbols()[relocation.symbol]));  // the likelier cause
  if (!row)
    return fail(Code::kUnsupported,
                "kernel '{}': relocation type {} at {}+{:#x} (globals of other objects need hidden "
                "visibility)",
                name_, relocation.type, target.name, relocation.offset);
  const uint64_t place = base + relocation.offset;
  const uint64_t size = image_.bytes_.size();
  if (place > size || size - place < row->bytes ||
      (is_relocatable() &&
       (relocation.offset > target.size || target.size - relocation.offset < row->bytes)))
    return fail(Code::kCorrupt, "kernel '{}': relocation at {}+{:#x}, past its end", name_,
                target.name, relocation.offset);
  uint64_t value = static_cast<uint64_t>(relocation.addend);
  if (relocation.type != kRelative64) {
    // The dynamic symbol table is not the one symbols() shows; linked objects need no symbols.
    if (!is_relocatable())
      return fail(Code::kUnsupported,
                  "kernel '{}': relocation type {} by symbol in a linked object", name_,
                  relocation.type);
    value += BM_TRY(address_of(file_.symbols()[relocation.symbol]));
  }
  if (row->is_relative) {
    image_.store({place, value - place, row->field}, value - place);
  } else {
    image_.fixups_.push_back({place, value, row->field});
  }
  return {};
}

void ProgramImage::store(const Fixup& fixup, uint64_t value) {
  uint64_t word = value;
  size_t bytes = 4;
  switch (fixup.field) {
    case Field::kWord64: bytes = 8; break;
    case Field::kHigh32: word = hi32(value); break;
    case Field::kWord32:
    case Field::kLow32: break;
  }
  std::memcpy(bytes_.data() + fixup.place, &word, bytes);
}

Status ProgramImage::relocate(uint64_t address) {
  constexpr uint64_t kEnd = uint64_t{1} << 48;
  if (address % kAlignment != 0 || address >= kEnd || bytes_.size() > kEnd - address)
    return fail(Code::kInvalidArgument, "kernel '{}': an image of {} bytes cannot lie at {:#x}",
                kernel_.name, bytes_.size(), address);
  for (const Fixup& fixup : fixups_) store(fixup, address + fixup.value);
  return {};
}

Result<ProgramImage> load_code_object(std::span<const std::byte> file, std::string_view kernel,
                                      const ChipRow& chip) {
  auto parsed = elf::File::parse(file);
  if (!parsed)
    return tl::unexpected(std::move(parsed.error()).within(fmt::format("kernel '{}'", kernel)));
  return CodeObjectLoader(std::move(*parsed), kernel, chip).run();
}

}  // namespace bm::amd
