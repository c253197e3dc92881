#pragma once
// Reader of ELF64 little-endian files (objects, code objects, cubins, firmware). Copies nothing,
// trusts nothing: every table, name and index is checked when it is read, never later.
// Source: System V gABI 4.1, chapters "Object Files" and "Sections".

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::elf {

/// A name out of a file, for a message of one line: control characters become '?'.
std::string one_line(std::string_view name);

enum class FileType : uint16_t {
  kNone = 0,
  kRelocatable = 1,
  kExecutable = 2,
  kShared = 3,
  kCore = 4
};

inline constexpr uint16_t kMachineX86_64 = 62;
inline constexpr uint16_t kMachineAArch64 = 183;
inline constexpr uint16_t kMachineCuda = 190;
inline constexpr uint16_t kMachineAmdGpu = 224;

/// Section types (sh_type); processor-specific ones keep their number.
inline constexpr uint32_t kNull = 0, kProgbits = 1, kSymtab = 2, kStrtab = 3, kRela = 4, kNote = 7,
                          kNobits = 8, kRel = 9, kDynsym = 11, kInitArray = 14, kFiniArray = 15,
                          kPreinitArray = 16;
/// Section flags (sh_flags).
inline constexpr uint64_t kWrite = 1, kAlloc = 2, kExec = 4, kTls = 0x400, kCompressed = 0x800;
/// Special section indices (st_shndx).
inline constexpr uint16_t kUndefined = 0, kFirstReserved = 0xff00, kAbsolute = 0xfff1,
                          kCommon = 0xfff2, kExtendedIndex = 0xffff;

enum class SymbolType : uint8_t {
  kNone = 0,
  kObject = 1,
  kFunction = 2,
  kSection = 3,
  kFile = 4,
  kShared = 5,
  kThreadLocal = 6,
  kIndirect = 10,
};
enum class Binding : uint8_t { kLocal = 0, kGlobal = 1, kWeak = 2 };

struct Section {
  std::string_view name;
  uint32_t type = kNull;
  uint64_t flags = 0;
  uint64_t address = 0;
  uint64_t offset = 0;     ///< in the file
  uint64_t size = 0;       ///< in memory; equals bytes.size() except for kNobits and kNull
  uint64_t alignment = 1;  ///< power of two, at least 1
  uint64_t entry_size = 0;
  uint32_t link = 0;
  uint32_t info = 0;
  std::span<const std::byte> bytes;  ///< empty for kNobits and kNull

  bool has(uint64_t flag) const { return (flags & flag) != 0; }
};

/// Program header (p_*).
struct Segment {
  uint32_t type = 0;  ///< 1: loadable
  uint32_t flags = 0;
  uint64_t address = 0;
  uint64_t memory_size = 0;
  uint64_t alignment = 0;
  std::span<const std::byte> bytes;
};

struct Symbol {
  std::string_view name;
  uint64_t value = 0;  ///< relocatable: offset in its section, not beyond its end; else as stored
  uint64_t size = 0;
  uint16_t section = kUndefined;  ///< index below sections().size(), or reserved
  SymbolType type = SymbolType::kNone;
  Binding binding = Binding::kLocal;
  uint8_t other = 0;

  bool is_defined() const { return section != kUndefined; }
};

struct Relocation {
  uint64_t offset = 0;  ///< relocatable: below the size of the target section
  uint32_t type = 0;    ///< processor-specific
  uint32_t symbol = 0;  ///< index into the symbol table the relocation section links to; checked
  int64_t addend = 0;   ///< 0 for kRel sections: it lies in the place itself
};

/// View of one file. `bytes` given to parse() must outlive it; any alignment of the memory is fine.
class File {
 public:
  /// Errors: kCorrupt with the offending file offset; kUnsupported for 32-bit, big-endian or
  /// extended symbol indices.
  static Result<File> parse(std::span<const std::byte> bytes);

  FileType type() const { return type_; }
  uint16_t machine() const { return machine_; }
  uint32_t flags() const { return flags_; }
  uint64_t entry() const { return entry_; }
  uint8_t os_abi() const { return os_abi_; }
  uint8_t abi_version() const { return abi_version_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Index 0 is the null section.
  std::span<const Section> sections() const { return sections_; }
  std::span<const Segment> segments() const { return segments_; }
  /// First kSymtab section, or kDynsym if there is none; empty without either. Index 0 is the null
  /// symbol.
  std::span<const Symbol> symbols() const { return symbols_; }
  /// Section index symbols() came from; 0: none.
  uint32_t symbol_section() const { return symbol_section_; }

  /// First section of that name or nullptr.
  const Section* find_section(std::string_view name) const;
  /// Defined symbol of that name (global and weak before local) or nullptr.
  const Symbol* find_symbol(std::string_view name) const;
  /// Entries of a kRela or kRel section. Errors: kCorrupt; kInvalidArgument if it is of another
  /// type.
  Result<std::vector<Relocation>> relocations(const Section& table) const;

 private:
  explicit File(std::span<const std::byte> bytes) : bytes_(bytes) {}
  struct Header;
  Status read_sections(const Header& header);
  Status read_names(uint32_t name_section, std::span<const uint32_t> names);
  Status read_segments(const Header& header);
  Status read_symbols(uint32_t index);
  Status check_overlap(const Header& header) const;
  /// Entries of a table section whose entries are `entry` bytes. Errors: kCorrupt.
  Result<uint64_t> table_entries(const Section& table, uint64_t entry, std::string_view what) const;

  std::span<const std::byte> bytes_;
  FileType type_ = FileType::kNone;
  uint16_t machine_ = 0;
  uint32_t flags_ = 0;
  uint64_t entry_ = 0;
  uint8_t os_abi_ = 0, abi_version_ = 0;
  std::vector<Section> sections_;
  std::vector<Segment> segments_;
  std::vector<Symbol> symbols_;
  uint32_t symbol_section_ = 0;
};

}  // namespace bm::elf
