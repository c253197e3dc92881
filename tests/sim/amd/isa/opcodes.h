#pragma once
// The instruction sets of RDNA2, RDNA3, RDNA4 and CDNA3 as rows of data: which code of which
// encoding is which operation, and what its operands may be.
//
// Sources: AMD "RDNA2", "RDNA3", "RDNA4" and "CDNA3" Instruction Set Architecture reference guides
// (encodings, opcodes); names, operand widths and accepted operands as LLVM 19's AMDGPU
// disassembler has them, found by probing it (opcode_rows.inc; opcode_rows_gfx10.inc by
// make_gfx10_rows.py, opcode_rows_gfx9.inc by make_gfx9_rows.py) and checked against it by
// tests/unit/sim_amd.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace bm::sim::amd {

/// A set of instructions; the values are bits of OpcodeRow::sets.
enum class Isa : uint8_t {
  kGfx11 = 1,   ///< gfx1100 … gfx1103
  kGfx115 = 2,  ///< gfx1150, gfx1151: adds SALU float
  kGfx12 = 4,   ///< gfx1200, gfx1201
  kGfx10 = 8,   ///< gfx1030 … gfx1036
  kGfx9 = 16,   ///< gfx940 … gfx942
};

/// The instruction set of "gfx1100", …; nothing for chips that are not RDNA2, RDNA3,
/// RDNA4 or CDNA3.
std::optional<Isa> isa_of(std::string_view chip);

/// Encoding families, in the order of the tables.
enum class Format : uint8_t {
  kSop2,
  kSopk,
  kSop1,
  kSopc,
  kSopp,
  kSmem,
  kVop1,
  kVop2,
  kVopc,
  kVop3,
  kVop3P,
  kMai,  ///< matrices and AccVGPRs
  kVopdX,
  kVopdY,
  kDs,
  kFlat,
  kScratch,
  kGlobal,
  kBuffer,
};
inline constexpr uint32_t kFormats = 19;
std::string_view format_name(Format format);

/// One operation in one encoding.
///
/// `operands` has two characters a slot, destination first: a class of operand codes ("operand
/// classes" in opcodes.cpp; 'v' VGPR, 'l' one of the first 128, 's' SGPR, '-' no such operand) and
/// a width in dwords ('1' … '5', '8', 'g' 16, 'w' 32; 'h' a 16-bit float, 'i' a 16-bit integer in
/// one dword). `bits`: for VOP3 and VOP3P, what bits 8 … 15 and 59 … 63 are to the operation: 's' a
/// modifier, 'S' the scalar destination, '.' ignored, 'x' must be zero, '1' must be one. For VOP1,
/// VOP2 and VOPC, 'd' says that DPP exists ('-': not), followed by the same for bits 20 … 23 of its
/// dword, and by 'w' where SDWA exists.
/// 'K': a literal always follows. 'i': the 16-bit immediate matters. 'r': returns the old value
/// when asked; 'R': always.
struct OpcodeRow {
  Format format;
  uint16_t code;
  uint8_t sets;
  std::string_view name;
  std::string_view operands;
  std::string_view bits;
  std::string_view renamed = {};  ///< what RDNA3 calls the same; empty: as `name`

  std::string_view meaning() const { return renamed.empty() ? name : renamed; }
  bool has_dpp() const { return !bits.empty() && bits[0] == 'd'; }
  bool has_sdwa() const { return bits.size() > 5 && bits[5] == 'w'; }

  bool in(Isa isa) const { return (sets & static_cast<uint8_t>(isa)) != 0; }
  bool has(char bit) const { return bits.find(bit) != std::string_view::npos; }
};

std::span<const OpcodeRow> opcode_rows();
/// Nothing where the set has no such code.
const OpcodeRow* find_row(Isa isa, Format format, uint32_t code);

/// Is `code` (0 … 511, as in a 9-bit source field) in the class?
bool class_allows(char operand_class, uint32_t code);
/// Dwords of a width character; 0 for '-'.
uint32_t width_dwords(char width);

}  // namespace bm::sim::amd
