#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tests/sim/amd/isa/instruction.h"

namespace bm::sim::amd {
namespace {

constexpr std::string_view kNamed[] = {"vcc_lo", "vcc_hi"};
constexpr std::string_view kApertures[] = {"src_shared_base", "src_shared_limit",
                                           "src_private_base", "src_private_limit",
                                           "src_pops_exiting_wave_id"};
constexpr std::string_view kFloats[] = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0"};
constexpr uint32_t kFloats32[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                  0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
constexpr uint32_t kFloats16[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000,
                                  0xc000, 0x4400, 0xc400, 0x3118};

bool is_wide_constant(char width) { return width == '2' || width == '4' || width == '8'; }

std::string scalar_name(uint32_t code, uint32_t dwords) {
  const auto range = [&](std::string_view letter, uint32_t first) {
    return dwords == 1 ? fmt::format("{}{}", letter, first)
                       : fmt::format("{}[{}:{}]", letter, first, first + dwords - 1);
  };
  if (code < kVccLo) return range("s", code);
  if (code < kTtmp0) return dwords == 2 ? "vcc" : std::string(kNamed[code - kVccLo]);
  if (code < kNull) return range("ttmp", code - kTtmp0);
  if (code == kNull) return "null";
  if (code == kM0) return "m0";
  return dwords == 2 ? "exec" : code == kExecLo ? "exec_lo" : "exec_hi";
}

/// How LLVM prints a 32-bit immediate: as the inline constant it equals, else in hexadecimal.
std::string immediate_text(uint32_t value) {
  const auto number = static_cast<int32_t>(value);
  if (number >= -16 && number <= 64) return fmt::format("{}", number);
  for (size_t i = 0; i < std::size(kFloats32); ++i)
    if (kFloats32[i] == value) return i == 8 ? "0.15915494" : std::string(kFloats[i]);
  return fmt::format("0x{:x}", value);
}
std::string immediate16_text(uint32_t value, bool is_float) {
  value &= 0xffff;
  const auto number = static_cast<int16_t>(value);
  if (number >= -16 && number <= 64) return fmt::format("{}", number);
  for (size_t i = 0; is_float && i < std::size(kFloats16); ++i)
    if (kFloats16[i] == value) return i == 8 ? "0.15915494" : std::string(kFloats[i]);
  return fmt::format("0x{:x}", value);
}

std::string operand_text(const Slot& slot, const Instruction& in) {
  const uint32_t code = slot.code;
  if (code >= kVgpr) {
    const char letter = code >= kAccVgpr ? 'a' : 'v';
    const uint32_t first = code - (code >= kAccVgpr ? kAccVgpr : kVgpr);
    return slot.dwords == 1 ? fmt::format("{}{}", letter, first)
                            : fmt::format("{}[{}:{}]", letter, first, first + slot.dwords - 1);
  }
  if (code < 128) return scalar_name(code, slot.dwords);
  if (code <= 192) return fmt::format("{}", code - 128);
  if (code <= 208) return fmt::format("{}", 192 - static_cast<int32_t>(code));
  if (code >= 235 && code <= 239) return std::string(kApertures[code - 235]);
  if (code >= 240 && code <= 248) {
    if (slot.width == 'i') return fmt::format("0x{:x}", kFloats16[code - 240]);
    if (code < 248) return std::string(kFloats[code - 240]);
    return is_wide_constant(slot.width) ? "0.15915494309189532" : "0.15915494";
  }
  if (code == 251) return "src_vccz";
  if (code == 252) return "src_execz";
  if (code == 253) return "src_scc";
  if (code == 254) return "src_lds_direct";
  if (slot.width == 'h' || slot.width == 'i')
    return immediate16_text(in.literal, slot.width == 'h');
  return immediate_text(in.literal);
}

std::string source_text(const Instruction& in, uint32_t index) {
  const Slot& slot = in.src[index];
  std::string text = operand_text(slot, in);
  if (in.has_high_registers && in.op_sel >> index & 1) text += ".h";
  if (index < 2 && in.sdwa.sign_extend[index]) return fmt::format("sext({})", text);
  if (in.format() == Format::kVop3P && in.row->name.find("fma_mix") == std::string_view::npos)
    return text;
  const bool mix = in.format() == Format::kVop3P;
  const uint32_t abs = mix ? in.neg_hi : in.abs;
  const bool constant = slot.code >= 128 && slot.code < kVgpr &&
                        !(slot.code >= 235 && slot.code <= 239) &&
                        !(slot.code >= 251 && slot.code <= 253);
  if (abs >> index & 1) text = fmt::format("|{}|", text);
  if (in.neg >> index & 1)
    text = constant && !(abs >> index & 1) ? fmt::format("neg({})", text) : "-" + text;
  return text;
}

std::string bit_list(std::string_view name, uint32_t bits, uint32_t count) {
  std::string text = fmt::format(" {}:[", name);
  for (uint32_t i = 0; i < count; ++i) text += fmt::format("{}{}", i ? "," : "", bits >> i & 1);
  return text + "]";
}

std::string dpp_control_text(uint32_t control, Isa isa) {
  if (control < 0x100)
    return fmt::format("quad_perm:[{},{},{},{}]", control & 3, control >> 2 & 3, control >> 4 & 3,
                       control >> 6 & 3);
  struct Row {
    uint32_t base;
    std::string_view name;
  };
  constexpr Row kOnGfx9[] = {{0x130, "wave_shl:1"},   {0x134, "wave_rol:1"},
                             {0x138, "wave_shr:1"},   {0x13c, "wave_ror:1"},
                             {0x142, "row_bcast:15"}, {0x143, "row_bcast:31"}};
  for (const Row& row : kOnGfx9)
    if (isa == Isa::kGfx9 && control == row.base) return std::string(row.name);
  if (isa == Isa::kGfx9 && control >> 4 == 0x15)
    return fmt::format("row_newbcast:{}", control & 15);
  constexpr Row kRows[] = {{0x100, "row_shl"},
                           {0x110, "row_shr"},
                           {0x120, "row_ror"},
                           {0x150, "row_share"},
                           {0x160, "row_xmask"}};
  for (const Row& row : kRows)
    if (isa == Isa::kGfx9 && row.base >= 0x150)
      break;
    else if ((control & ~15u) == row.base && (control & 15 || row.base >= 0x150))
      return fmt::format("{}:{}", row.name, control & 15);
  if (control == 0x140) return "row_mirror";
  if (control == 0x141) return "row_half_mirror";
  return "/* invalid dpp_ctrl */";
}

std::string dpp_text(const Dpp& dpp, Isa isa) {
  std::string text;
  if (dpp.kind == DppKind::kOff) return text;
  if (dpp.kind == DppKind::kDpp8) {
    text = " dpp8:[";
    for (uint32_t i = 0; i < 8; ++i)
      text += fmt::format("{}{}", i ? "," : "", dpp.control >> (3 * i) & 7);
    text += "]";
  } else {
    text = fmt::format(" {} row_mask:0x{:x} bank_mask:0x{:x}", dpp_control_text(dpp.control, isa),
                       dpp.row_mask, dpp.bank_mask);
    if (dpp.bound_zero) text += " bound_ctrl:1";
  }
  if (dpp.fetch_invalid) text += " fi:1";
  return text;
}

/// Operands in order, joined by commas.
class Line {
 public:
  explicit Line(std::string_view name) : text_(name) {}
  void add(std::string_view operand) {
    text_ += first_ ? " " : ", ";
    text_ += operand;
    first_ = false;
  }
  void add(const Slot& slot, const Instruction& in) {
    if (slot.dwords) add(operand_text(slot, in));
  }
  void suffix(std::string_view modifier) { text_ += modifier; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool first_ = true;
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void cache_policy(Line& line, const Instruction& in, Isa isa) {
  const MemoryFields& m = in.mem;
  if (isa == Isa::kGfx12) {
    constexpr std::string_view kScopes[] = {"", " scope:SCOPE_SE", " scope:SCOPE_DEV",
                                            " scope:SCOPE_SYS"};
    line.suffix(kScopes[m.scope]);
    return;
  }
  if (isa == Isa::kGfx9 && in.format() != Format::kSmem) {
    if (m.glc) line.suffix(" sc0");
    if (m.slc) line.suffix(" nt");
    if (m.dlc) line.suffix(" sc1");
    return;
  }
  if (m.glc) line.suffix(" glc");
  if (m.slc) line.suffix(" slc");
  if (m.dlc) line.suffix(" dlc");
}

void scalar_operands(Line& line, const Instruction& in) {
  const std::string_view name = in.row->name;
  switch (in.format()) {
    case Format::kSopp:
      if (in.row->has('i'))
        line.add(name.find("branch") == std::string_view::npos ? immediate_text(in.imm)
                                                               : fmt::format("{}", in.imm));
      return;
    case Format::kSopk:
      if (name == "s_setreg_b32" || name == "s_setreg_imm32_b32") {
        line.add(fmt::format("0x{:x}", in.imm));
        if (in.dst.dwords)
          line.add(in.dst, in);
        else
          line.add(immediate_text(in.literal));
        return;
      }
      line.add(in.dst, in);
      line.add(name == "s_call_b64" ? fmt::format("{}", in.imm) : fmt::format("0x{:x}", in.imm));
      return;
    default: break;
  }
  line.add(in.dst, in);
  line.add(in.src[0], in);
  // Written in full, even where an inline constant has the value.
  const std::string constant = fmt::format("0x{:x}", in.literal);
  if (in.row->has('K') && contains(name, "fmamk")) line.add(constant);
  line.add(in.src[1], in);
  if (in.row->has('K') && contains(name, "fmaak")) line.add(constant);
}

void smem_operands(Line& line, const Instruction& in, Isa isa) {
  line.add(in.dst, in);
  if (!in.src[0].dwords) return;
  line.add(in.src[0], in);
  const MemoryFields& m = in.mem;
  const std::string offset =
      m.offset < 0 ? fmt::format("-0x{:x}", -m.offset) : fmt::format("0x{:x}", m.offset);
  if (m.soffset == kNull) {
    line.add(m.offset == 0 && isa != Isa::kGfx12 && isa != Isa::kGfx9 ? "null" : offset);
  } else {
    line.add(scalar_name(m.soffset, 1));
    if (m.offset || isa == Isa::kGfx12 || (isa == Isa::kGfx9 && m.has_offset))
      line.suffix(" offset:" + offset);
  }
  cache_policy(line, in, isa);
}

std::string carry_text(const Slot& slot) { return scalar_name(slot.code, slot.dwords); }

constexpr std::string_view kOmod[] = {"", " mul:2", " mul:4", " div:2"};

void sdwa_text(Line& line, const Instruction& in) {
  constexpr std::string_view kParts[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                         "WORD_0", "WORD_1", "DWORD"};
  constexpr std::string_view kRests[] = {"PAD", "SEXT", "PRESERVE"};
  if (in.clamp) line.suffix(" clamp");
  line.suffix(kOmod[in.omod]);
  if (in.format() != Format::kVopc)
    line.suffix(fmt::format(" dst_sel:{} dst_unused:UNUSED_{}", kParts[in.sdwa.target],
                            kRests[in.sdwa.rest]));
  for (uint32_t i = 0; i < 2; ++i)
    if (in.src[i].dwords) line.suffix(fmt::format(" src{}_sel:{}", i, kParts[in.sdwa.source[i]]));
}

void vop12c_operands(Line& line, const Instruction& in, Isa isa) {
  const std::string_view name = in.row->name, vcc = isa == Isa::kGfx9 ? "vcc" : "vcc_lo";
  // CDNA's v_cmpx writes a mask besides EXEC.
  if (in.format() == Format::kVopc && !in.dst.dwords &&
      (isa == Isa::kGfx9 || !name.starts_with("v_cmpx")))
    line.add(vcc);
  if (in.dst.dwords && in.has_high_registers && in.op_sel & 8)
    line.add(operand_text(in.dst, in) + ".h");
  else
    line.add(in.dst, in);
  const bool carry = contains(in.row->meaning(), "_co_ci_");
  if (carry || contains(name, "_co_u32")) line.add(vcc);
  if (in.src[0].dwords) line.add(source_text(in, 0));
  const std::string k = immediate_text(in.literal);
  if (in.row->has('K') && contains(name, "fmamk")) line.add(k);
  if (in.src[1].dwords) line.add(source_text(in, 1));
  if (in.row->has('K') && contains(name, "fmaak")) line.add(k);
  if (carry || name == "v_cndmask_b32") line.add(vcc);
  if (in.sdwa.on) sdwa_text(line, in);
}

void vop3_modifiers(Line& line, const Instruction& in) {
  uint32_t sources = 0;
  for (const Slot& slot : in.src) sources += slot.dwords != 0;
  if (in.format() == Format::kVop3P) {
    const bool mix = contains(in.row->name, "fma_mix");
    const uint32_t all = (1u << sources) - 1;
    if (in.op_sel) line.suffix(bit_list("op_sel", in.op_sel, sources));
    const uint32_t default_hi = mix ? 0 : all;
    // Where bits 14, 59 and 60 are no modifiers, nothing is said of them.
    const bool shows_hi = in.row->bits[6] == 's' || in.row->bits[8] == 's';
    if (shows_hi && (in.op_sel_hi & all) != default_hi)
      line.suffix(bit_list("op_sel_hi", in.op_sel_hi, sources));
    if (!mix && in.neg & all) line.suffix(bit_list("neg_lo", in.neg, sources));
    if (!mix && in.neg_hi & all) line.suffix(bit_list("neg_hi", in.neg_hi, sources));
  } else if (in.op_sel && in.row->name.starts_with("v_permlane")) {
    line.suffix(bit_list("op_sel", in.op_sel, 2));
  } else if (in.op_sel) {
    line.suffix(bit_list("op_sel",
                         (in.op_sel & ((1u << sources) - 1)) | (in.op_sel >> 3 & 1u) << sources,
                         sources + 1));
  }
  if (in.clamp) line.suffix(" clamp");
  line.suffix(kOmod[in.omod]);
}

void vop3_operands(Line& line, const Instruction& in) {
  line.add(in.dst, in);
  if (in.sdst.dwords) line.add(carry_text(in.sdst));
  for (uint32_t i = 0; i < 3; ++i)
    if (in.src[i].dwords) line.add(source_text(in, i));
  vop3_modifiers(line, in);
}

void mai_operands(Line& line, const Instruction& in) {
  line.add(in.dst, in);
  for (const Slot& slot : in.src) line.add(slot, in);
  if (in.cbsz) line.suffix(fmt::format(" cbsz:{}", in.cbsz));
  if (in.abid) line.suffix(fmt::format(" abid:{}", in.abid));
  // Products of doubles have signs where others have BLGP.
  if (in.blgp)
    line.suffix(in.row->name.ends_with("f64") ? bit_list("neg", in.blgp, 3)
                                              : fmt::format(" blgp:{}", in.blgp));
}

void vopd_half(Line& line, const OpcodeRow& row, const Slot& dst, const Slot* src,
               const Instruction& in) {
  line.add(dst, in);
  line.add(src[0], in);
  if (contains(row.name, "fmamk")) line.add(immediate_text(in.literal));
  line.add(src[1], in);
  if (contains(row.name, "fmaak")) line.add(immediate_text(in.literal));
}

void ds_operands(Line& line, const Instruction& in) {
  line.add(in.dst, in);
  for (const Slot& slot : in.src) line.add(slot, in);
  const MemoryFields& m = in.mem;
  if (in.row->has('2')) {
    if (m.offset0) line.suffix(fmt::format(" offset0:{}", m.offset0));
    if (m.offset1) line.suffix(fmt::format(" offset1:{}", m.offset1));
  } else if (in.src[0].dwords && m.offset) {
    line.suffix(fmt::format(" offset:{}", m.offset));
  }
}

void flat_operands(Line& line, const Instruction& in, Isa isa) {
  const MemoryFields& m = in.mem;
  line.add(in.dst, in);
  if (in.format() == Format::kScratch && !m.use_vaddr) line.add("off");
  line.add(in.src[0], in);
  line.add(in.src[1], in);
  const bool addressed = in.row->operands[2] != '-';
  if (in.format() != Format::kFlat && addressed)
    line.add(m.saddr == kNull ? "off"
                              : scalar_name(m.saddr, in.format() == Format::kGlobal ? 2 : 1));
  if (m.offset && addressed) line.suffix(fmt::format(" offset:{}", m.offset));
  cache_policy(line, in, isa);
}

void buffer_operands(Line& line, const Instruction& in, Isa isa) {
  const MemoryFields& m = in.mem;
  if (!in.dst.dwords) return cache_policy(line, in, isa);
  line.add(in.dst, in);
  if (m.use_vaddr)
    line.add(in.src[0], in);
  else
    line.add("off");
  line.add(scalar_name(m.saddr, 4));
  line.add(operand_text({m.soffset, 1, '1'}, in));
  if (m.idxen) line.suffix(" idxen");
  if (m.offen) line.suffix(" offen");
  if (m.offset) line.suffix(fmt::format(" offset:{}", m.offset));
  cache_policy(line, in, isa);
}

}  // namespace

std::string to_text(const Instruction& in, Isa isa) {
  Line line(in.row->name);
  switch (in.format()) {
    case Format::kSop2:
    case Format::kSopk:
    case Format::kSop1:
    case Format::kSopc:
    case Format::kSopp: scalar_operands(line, in); break;
    case Format::kSmem: smem_operands(line, in, isa); break;
    case Format::kVop1:
    case Format::kVop2:
    case Format::kVopc: vop12c_operands(line, in, isa); break;
    case Format::kVop3:
    case Format::kVop3P: vop3_operands(line, in); break;
    case Format::kMai: mai_operands(line, in); break;
    case Format::kVopdX:
    case Format::kVopdY: {
      vopd_half(line, *in.row, in.dst, in.src, in);
      Line second(in.row_y->name);
      vopd_half(second, *in.row_y, in.dst_y, in.src_y, in);
      return line.take() + " :: " + second.take();
    }
    case Format::kDs: ds_operands(line, in); break;
    case Format::kFlat:
    case Format::kScratch:
    case Format::kGlobal: flat_operands(line, in, isa); break;
    case Format::kBuffer: buffer_operands(line, in, isa); break;
  }
  line.suffix(dpp_text(in.dpp, isa));
  return line.take();
}

}  // namespace bm::sim::amd
