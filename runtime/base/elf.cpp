#include "runtime/base/elf.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace bm::elf {
namespace {

constexpr uint64_t kHeaderBytes = 64, kSectionBytes = 64, kSegmentBytes = 56, kSymbolBytes = 24;
constexpr uint64_t kRelaBytes = 24, kRelBytes = 16, kTableAlignment = 8;
constexpr uint16_t kExtendedSegments = 0xffff;

/// The caller has checked that the field lies inside.
template <class T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  BM_CHECK(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::string one_line(std::string_view name) {
  std::string text(name);
  for (char& one : text)
    if (static_cast<unsigned char>(one) < 0x20 || one == 0x7f) one = '?';
  return text;
}

namespace {

bool is_processor_specific(uint32_t type) { return type >= 0x70000000 && type <= 0x7fffffff; }

bool lies_inside(uint64_t offset, uint64_t size, uint64_t whole) {
  return offset <= whole && size <= whole - offset;
}

/// Name at `offset` of a string table. Errors: kCorrupt when it starts or runs past the end.
Result<std::string_view> name_at(const Section& table, uint64_t offset, std::string_view what,
                                 uint64_t index) {
  if (offset >= table.bytes.size() && offset != 0)
    return fail(Code::kCorrupt,
                "ELF: name of {} {} starts at {:#x}, past the string table of {:#x} bytes at {:#x}",
                what, index, offset, table.bytes.size(), table.offset);
  if (table.bytes.empty()) return std::string_view{};
  const char* begin = reinterpret_cast<const char*>(table.bytes.data()) + offset;
  const void* end = std::memchr(begin, 0, table.bytes.size() - offset);
  if (end == nullptr)
    return fail(Code::kCorrupt,
                "ELF: name of {} {} at offset {:#x} has no end inside its string table", what,
                index, table.offset + offset);
  return std::string_view(begin, static_cast<size_t>(static_cast<const char*>(end) - begin));
}

}  // namespace

struct File::Header {
  uint64_t segment_offset, section_offset;
  uint16_t segment_size, segment_count, section_size;
  uint64_t section_count;
  uint32_t name_section;
};

Result<File> File::parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes)
    return fail(Code::kCorrupt, "ELF: {} bytes, header of {} at offset 0 is truncated",
                bytes.size(), kHeaderBytes);
  if (load<uint32_t>(bytes, 0) != 0x464c457f)
    return fail(Code::kCorrupt, "ELF: no magic at offset 0");
  if (load<uint8_t>(bytes, 4) != 2 || load<uint8_t>(bytes, 5) != 1)
    return fail(Code::kUnsupported,
                "ELF: class {} data {} at offset 4; only 64-bit little endian is read",
                load<uint8_t>(bytes, 4), load<uint8_t>(bytes, 5));
  if (load<uint8_t>(bytes, 6) != 1 || load<uint32_t>(bytes, 20) != 1)
    return fail(Code::kCorrupt, "ELF: version {} at offset 6, {} at offset 20; must be 1",
                load<uint8_t>(bytes, 6), load<uint32_t>(bytes, 20));
  if (load<uint16_t>(bytes, 52) < kHeaderBytes)
    return fail(Code::kCorrupt, "ELF: e_ehsize {} at offset 52 is below {}",
                load<uint16_t>(bytes, 52), kHeaderBytes);

  File file(bytes);
  file.os_abi_ = load<uint8_t>(bytes, 7);
  file.abi_version_ = load<uint8_t>(bytes, 8);
  file.type_ = FileType{load<uint16_t>(bytes, 16)};
  file.machine_ = load<uint16_t>(bytes, 18);
  file.entry_ = load<uint64_t>(bytes, 24);
  file.flags_ = load<uint32_t>(bytes, 48);
  Header header{.segment_offset = load<uint64_t>(bytes, 32),
                .section_offset = load<uint64_t>(bytes, 40),
                .segment_size = load<uint16_t>(bytes, 54),
                .segment_count = load<uint16_t>(bytes, 56),
                .section_size = load<uint16_t>(bytes, 58),
                .section_count = load<uint16_t>(bytes, 60),
                .name_section = load<uint16_t>(bytes, 62)};
  if (header.section_offset != 0) {
    if (header.section_size != kSectionBytes)
      return fail(Code::kCorrupt, "ELF: e_shentsize {} at offset 58 is not {}", header.section_size,
                  kSectionBytes);
    if (header.section_offset % kTableAlignment != 0)
      return fail(Code::kCorrupt, "ELF: section table at unaligned offset {:#x}",
                  header.section_offset);
    if (!lies_inside(header.section_offset, kSectionBytes, bytes.size()))
      return fail(Code::kCorrupt, "ELF: section table at offset {:#x} is past the end of {} bytes",
                  header.section_offset, bytes.size());
    // More sections than 16 bits count: the real numbers are in the null section.
    if (header.section_count == 0)
      header.section_count = load<uint64_t>(bytes, header.section_offset + 32);
    if (header.name_section == kExtendedIndex)
      header.name_section = load<uint32_t>(bytes, header.section_offset + 40);
  } else if (header.section_count != 0) {
    return fail(Code::kCorrupt, "ELF: e_shnum {} at offset 60 without a section table",
                header.section_count);
  }
  BM_TRY(file.read_sections(header));
  BM_TRY(file.read_segments(header));
  BM_TRY(file.check_overlap(header));
  for (uint32_t type : {kSymtab, kDynsym}) {
    auto found = std::find_if(file.sections_.begin(), file.sections_.end(),
                              [&](const Section& section) { return section.type == type; });
    if (found == file.sections_.end()) continue;
    BM_TRY(file.read_symbols(static_cast<uint32_t>(found - file.sections_.begin())));
    break;
  }
  return file;
}

Status File::read_sections(const Header& header) {
  if (header.section_offset == 0) return {};
  if (header.section_count > (bytes_.size() - header.section_offset) / kSectionBytes)
    return fail(Code::kCorrupt, "ELF: {} sections at offset {:#x} run past the end of {} bytes",
                header.section_count, header.section_offset, bytes_.size());
  std::vector<uint32_t> names;
  for (uint64_t i = 0; i < header.section_count; ++i) {
    const uint64_t at = header.section_offset + i * kSectionBytes;
    Section section{.name = {},
                    .type = load<uint32_t>(bytes_, at + 4),
                    .flags = load<uint64_t>(bytes_, at + 8),
                    .address = load<uint64_t>(bytes_, at + 16),
                    .offset = load<uint64_t>(bytes_, at + 24),
                    .size = load<uint64_t>(bytes_, at + 32),
                    .alignment = std::max<uint64_t>(load<uint64_t>(bytes_, at + 48), 1),
                    .entry_size = load<uint64_t>(bytes_, at + 56),
                    .link = load<uint32_t>(bytes_, at + 40),
                    .info = load<uint32_t>(bytes_, at + 44),
                    .bytes = {}};
    names.push_back(load<uint32_t>(bytes_, at));
    if (i == 0) {  // sh_size and sh_link of the null section may hold extended counts
      sections_.push_back(Section{});
      continue;
    }
    if ((section.alignment & (section.alignment - 1)) != 0)
      return fail(Code::kCorrupt,
                  "ELF: section {} at offset {:#x} has alignment {}, not a power of two", i, at,
                  section.alignment);
    if (section.link >= header.section_count)
      return fail(Code::kCorrupt, "ELF: section {} at offset {:#x} links to section {} of {}", i,
                  at, section.link, header.section_count);
    if (section.type != kNobits && section.type != kNull) {
      if (!lies_inside(section.offset, section.size, bytes_.size()))
        return fail(
            Code::kCorrupt,
            "ELF: section {} at offset {:#x}: contents {:#x}+{:#x} run past the end of {} bytes", i,
            at, section.offset, section.size, bytes_.size());
      section.bytes = bytes_.subspan(section.offset, section.size);
    }
    sections_.push_back(section);
  }
  return read_names(header.name_section, names);
}

Status File::read_names(uint32_t name_section, std::span<const uint32_t> names) {
  if (name_section == 0) return {};
  if (name_section >= sections_.size() || sections_[name_section].type != kStrtab)
    return fail(Code::kCorrupt, "ELF: e_shstrndx {} at offset 62 is not a string table",
                name_section);
  for (size_t i = 1; i < sections_.size(); ++i)
    sections_[i].name = BM_TRY(name_at(sections_[name_section], names[i], "section", i));
  return {};
}

Status File::read_segments(const Header& header) {
  if (header.segment_count == 0) return {};
  if (header.segment_count == kExtendedSegments)
    return fail(Code::kUnsupported, "ELF: e_phnum {:#x} at offset 56 (extended numbering)",
                header.segment_count);
  if (header.segment_size != kSegmentBytes)
    return fail(Code::kCorrupt, "ELF: e_phentsize {} at offset 54 is not {}", header.segment_size,
                kSegmentBytes);
  const uint64_t at = header.segment_offset;
  if (at % kTableAlignment != 0 ||
      !lies_inside(at, header.segment_count * kSegmentBytes, bytes_.size()))
    return fail(
        Code::kCorrupt,
        "ELF: {} program headers at offset {:#x} are unaligned or run past the end of {} bytes",
        header.segment_count, at, bytes_.size());
  for (uint64_t i = 0; i < header.segment_count; ++i) {
    const uint64_t row = at + i * kSegmentBytes;
    const uint64_t offset = load<uint64_t>(bytes_, row + 8),
                   size = load<uint64_t>(bytes_, row + 32);
    if (!lies_inside(offset, size, bytes_.size()))
      return fail(
          Code::kCorrupt,
          "ELF: segment {} at offset {:#x}: contents {:#x}+{:#x} run past the end of {} bytes", i,
          row, offset, size, bytes_.size());
    segments_.push_back({.type = load<uint32_t>(bytes_, row),
                         .flags = load<uint32_t>(bytes_, row + 4),
                         .address = load<uint64_t>(bytes_, row + 16),
                         .memory_size = load<uint64_t>(bytes_, row + 40),
                         .alignment = load<uint64_t>(bytes_, row + 48),
                         .bytes = bytes_.subspan(offset, size)});
  }
  return {};
}

Status File::check_overlap(const Header& header) const {
  // gABI: sections may not overlap; headers and tables are not part of any section.
  struct Range {
    uint64_t begin, end;
    std::string_view what;
  };
  std::vector<Range> ranges{{0, kHeaderBytes, "ELF header"}};
  if (header.section_offset != 0 && header.section_count != 0)
    ranges.push_back({header.section_offset,
                      header.section_offset + header.section_count * kSectionBytes,
                      "section table"});
  if (header.segment_count != 0)
    ranges.push_back({header.segment_offset,
                      header.segment_offset + header.segment_count * kSegmentBytes,
                      "program headers"});
  // Sections of the processor's own types may: cubins describe the same constants twice.
  for (const Section& section : sections_)
    if (!section.bytes.empty() && !is_processor_specific(section.type))
      ranges.push_back({section.offset, section.offset + section.size, section.name});
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].begin < ranges[i - 1].end)
      return fail(Code::kCorrupt, "ELF: '{}' at offset {:#x} overlaps '{}', which ends at {:#x}",
                  one_line(ranges[i].what), ranges[i].begin, one_line(ranges[i - 1].what),
                  ranges[i - 1].end);
  return {};
}

Result<uint64_t> File::table_entries(const Section& table, uint64_t entry,
                                     std::string_view what) const {
  if (table.entry_size != entry)
    return fail(Code::kCorrupt, "ELF: {} at offset {:#x} has entries of {} bytes, not {}", what,
                table.offset, table.entry_size, entry);
  if (table.offset % kTableAlignment != 0 || table.size % entry != 0)
    return fail(Code::kCorrupt,
                "ELF: {} at offset {:#x} of {:#x} bytes is unaligned or ends inside an entry", what,
                table.offset, table.size);
  return table.size / entry;
}

Status File::read_symbols(uint32_t index) {
  const Section& table = sections_[index];
  const uint64_t count = BM_TRY(table_entries(table, kSymbolBytes, "symbol table"));
  const Section& strings = sections_[table.link];
  if (strings.type != kStrtab)
    return fail(Code::kCorrupt,
                "ELF: symbol table at offset {:#x} links to section {}, not a string table",
                table.offset, table.link);
  symbol_section_ = index;
  symbols_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = i * kSymbolBytes;
    const uint8_t info = load<uint8_t>(table.bytes, at + 4);
    Symbol symbol{.name = {},
                  .value = load<uint64_t>(table.bytes, at + 8),
                  .size = load<uint64_t>(table.bytes, at + 16),
                  .section = load<uint16_t>(table.bytes, at + 6),
                  .type = SymbolType{static_cast<uint8_t>(info & 15)},
                  .binding = Binding{static_cast<uint8_t>(info >> 4)},
                  .other = load<uint8_t>(table.bytes, at + 5)};
    symbol.name = BM_TRY(name_at(strings, load<uint32_t>(table.bytes, at), "symbol", i));
    if (symbol.section == kExtendedIndex)
      return fail(Code::kUnsupported,
                  "ELF: symbol '{}' at offset {:#x} uses an extended section index",
                  one_line(symbol.name), table.offset + at);
    if (symbol.section < kFirstReserved && symbol.section >= sections_.size())
      return fail(Code::kCorrupt, "ELF: symbol '{}' at offset {:#x} is in section {} of {}",
                  one_line(symbol.name), table.offset + at, symbol.section, sections_.size());
    if (type_ == FileType::kRelocatable && symbol.section != kUndefined &&
        symbol.section < kFirstReserved && symbol.value > sections_[symbol.section].size)
      return fail(
          Code::kCorrupt,
          "ELF: symbol '{}' at offset {:#x} has value {:#x} beyond its section of {:#x} bytes",
          one_line(symbol.name), table.offset + at, symbol.value, sections_[symbol.section].size);
    symbols_.push_back(symbol);
  }
  return {};
}

const Section* File::find_section(std::string_view name) const {
  for (const Section& section : sections_)
    if (section.type != kNull && section.name == name) return &section;
  return nullptr;
}

const Symbol* File::find_symbol(std::string_view name) const {
  const Symbol* local = nullptr;
  for (const Symbol& symbol : symbols_) {
    if (!symbol.is_defined() || symbol.name != name) continue;
    if (symbol.binding != Binding::kLocal) return &symbol;
    if (local == nullptr) local = &symbol;
  }
  return local;
}

Result<std::vector<Relocation>> File::relocations(const Section& table) const {
  if (table.type != kRela && table.type != kRel)
    return fail(Code::kInvalidArgument, "ELF: section '{}' holds no relocations",
                one_line(table.name));
  const bool has_addend = table.type == kRela;
  const uint64_t entry = has_addend ? kRelaBytes : kRelBytes;
  const uint64_t count = BM_TRY(table_entries(table, entry, "relocation table"));
  const Section& symbol_table = sections_[table.link];
  const bool has_symbols = symbol_table.type == kSymtab || symbol_table.type == kDynsym;
  const uint64_t symbol_count = has_symbols ? symbol_table.size / kSymbolBytes : 0;
  if (type_ == FileType::kRelocatable && (table.info == 0 || table.info >= sections_.size()))
    return fail(Code::kCorrupt, "ELF: relocation table at offset {:#x} applies to section {} of {}",
                table.offset, table.info, sections_.size());

  std::vector<Relocation> entries;
  entries.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = i * entry, info = load<uint64_t>(table.bytes, at + 8);
    const Relocation relocation{.offset = load<uint64_t>(table.bytes, at),
                                .type = static_cast<uint32_t>(info),
                                .symbol = static_cast<uint32_t>(info >> 32),
                                .addend = has_addend ? load<int64_t>(table.bytes, at + 16) : 0};
    // Symbol 0 means "no symbol" and needs no table.
    if (relocation.symbol != 0 && relocation.symbol >= symbol_count)
      return fail(Code::kCorrupt, "ELF: relocation at offset {:#x} uses symbol {} of {}",
                  table.offset + at, relocation.symbol, symbol_count);
    if (type_ == FileType::kRelocatable && relocation.offset >= sections_[table.info].size)
      return fail(
          Code::kCorrupt,
          "ELF: relocation at offset {:#x} patches {:#x}, outside section '{}' of {:#x} bytes",
          table.offset + at, relocation.offset, one_line(sections_[table.info].name),
          sections_[table.info].size);
    entries.push_back(relocation);
  }
  return entries;
}

}  // namespace bm::elf
