#include "tests/sim/amd/isa/instruction.h"

namespace bm::sim::amd {
namespace {

uint32_t bits(uint64_t word, uint32_t first, uint32_t count) {
  return static_cast<uint32_t>(word >> first & ((uint64_t{1} << count) - 1));
}
int32_t sign_extend(uint32_t value, uint32_t count) {
  return static_cast<int32_t>(value << (32 - count)) >> (32 - count);
}
uint16_t narrow(uint32_t value) { return static_cast<uint16_t>(value); }

constexpr uint32_t kDpp8Code = 233, kDpp8FiCode = 234, kSdwaCode = 249, kDpp16Code = 250;
/// Upper halves begin here among the registers that short 16-bit forms name.
constexpr uint32_t kHighRegisters = kVgpr + 128;

/// Reads words one after another; the state of one decode.
class Decoder {
 public:
  Decoder(std::span<const uint32_t> words, Isa isa) : words_(words), isa_(isa) {}

  std::optional<Instruction> run() {
    if (words_.empty()) return std::nullopt;
    w0_ = words_[0];
    used_ = 1;
    if (!dispatch()) return std::nullopt;
    out_.bytes = static_cast<uint8_t>(used_ * 4);
    return out_;
  }

 private:
  bool is9() const { return isa_ == Isa::kGfx9; }
  bool is10() const { return isa_ == Isa::kGfx10; }
  bool is12() const { return isa_ == Isa::kGfx12; }
  /// A field that names an operand, in the numbers of RDNA3: before it M0 is 124 and NULL 125.
  uint32_t operand(uint64_t word, uint32_t first, uint32_t count) const {
    const uint32_t code = bits(word, first, count);
    // FLAT_SCRATCH and XNACK_MASK of older chips, NULL of newer ones: gfx940 has none of them.
    if (is9() && ((code >= 102 && code < kVccLo) || code == kM0)) return kNone;
    return (is9() || is10()) && (code == kNull || code == kM0) ? kNull + kM0 - code : code;
  }

  /// A mask of lanes: CDNA's waves have 64.
  Slot mask(uint32_t code) const {
    return is9() ? Slot{narrow(code), 2, '2'} : Slot{narrow(code), 1, '1'};
  }

  bool dispatch() {
    if (w0_ >> 31 == 0) return vop12c();
    if (w0_ >> 30 == 2) return scalar();
    if (is9()) return dispatch9();
    switch (w0_ >> 26) {
      case 0x31: return is12() && buffer12();
      case 0x32: return !is10() && vopd();
      case 0x33: return w0_ >> 23 == 0x198 && vop3(Format::kVop3P, bits(w0_, 16, 7), true);
      case 0x35: return vop3(Format::kVop3, bits(w0_, 16, 10), false);
      case 0x36: return ds();
      case 0x37: return is10() ? flat10() : !is12() && flat11();
      case 0x38: return !is12() && buffer11();
      case 0x3b: return is12() && flat12();
      case 0x3d: return is12() ? smem12() : smem11();
      default: return false;
    }
  }

  bool dispatch9() {
    switch (w0_ >> 26) {
      case 0x30: return smem9();
      case 0x34: break;
      case 0x36: return ds9();
      case 0x37: return flat9();
      case 0x38: return buffer9();
      default: return false;
    }
    if (w0_ >> 23 != 0x1a7) return vop3(Format::kVop3, bits(w0_, 16, 10), false);
    const uint32_t code = bits(w0_, 16, 7);
    return find_row(isa_, Format::kMai, code) ? mai(code) : vop3(Format::kVop3P, code, true);
  }

  bool row(Format format, uint32_t code) {
    out_.row = find_row(isa_, format, code);
    return out_.row != nullptr;
  }
  bool word(uint32_t& value) {
    if (used_ >= words_.size()) return false;
    value = words_[used_++];
    return true;
  }
  bool literal_for(const Slot& slot) {
    if (slot.code != kLiteral || has_literal_) return true;
    has_literal_ = true;
    return word(out_.literal);
  }

  /// Slot `index` of the row (0: destination) holding `code`; false where the class refuses it.
  bool slot(Slot& slot, uint32_t index, uint32_t code) {
    const std::string_view operands = out_.row->operands;
    if (operands.size() < 2 * index + 2 || operands[2 * index] == '-') return true;
    if (!class_allows(operands[2 * index], code)) return false;
    return plain(slot, operands[2 * index + 1], code);
  }
  static bool plain(Slot& slot, char width, uint32_t code) {
    if (width == '-') return true;
    slot = {narrow(code), static_cast<uint8_t>(width_dwords(width)), width};
    if (code >= kVgpr) return code + slot.dwords <= 512;
    // Pairs of SGPRs start at even ones, wider ranges at multiples of four.
    const uint32_t alignment = slot.dwords > 2 ? 4 : slot.dwords > 1 ? 2 : 1;
    return code >= kNull || code % alignment == 0;
  }
  char width_at(uint32_t index) const { return out_.row->operands[2 * index + 1]; }
  bool has_wide_operand() const {
    for (uint32_t i = 0; i < 3; ++i)
      if (present(i) && width_at(i) == '2') return true;
    return false;
  }
  bool present(uint32_t index) const {
    return out_.row->operands.size() >= 2 * index + 2 && out_.row->operands[2 * index] != '-';
  }

  // ---- scalar ----
  bool scalar() {
    switch (w0_ >> 23) {
      case 0x17d:
        return row(Format::kSop1, bits(w0_, 8, 8)) && slot(out_.dst, 0, operand(w0_, 16, 7)) &&
               slot(out_.src[0], 1, operand(w0_, 0, 8)) &&
               // A message's number is no operand: 255 names no literal.
               (out_.row->operands[2] == 'G' || literal_for(out_.src[0]));
      case 0x17e:
        return row(Format::kSopc, bits(w0_, 16, 7)) && slot(out_.src[0], 1, operand(w0_, 0, 8)) &&
               slot(out_.src[1], 2, operand(w0_, 8, 8)) && literal_for(out_.src[0]) &&
               literal_for(out_.src[1]);
      case 0x17f:
        out_.imm = narrow(w0_);
        return row(Format::kSopp, bits(w0_, 16, 7)) && (out_.row->has('i') || out_.imm == 0);
      default: break;
    }
    if (w0_ >> 28 == 0xb) {
      out_.imm = narrow(w0_);
      return row(Format::kSopk, bits(w0_, 23, 5)) && slot(out_.dst, 0, operand(w0_, 16, 7)) &&
             (!out_.row->has('K') || word(out_.literal));
    }
    if (!row(Format::kSop2, bits(w0_, 23, 7)) || !slot(out_.dst, 0, operand(w0_, 16, 7)) ||
        !slot(out_.src[0], 1, operand(w0_, 0, 8)) || !slot(out_.src[1], 2, operand(w0_, 8, 8)))
      return false;
    if (out_.row->has('K')) {
      has_literal_ = true;
      return word(out_.literal);
    }
    return literal_for(out_.src[0]) && literal_for(out_.src[1]);
  }

  // ---- scalar memory ----
  bool smem_operands(uint32_t sdata, uint32_t sbase) {
    // M0 is no base; RDNA2 and CDNA have it where others have NULL.
    if ((is9() || is10()) && present(1) && sbase * 2 == kNull) return false;
    if (!present(1))
      return (is9() || is10() || (!out_.mem.glc && !out_.mem.dlc)) && slot(out_.dst, 0, sdata);
    return slot(out_.dst, 0, sdata) &&
           (!present(1) || (class_allows(out_.row->operands[2], sbase) &&
                            plain(out_.src[0], width_at(1), sbase * 2)));
  }
  /// IMM: an immediate; SOFFSET_EN: a register besides; neither: a register in the immediate's
  /// place.
  bool smem9() {
    uint32_t w1 = 0;
    if (!row(Format::kSmem, bits(w0_, 18, 8)) || !word(w1)) return false;
    const bool has_offset = bits(w0_, 17, 1), has_register = bits(w0_, 14, 1);
    if (!present(1) && has_offset) return false;
    out_.mem.glc = bits(w0_, 16, 1);
    if (has_offset) out_.mem.offset = sign_extend(bits(w1, 0, 21), 21);
    out_.mem.has_offset = has_offset;
    if (present(1) && has_register)
      out_.mem.soffset = narrow(operand(w1, 25, 7));
    else if (!has_offset && present(1))
      out_.mem.soffset = narrow(operand(w1, 0, 7));
    return out_.mem.soffset < 128 && smem_operands(operand(w0_, 6, 7), bits(w0_, 0, 6));
  }
  bool smem11() {
    uint32_t w1 = 0;
    if (!row(Format::kSmem, bits(w0_, 18, 8)) || !word(w1)) return false;
    out_.mem.glc = bits(w0_, is10() ? 16 : 14, 1);
    out_.mem.dlc = bits(w0_, is10() ? 14 : 13, 1);
    out_.mem.offset = sign_extend(bits(w1, 0, 21), 21);
    out_.mem.soffset = narrow(operand(w1, 25, 7));
    return smem_operands(operand(w0_, 6, 7), bits(w0_, 0, 6));
  }
  bool smem12() {
    uint32_t w1 = 0;
    if (!row(Format::kSmem, bits(w0_, 13, 6)) || !word(w1)) return false;
    out_.mem.scope = static_cast<uint8_t>(bits(w0_, 21, 2));
    out_.mem.th = static_cast<uint8_t>(bits(w0_, 23, 2));
    out_.mem.offset = sign_extend(bits(w1, 0, 24), 24);
    out_.mem.soffset = narrow(bits(w1, 25, 7));
    return smem_operands(bits(w0_, 6, 7), bits(w0_, 0, 6));
  }

  // ---- vector ----
  static bool is_dpp_code(uint32_t code) {
    return code == kDpp8Code || code == kDpp8FiCode || code == kDpp16Code;
  }
  /// Reads the DPP dword where src0's field asks for one; `code` becomes the VGPR it names.
  bool dpp(uint32_t& code, std::string_view modifier_bits) {
    if (!is_dpp_code(code)) return true;
    uint32_t w = 0;
    if ((is9() && code != kDpp16Code) || !word(w)) return false;
    Dpp& d = out_.dpp;
    if (code != kDpp16Code) {
      d.kind = DppKind::kDpp8;
      d.fetch_invalid = code == kDpp8FiCode;
      d.control = bits(w, 8, 24);
    } else {
      d.kind = DppKind::kDpp16;
      d.control = bits(w, 8, 9);
      d.fetch_invalid = !is9() && bits(w, 18, 1);
      d.bound_zero = bits(w, 19, 1);
      d.bank_mask = static_cast<uint8_t>(bits(w, 24, 4));
      d.row_mask = static_cast<uint8_t>(bits(w, 28, 4));
      for (uint32_t i = 0; i < 4; ++i) {
        const char meaning = modifier_bits.size() == 4 ? modifier_bits[i] : '.';
        if (!bits(w, 20 + i, 1)) continue;
        if (meaning == 'x') return false;
        if (meaning == '.') {
          out_.passed_over |= (i & 1 ? modifier::kAbs : modifier::kNeg) << (i / 2);
          continue;
        }
        uint8_t& field = i & 1 ? out_.abs : out_.neg;
        field = static_cast<uint8_t>(field | 1u << (i / 2));
      }
    }
    code = kVgpr + bits(w, 0, 8);
    return true;
  }

  bool vop12c() {
    const uint32_t op6 = bits(w0_, 25, 6);
    const Format format = op6 == 0x3f ? Format::kVop1 : op6 == 0x3e ? Format::kVopc : Format::kVop2;
    const uint32_t code = format == Format::kVop1   ? bits(w0_, 9, 8)
                          : format == Format::kVopc ? bits(w0_, 17, 8)
                                                    : op6;
    if (!row(format, code)) return false;
    uint32_t src0 = operand(w0_, 0, 9);
    if (present(1) && src0 == kSdwaCode && out_.row->has_sdwa()) return sdwa(format, code);
    if (present(1) && is_dpp_code(src0) && out_.row->has_dpp() &&
        !dpp(src0, out_.row->bits.substr(1, 4)))
      return false;
    if (!short_slot(out_.src[0], 1, src0)) return false;
    if (format != Format::kVop1 && !short_slot(out_.src[1], 2, kVgpr + bits(w0_, 9, 8)))
      return false;
    if (!present(0) && !present(1) && bits(w0_, 17, 8) + (is9() ? 0 : bits(w0_, 0, 9)))
      return false;
    // Of 64 bits CDNA moves one lane of a row to all of it, and nothing else.
    if (is9() && out_.dpp.kind != DppKind::kOff && out_.dpp.control >> 4 != 0x15 &&
        has_wide_operand())
      return false;
    if (format != Format::kVopc) {
      const bool scalar = present(0) && out_.row->operands[0] == 's';
      const uint32_t dst = scalar ? operand(w0_, 17, 8) : kVgpr + bits(w0_, 17, 8);
      if (!short_slot(out_.dst, 0, dst)) return false;
    }
    if (out_.row->name == "v_accvgpr_mov_b32") {
      to_acc(out_.dst);
      to_acc(out_.src[0]);
    }
    if (out_.row->has('K')) {
      has_literal_ = true;
      return word(out_.literal);
    }
    return literal_for(out_.src[0]);
  }

  /// As slot(). Where 16 bits are meant, codes of the upper 128 registers name the upper halves of
  /// the lower 128 (RDNA3 ISA guide, "16-bit operands"): what OP_SEL says in the long form.
  bool short_slot(Slot& s, uint32_t index, uint32_t code) {
    constexpr std::string_view kByHalves = "TVXl";
    if (present(index) && code >= kHighRegisters &&
        kByHalves.find(out_.row->operands[2 * index]) != std::string_view::npos) {
      code -= kHighRegisters - kVgpr;
      out_.op_sel = static_cast<uint8_t>(out_.op_sel | (index == 0 ? 8u : 1u << (index - 1)));
      out_.has_high_registers = true;
    }
    return slot(s, index, code);
  }

  /// Sub-dword addressing. Source: RDNA2 ISA guide, "SDWA" and "SDWAB".
  bool sdwa(Format format, uint32_t code) {
    const bool compares = format == Format::kVopc;
    const uint32_t long_code = code + (format == Format::kVop1   ? (is9() ? 0x140u : 0x180u)
                                       : format == Format::kVop2 ? 0x100u
                                                                 : 0u);
    const OpcodeRow* long_form = find_row(isa_, Format::kVop3, long_code);
    uint32_t w = 0;
    if (!word(w) || (format == Format::kVop1 && bits(w, 24, 8))) return false;
    Sdwa& s = out_.sdwa;
    s.on = true;
    const std::string_view b = out_.row->bits;
    for (uint32_t i = 0; i < 2; ++i) {
      if (!present(i + 1)) continue;
      s.source[i] = static_cast<uint8_t>(bits(w, 16 + 8 * i, 3));
      const bool is_float = b[1 + 2 * i] == 's';
      const uint32_t sign = bits(w, 19 + 8 * i, 1), neg = bits(w, 20 + 8 * i, 1),
                     abs = bits(w, 21 + 8 * i, 1);
      if (s.source[i] > Sdwa::kWhole || (is_float ? sign : neg | abs)) return false;
      s.sign_extend[i] = sign;
      out_.neg = static_cast<uint8_t>(out_.neg | neg << i);
      out_.abs = static_cast<uint8_t>(out_.abs | abs << i);
    }
    const auto source = [&](uint32_t field, bool is_scalar) {
      return is_scalar ? operand(field, 0, 8) : kVgpr + field;
    };
    if (!slot(out_.src[0], 1, source(bits(w, 0, 8), bits(w, 23, 1))) ||
        out_.src[0].code == kLiteral || !class_allows('R', out_.src[0].code))
      return false;
    if (format != Format::kVop1 &&
        (!slot(out_.src[1], 2, kVgpr) ||
         !plain(out_.src[1], width_at(2), source(bits(w0_, 9, 8), bits(w, 31, 1))) ||
         (out_.src[1].code < kVgpr && !class_allows('R', out_.src[1].code)) ||
         out_.src[1].code == kLiteral))
      return false;
    if (compares) {
      const uint32_t sdst = operand(w, 8, 7);
      const bool to_exec = out_.row->name.starts_with("v_cmpx");
      if (to_exec && !is9()) return !bits(w, 15, 1) || sdst == kExecLo;
      if (is9() && bits(w, 15, 1) && sdst % 2 != 0) return false;
      if (bits(w, 15, 1)) out_.dst = mask(sdst);
      return !bits(w, 15, 1) || class_allows('s', sdst);
    }
    s.target = static_cast<uint8_t>(bits(w, 8, 3));
    s.rest = static_cast<uint8_t>(bits(w, 11, 2));
    out_.clamp = bits(w, 13, 1);
    out_.omod = static_cast<uint8_t>(bits(w, 14, 2));
    const bool has_omod = long_form && long_form->bits[8] == 's';
    return s.target <= Sdwa::kWhole && s.rest <= 2 && (has_omod || !out_.omod) &&
           slot(out_.dst, 0, kVgpr + bits(w0_, 17, 8));
  }

  bool vop3(Format format, uint32_t code, bool packed) {
    uint32_t w1 = 0;
    if (!row(format, code) || !word(w1)) return false;
    const std::string_view b = out_.row->bits;
    const uint64_t w = uint64_t{w1} << 32 | w0_;
    for (uint32_t i = 0; i < 13; ++i) {
      const uint32_t bit = i < 8 ? 8 + i : 59 + (i - 8);
      if (b[i] == (bits(w, bit, 1) ? 'x' : '1')) return false;
      if (b[i] == '.' && bits(w, bit, 1)) out_.passed_over |= without_meaning(i, packed);
    }
    if (b[0] == 'S') {
      const uint32_t sdst = operand(w0_, 8, 7);
      if (!class_allows('s', sdst) || (is9() && sdst % 2 != 0)) return false;
      out_.sdst = mask(sdst);
    }
    vop3_modifiers(w, packed);
    const bool scalar = present(0) && out_.row->operands[0] == 's';
    if (!slot(out_.dst, 0, scalar ? operand(w0_, 0, 8) : kVgpr + bits(w0_, 0, 8))) return false;
    uint32_t src[3] = {operand(w, 32, 9), operand(w, 41, 9), operand(w, 50, 9)};
    for (uint32_t i = 0; i < 3; ++i)
      if (present(i + 1) ? !class_allows(out_.row->operands[2 * i + 2], src[i]) : src[i] != 0)
        return false;
    // With DPP the second source of a packed operation is no SGPR and no literal.
    if (packed && present(1) && is_dpp_code(src[0]) && (src[1] < 128 || src[1] == kLiteral))
      return false;
    if (present(1) && !dpp(src[0], "")) return false;
    for (uint32_t i = 0; i < 3; ++i)
      if (present(i + 1) && !plain(out_.src[i], width_at(i + 1), src[i])) return false;
    for (const Slot& s : out_.src)
      if (s.dwords && !literal_for(s)) return false;
    return true;
  }

  /// Is source `i` of 16 bits?
  bool is_half(uint32_t i) const {
    return present(i + 1) && (width_at(i + 1) == 'h' || width_at(i + 1) == 'i');
  }

  /// Bit `i` of OpcodeRow::bits where the row has '.': OP_SEL counts all the same
  /// (vop3_modifiers()), OP_SEL_HI is set by assemblers where it means nothing.
  uint32_t without_meaning(uint32_t i, bool packed) const {
    using namespace modifier;
    if (i < 3) return (packed ? kNegHi : kAbs) << i;
    if (i < 7) return i < 6 && (packed || !is_half(i - 3)) ? kOpSel << (i - 3) : 0;
    if (i == 7) return kClamp;
    if (i < 10) return packed ? 0 : kOmod;
    return kNeg << (i - 10);
  }

  void vop3_modifiers(uint64_t w, bool packed) {
    const std::string_view b = out_.row->bits;
    const auto field = [&](uint32_t bit, uint32_t count) {
      uint32_t value = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t at = bit + i < 16 ? bit + i - 8 : bit + i - 59 + 8;
        // OP_SEL that LLVM passes over counts: 16-bit operands have halves, others have none, and
        // what executes the instruction says so.
        const bool counts = b[at] == 's' || (b[at] == '.' && !packed &&
                                             (at == 6 || (at >= 3 && at < 6 && is_half(at - 3))));
        if (counts) value |= bits(w, bit + i, 1) << i;
      }
      return static_cast<uint8_t>(value);
    };
    out_.clamp = field(15, 1) != 0;
    out_.neg = field(61, 3);
    if (packed) {
      out_.neg_hi = field(8, 3);
      out_.op_sel = field(11, 3);
      out_.op_sel_hi = static_cast<uint8_t>(field(59, 2) | field(14, 1) << 2);
    } else {
      out_.abs = field(8, 3);
      out_.op_sel = field(11, 4);
      out_.omod = field(59, 2);
    }
  }

  /// Sources in AccVGPRs have a bit each, C and D one together. Source: CDNA3 ISA guide,
  /// "VOP3P-MAI".
  bool mai(uint32_t code) {
    uint32_t w1 = 0;
    if (!row(Format::kMai, code) || !word(w1)) return false;
    const bool acc_cd = bits(w0_, 15, 1), is_product = out_.row->name.starts_with("v_mfma");
    const uint32_t src[3] = {operand(w1, 0, 9), operand(w1, 9, 9), operand(w1, 18, 9)};
    if (!slot(out_.dst, 0, kVgpr + bits(w0_, 0, 8))) return false;
    for (uint32_t i = 0; i < 3; ++i)
      if (present(i + 1) && !slot(out_.src[i], i + 1, src[i])) return false;
    if (!is_product) {
      if (w1 >> 29 || bits(w1, 9, 18)) return false;
      const bool reads = out_.row->name == "v_accvgpr_read_b32";
      to_acc(reads ? out_.src[0] : out_.dst);
      return !reads || out_.src[0].is_vgpr();
    }
    if (acc_cd) to_acc(out_.dst);
    if (acc_cd && out_.src[2].is_vgpr()) to_acc(out_.src[2]);
    if (bits(w1, 27, 1)) to_acc(out_.src[0]);
    if (bits(w1, 28, 1)) to_acc(out_.src[1]);
    out_.cbsz = static_cast<uint8_t>(bits(w0_, 8, 3));
    out_.abid = static_cast<uint8_t>(bits(w0_, 11, 4));
    out_.blgp = static_cast<uint8_t>(bits(w1, 29, 3));
    constexpr uint32_t kLdsDirect = 254;
    return out_.src[2].code >= 128 && out_.src[2].code != kLdsDirect;
  }
  static void to_acc(Slot& slot) { slot.code = narrow(slot.code + kAccVgpr - kVgpr); }

  bool vopd() {
    uint32_t w1 = 0;
    if (!row(Format::kVopdX, bits(w0_, 22, 4)) || !word(w1)) return false;
    out_.row_y = find_row(isa_, Format::kVopdY, bits(w0_, 17, 5));
    if (!out_.row_y) return false;
    const uint32_t vdst_x = bits(w1, 24, 8);
    // The lowest bit of Y's destination is the complement of X's: they are in different banks.
    const uint32_t vdst_y = bits(w1, 17, 7) << 1 | ((vdst_x & 1) ^ 1);
    return half(*out_.row, out_.dst, out_.src, vdst_x, bits(w0_, 0, 9), bits(w0_, 9, 8)) &&
           half(*out_.row_y, out_.dst_y, out_.src_y, vdst_y, bits(w1, 0, 9), bits(w1, 9, 8));
  }
  bool half(const OpcodeRow& r, Slot& dst, Slot* src, uint32_t vdst, uint32_t src0, uint32_t v1) {
    const bool is_move = r.name == "v_dual_mov_b32";
    if (!class_allows('R', src0) || (is_move && v1 != 0)) return false;
    dst = {narrow(kVgpr + vdst), 1, '1'};
    src[0] = {narrow(src0), 1, '1'};
    if (!is_move) src[1] = {narrow(kVgpr + v1), 1, '1'};
    if (r.name.find("_fmaak_") != std::string_view::npos ||
        r.name.find("_fmamk_") != std::string_view::npos) {
      src[2] = {kLiteral, 1, '1'};
      if (!literal_for(src[2])) return false;
    }
    return literal_for(src[0]);
  }

  // ---- vector memory ----
  bool ds() {
    uint32_t w1 = 0;
    if (!row(Format::kDs, bits(w0_, 18, 8)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    m.offset = static_cast<int32_t>(bits(w0_, 0, 16));
    m.offset0 = static_cast<uint8_t>(bits(w0_, 0, 8));
    m.offset1 = static_cast<uint8_t>(bits(w0_, 8, 8));
    m.gds = bits(w0_, 17, 1);
    m.returns = present(0);
    // Fields without an operand, VDST of a store among them, are passed over.
    if (m.gds) return false;  // global data share: gone since gfx11, never used by compute
    return slot(out_.dst, 0, kVgpr + bits(w1, 24, 8)) &&
           slot(out_.src[0], 1, kVgpr + bits(w1, 0, 8)) &&
           slot(out_.src[1], 2, kVgpr + bits(w1, 8, 8)) &&
           slot(out_.src[2], 3, kVgpr + bits(w1, 16, 8));
  }

  /// Slots of FLAT, SCRATCH and GLOBAL; `glc` asks an atomic for the old value.
  bool flat_operands(uint32_t vdst, uint32_t vaddr, uint32_t vdata, uint32_t saddr, bool glc) {
    MemoryFields& m = out_.mem;
    m.saddr = narrow(saddr);
    const std::string_view b = out_.row->bits;
    m.returns = present(0);
    if (!b.empty()) {
      m.returns = glc || b[0] == 'R';
      if (m.returns && !plain(out_.dst, b[1], kVgpr + vdst)) return false;
    }
    char address = present(1) ? width_at(1) : '-';
    if (saddr != kNull && address == '2' && out_.row->format == Format::kGlobal) address = '1';
    if (!m.use_vaddr) address = '-';
    const bool base_fits = out_.row->format == Format::kGlobal
                               ? class_allows('J', saddr) && saddr % 2 == 0
                               : saddr <= kM0;
    return base_fits && slot(out_.dst, 0, kVgpr + vdst) &&
           plain(out_.src[0], address, kVgpr + vaddr) && slot(out_.src[1], 2, kVgpr + vdata);
  }
  bool ds9() {
    uint32_t w1 = 0;
    if (!row(Format::kDs, bits(w0_, 17, 8)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    m.offset = static_cast<int32_t>(bits(w0_, 0, 16));
    m.offset0 = static_cast<uint8_t>(bits(w0_, 0, 8));
    m.offset1 = static_cast<uint8_t>(bits(w0_, 8, 8));
    m.returns = present(0);
    if (bits(w0_, 16, 1)) return false;  // global data share: CDNA3 has none
    if (!slot(out_.dst, 0, kVgpr + bits(w1, 24, 8)) ||
        !slot(out_.src[0], 1, kVgpr + bits(w1, 0, 8)) ||
        !slot(out_.src[1], 2, kVgpr + bits(w1, 8, 8)) ||
        !slot(out_.src[2], 3, kVgpr + bits(w1, 16, 8)))
      return false;
    if (bits(w0_, 25, 1)) data_to_acc();
    return true;
  }
  /// ACC of a memory instruction: all of its data is in AccVGPRs, its address is not.
  void data_to_acc() {
    for (Slot* slot : {&out_.dst, &out_.src[1], &out_.src[2]})
      if (slot->dwords) to_acc(*slot);
  }
  bool flat9() {
    const uint32_t segment = bits(w0_, 14, 2);
    if (segment > 2) return false;
    const Format format = segment == 0   ? Format::kFlat
                          : segment == 1 ? Format::kScratch
                                         : Format::kGlobal;
    uint32_t w1 = 0;
    if (!row(format, bits(w0_, 18, 7)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    // FLAT's offset has no sign: bit 12 stays clear.
    m.offset =
        segment == 0 ? static_cast<int32_t>(bits(w0_, 0, 12)) : sign_extend(bits(w0_, 0, 13), 13);
    m.glc = bits(w0_, 16, 1);
    m.slc = bits(w0_, 17, 1);
    m.dlc = bits(w0_, 25, 1);
    const uint32_t saddr = bits(w1, 16, 7);
    constexpr uint32_t kOff = 0x7f, kOldNull = 0x7d;
    // SVE, bit 13: a scratch address has a register.
    if (segment == 0 && (saddr != 0 || bits(w0_, 12, 2))) return false;
    if (segment == 2 && bits(w0_, 13, 1)) return false;
    if (saddr == kOldNull) return false;
    m.use_vaddr = segment != 1 || bits(w0_, 13, 1);
    const bool has_base = segment != 0 && saddr != kOff;
    if (!flat_operands(bits(w1, 24, 8), bits(w1, 0, 8), bits(w1, 8, 8),
                       has_base ? operand(w1, 16, 7) : uint32_t{kNull}, m.glc))
      return false;
    if (bits(w1, 23, 1)) data_to_acc();
    return true;
  }
  bool flat10() {
    const uint32_t segment = bits(w0_, 14, 2);
    if (segment > 2 || bits(w0_, 13, 1)) return false;  // 13: to LDS
    const Format format = segment == 0   ? Format::kFlat
                          : segment == 1 ? Format::kScratch
                                         : Format::kGlobal;
    uint32_t w1 = 0;
    if (!row(format, bits(w0_, 18, 7)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    // FLAT's offset has no sign: bit 11 stays clear.
    m.offset =
        segment == 0 ? static_cast<int32_t>(bits(w0_, 0, 11)) : sign_extend(bits(w0_, 0, 12), 12);
    m.dlc = bits(w0_, 12, 1);
    m.glc = bits(w0_, 16, 1);
    m.slc = bits(w0_, 17, 1);
    const uint32_t saddr = bits(w1, 16, 7);
    // 0x7f is "off"; with SADDR a scratch address has no register.
    constexpr uint32_t kOff = 0x7f, kOldNull = 0x7d;
    const bool has_base = saddr != kOff && saddr != kOldNull;
    if ((segment == 0 && (has_base || bits(w0_, 11, 1))) || bits(w1, 23, 1)) return false;
    if (segment != 1 && saddr == kOff) return false;
    m.use_vaddr = format != Format::kScratch || saddr == kOldNull;
    return flat_operands(bits(w1, 24, 8), bits(w1, 0, 8), bits(w1, 8, 8),
                         has_base ? operand(w1, 16, 7) : uint32_t{kNull}, m.glc);
  }
  bool flat11() {
    const uint32_t segment = bits(w0_, 16, 2);
    if (segment > 2) return false;
    const Format format = segment == 0   ? Format::kFlat
                          : segment == 1 ? Format::kScratch
                                         : Format::kGlobal;
    uint32_t w1 = 0;
    if (!row(format, bits(w0_, 18, 7)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    m.offset =
        segment == 0 ? static_cast<int32_t>(bits(w0_, 0, 12)) : sign_extend(bits(w0_, 0, 13), 13);
    m.dlc = bits(w0_, 13, 1);
    m.glc = bits(w0_, 14, 1);
    m.slc = bits(w0_, 15, 1);
    const uint32_t saddr = bits(w1, 16, 7);
    // FLAT's offset has no sign: bit 12 stays clear.
    if ((segment == 0 && (saddr != kNull || bits(w0_, 12, 1))) || (segment != 1 && bits(w1, 23, 1)))
      return false;
    m.use_vaddr = format != Format::kScratch || bits(w1, 23, 1);
    return flat_operands(bits(w1, 24, 8), bits(w1, 0, 8), bits(w1, 8, 8), saddr, m.glc);
  }
  bool flat12() {
    const uint32_t segment = bits(w0_, 24, 2);
    if (segment > 2) return false;
    const Format format = segment == 0   ? Format::kFlat
                          : segment == 1 ? Format::kScratch
                                         : Format::kGlobal;
    uint32_t w1 = 0, w2 = 0;
    if (!row(format, bits(w0_, 14, 8)) || !word(w1) || !word(w2)) return false;
    MemoryFields& m = out_.mem;
    m.offset = sign_extend(bits(w2, 8, 24), 24);
    m.scope = static_cast<uint8_t>(bits(w1, 18, 2));
    m.th = static_cast<uint8_t>(bits(w1, 20, 3));
    m.use_vaddr = format != Format::kScratch || bits(w1, 17, 1);
    const uint32_t saddr = bits(w0_, 0, 7);
    if ((segment == 0 || !present(1)) && saddr != kNull) return false;
    if (segment != 1 && bits(w1, 17, 1)) return false;
    if (!present(0) && !present(1) && !present(2) && (w2 || w1 & ~0x7c0000u)) return false;
    return flat_operands(bits(w1, 0, 8), bits(w2, 0, 8), bits(w1, 23, 8), saddr, m.th & 1);
  }

  bool buffer_operands(uint32_t vdata, uint32_t vaddr, bool glc) {
    MemoryFields& m = out_.mem;
    const bool atomic = out_.row->has('r');
    m.returns = !atomic || glc;
    if (m.tfe || !class_allows('D', m.soffset) || m.soffset == kLiteral ||
        !class_allows('K', m.saddr))
      return false;
    m.use_vaddr = m.offen || m.idxen;
    if (m.use_vaddr && !plain(out_.src[0], m.offen && m.idxen ? '2' : '1', kVgpr + vaddr))
      return false;
    if (!present(0) && (w0_ & 0x3ffff || vdata || vaddr)) return false;
    // Loads and atomics that return write the data register.
    return slot(out_.dst, 0, kVgpr + vdata);
  }
  bool buffer11() {
    uint32_t w1 = 0;
    if (!row(Format::kBuffer, bits(w0_, 18, 8)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    m.offset = static_cast<int32_t>(bits(w0_, 0, 12));
    m.glc = bits(w0_, 14, 1);
    m.saddr = narrow(bits(w1, 16, 5) * 4);
    m.soffset = narrow(operand(w1, 24, 8));
    if (is10()) {
      m.offen = bits(w0_, 12, 1);
      m.idxen = bits(w0_, 13, 1);
      m.dlc = bits(w0_, 15, 1);
      m.slc = bits(w1, 22, 1);
      m.tfe = bits(w1, 23, 1);
      if (bits(w0_, 16, 1) || bits(w1, 21, 1)) return false;  // to LDS; reserved
      if (m.saddr == kNull || (m.dlc && out_.row->has('r'))) return false;
    } else {
      m.slc = bits(w0_, 12, 1);
      m.dlc = bits(w0_, 13, 1);
      m.tfe = bits(w1, 21, 1);
      m.offen = bits(w1, 22, 1);
      m.idxen = bits(w1, 23, 1);
    }
    return buffer_operands(bits(w1, 8, 8), bits(w1, 0, 8), m.glc);
  }
  bool buffer9() {
    uint32_t w1 = 0;
    if (!row(Format::kBuffer, bits(w0_, 18, 7)) || !word(w1)) return false;
    MemoryFields& m = out_.mem;
    m.offset = static_cast<int32_t>(bits(w0_, 0, 12));
    m.offen = bits(w0_, 12, 1);
    m.idxen = bits(w0_, 13, 1);
    m.glc = bits(w0_, 14, 1);
    m.dlc = bits(w0_, 15, 1);
    m.slc = bits(w0_, 17, 1);
    m.saddr = narrow(bits(w1, 16, 5) * 4);
    m.soffset = narrow(operand(w1, 24, 8));
    if (bits(w0_, 16, 1)) return false;  // to LDS
    if (!present(0)) {
      if (m.offset || m.offen || m.idxen || w1) return false;
      return true;
    }
    if (m.saddr == kNull || !buffer_operands(bits(w1, 8, 8), bits(w1, 0, 8), m.glc)) return false;
    if (bits(w1, 23, 1)) to_acc(out_.dst);
    return true;
  }
  bool buffer12() {
    uint32_t w1 = 0, w2 = 0;
    if (!row(Format::kBuffer, bits(w0_, 14, 8)) || !word(w1) || !word(w2)) return false;
    MemoryFields& m = out_.mem;
    m.soffset = narrow(bits(w0_, 0, 7));
    m.tfe = bits(w0_, 22, 1);
    m.saddr = narrow(bits(w1, 9, 9));
    m.scope = static_cast<uint8_t>(bits(w1, 18, 2));
    m.th = static_cast<uint8_t>(bits(w1, 20, 3));
    m.offen = bits(w1, 30, 1);
    m.idxen = bits(w1, 31, 1);
    m.offset = sign_extend(bits(w2, 8, 24), 24);
    return m.saddr < 124 && m.saddr % 4 == 0 &&
           buffer_operands(bits(w1, 0, 8), bits(w2, 0, 8), m.th & 1);
  }

  std::span<const uint32_t> words_;
  Isa isa_;
  uint32_t w0_ = 0;
  size_t used_ = 0;
  bool has_literal_ = false;
  Instruction out_;
};

}  // namespace

uint32_t modifiers_of(const Instruction& in) {
  using namespace modifier;
  uint32_t all =
      in.passed_over | in.neg * kNeg | in.abs * kAbs | in.op_sel * kOpSel | in.neg_hi * kNegHi;
  if (in.format() == Format::kVop3P) {
    // OP_SEL_HI is one where nobody says otherwise; mixed precision reads floats then.
    uint32_t sources = 0;
    for (uint32_t i = 0; i < 3; ++i) sources |= uint32_t{in.src[i].dwords != 0} << i;
    const bool is_mix = in.row->name.find("fma_mix") != std::string_view::npos;
    uint32_t known = 0;  // of OP_SEL_HI bits 0 and 1 are at 8 and 9 of `bits`, bit 2 at 6
    for (uint32_t i = 0; i < 3; ++i) known |= uint32_t{in.row->bits[i < 2 ? 8 + i : 6] == 's'} << i;
    all |= ((is_mix ? in.op_sel_hi : ~in.op_sel_hi) & sources & known) * kOpSelHi;
  }
  if (in.cbsz || in.abid || in.blgp) all |= kBroadcast;
  if (in.clamp) all |= kClamp;
  if (in.omod) all |= kOmod;
  if (in.dpp.kind != DppKind::kOff) all |= kDpp;
  for (uint32_t i = 0; i < 2; ++i)
    if (in.sdwa.source[i] != Sdwa::kWhole) all |= kSdwaSource << i;
  // The rest of a whole register that is written is nothing.
  if (in.sdwa.on && in.sdwa.target != Sdwa::kWhole) all |= kSdwaTarget;
  return all;
}

std::string modifier_names(uint32_t modifiers) {
  struct Name {
    uint32_t first, count;
    std::string_view name;
  };
  constexpr Name kNames[] = {{0, 3, "NEG"},     {3, 3, "ABS"},
                             {6, 4, "OP_SEL"},  {10, 1, "CLAMP"},
                             {11, 1, "OMOD"},   {12, 3, "OP_SEL_HI"},
                             {15, 3, "NEG_HI"}, {18, 1, "DPP"},
                             {19, 3, "SDWA"},   {22, 1, "CBSZ, ABID or BLGP"}};
  std::string text;
  for (const Name& n : kNames)
    if (bits(modifiers, n.first, n.count)) text += (text.empty() ? "" : ", ") + std::string(n.name);
  return text;
}

std::optional<Instruction> decode(std::span<const uint32_t> words, Isa isa) {
  return Decoder(words, isa).run();
}

}  // namespace bm::sim::amd
