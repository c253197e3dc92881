#pragma once
// A decoded instruction: fields by meaning, whatever encoding they came from.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tests/sim/amd/isa/opcodes.h"

namespace bm::sim::amd {

// Operand codes as in a 9-bit source field.
inline constexpr uint16_t kVccLo = 106, kTtmp0 = 108, kNull = 124, kM0 = 125, kExecLo = 126;
inline constexpr uint16_t kLiteral = 255, kVgpr = 256;
/// AccVGPRs, CDNA's upper part of the vector registers, follow the VGPRs: 512 … 767.
inline constexpr uint16_t kAccVgpr = 512;
inline constexpr uint16_t kNone = 0xffff;

struct Slot {
  uint16_t code = kNone;
  uint8_t dwords = 0;  ///< 0: the operation has no such operand
  char width = '-';    ///< as in OpcodeRow::operands

  bool is_vgpr() const { return code >= kVgpr && code != kNone; }
};

enum class DppKind : uint8_t { kOff, kDpp8, kDpp16 };

struct Dpp {
  DppKind kind = DppKind::kOff;
  bool fetch_invalid = false;  ///< FI: lanes that are off are read too
  bool bound_zero = false;     ///< BC: lanes out of bounds read 0
  uint8_t bank_mask = 0xf, row_mask = 0xf;
  uint32_t control = 0;  ///< DPP16: 9-bit DPP_CTRL; DPP8: eight 3-bit lane selects
};

/// Sub-dword addressing (RDNA2): which byte (0 … 3) or half (4, 5) of a source is read and of the
/// destination written; 6: all of it.
struct Sdwa {
  static constexpr uint8_t kWhole = 6;
  bool on = false;
  uint8_t source[2] = {kWhole, kWhole};
  bool sign_extend[2] = {};
  uint8_t target = kWhole;
  uint8_t rest = 0;  ///< of the destination: 0 zeros, 1 the sign, 2 as before
};

/// Modifiers an instruction may carry, as bits. What executes it must take every one that is set.
namespace modifier {
inline constexpr uint32_t kNeg = 1u << 0, kAbs = 1u << 3, kOpSel = 1u << 6, kTarget = 1u << 9,
                          kClamp = 1u << 10, kOmod = 1u << 11, kOpSelHi = 1u << 12,
                          kNegHi = 1u << 15, kDpp = 1u << 18, kSdwaSource = 1u << 19,
                          kSdwaTarget = 1u << 21, kBroadcast = 1u << 22;
}  // namespace modifier

/// Address of a memory instruction and its cache policy.
struct MemoryFields {
  int32_t offset = 0;  ///< bytes, sign extended; DS: unsigned 16 bits
  uint8_t offset0 = 0, offset1 = 0;
  uint16_t saddr = kNull;    ///< SGPR base, SRSRC of a buffer, SOFFSET of SMEM is `soffset`
  uint16_t soffset = kNull;  ///< SMEM and BUFFER
  bool use_vaddr = true;     ///< SCRATCH: SVE; BUFFER: offen or idxen
  bool has_offset = true;    ///< gfx9's SMEM: not a register alone
  bool idxen = false, offen = false, gds = false, tfe = false;
  /// gfx11; gfx9: what gfx940 calls sc0, nt and sc1
  bool glc = false, slc = false, dlc = false;
  uint8_t scope = 0, th = 0;  ///< gfx12
  bool returns = false;       ///< atomic that returns the old value
};

struct Instruction {
  const OpcodeRow* row = nullptr;
  const OpcodeRow* row_y = nullptr;  ///< second half of a VOPD
  uint8_t bytes = 0;
  Slot dst, sdst, src[3];
  Slot dst_y, src_y[3];
  uint32_t literal = 0;
  uint16_t imm = 0;  ///< SOPK, SOPP
  uint8_t neg = 0, abs = 0, op_sel = 0, op_sel_hi = 0, neg_hi = 0, omod = 0;
  bool clamp = false;
  uint8_t cbsz = 0, abid = 0, blgp = 0;  ///< MFMA: which blocks and lanes of A and B are read
  uint32_t passed_over = 0;  ///< bits of `modifier` that LLVM takes and nothing gives a meaning
  bool has_high_registers = false;  ///< short form whose codes named upper halves (true16)
  Dpp dpp;
  Sdwa sdwa;
  MemoryFields mem;

  Format format() const { return row->format; }
};

/// Decodes the instruction at the start of `words`.
/// Errors (nothing): not an instruction of `isa` that is modelled, or `words` ends inside it.
std::optional<Instruction> decode(std::span<const uint32_t> words, Isa isa);

/// The modifiers that are set, as bits of `modifier`.
uint32_t modifiers_of(const Instruction& instruction);
/// Their names.
std::string modifier_names(uint32_t modifiers);

/// LLVM's spelling without encoding suffixes (_e32, _e64, _dpp, _sdwa); immediates of waits,
/// messages and hardware registers are plain numbers.
std::string to_text(const Instruction& instruction, Isa isa);

}  // namespace bm::sim::amd
