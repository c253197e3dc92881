// The decoder against LLVM's: validity, length and text of random words and of the snippets. LLVM
// 19 is opened at run time; without it the tests skip.

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/amd/isa/instruction.h"
#include "tests/sim/amd/isa/spelling.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

/// LLVM-C's disassembler, by the functions' names.
class Oracle {
 public:
  explicit Oracle(const char* chip, const char* features = "") {
    for (const char* name : {"libLLVM-19.so.1", "libLLVM-19.so", "libLLVM.so.19.1"})
      if (!library_) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library_) return;
    for (const char* part : {"TargetInfo", "Target", "TargetMC", "Disassembler"})
      if (auto* f = find<void()>(fmt::format("LLVMInitializeAMDGPU{}", part))) f();
    auto* create = find<void*(const char*, const char*, const char*, void*, int, void*, void*)>(
        "LLVMCreateDisasmCPUFeatures");
    disassemble_ =
        find<size_t(void*, uint8_t*, uint64_t, uint64_t, char*, size_t)>("LLVMDisasmInstruction");
    if (create && disassemble_)
      context_ = create("amdgcn-amd-amdhsa", chip, features, nullptr, 0, nullptr, nullptr);
  }
  ~Oracle() {
    if (auto* dispose = context_ ? find<void(void*)>("LLVMDisasmDispose") : nullptr)
      dispose(context_);
  }
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;
  bool is_here() const { return context_ != nullptr; }

  /// Bytes of the instruction (0: none) and its text.
  std::pair<size_t, std::string> operator()(std::span<const uint32_t> words) const {
    char text[512];
    std::vector<uint32_t> copy(words.begin(), words.end());
    const size_t bytes = disassemble_(context_, reinterpret_cast<uint8_t*>(copy.data()),
                                      copy.size() * 4, 0, text, sizeof(text));
    return {bytes, bytes ? text : ""};
  }

 private:
  template <class F>
  F* find(const std::string& name) const {
    return reinterpret_cast<F*>(dlsym(library_, name.c_str()));
  }
  void* library_ = nullptr;
  void* context_ = nullptr;
  size_t (*disassemble_)(void*, uint8_t*, uint64_t, uint64_t, char*, size_t) = nullptr;
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// LLVM's instructions that are no part of the tables: images, exports, global data share, traps'
/// insides, video, sparse matrices, 16-bit registers by halves, and what compilers do not emit.
constexpr std::string_view kNotModelled =
    "image|swaprel|export|bvh|_format|load_lds|ds_gws|gs_reg|ordered|swmmac|interp|ds_append|"
    "ds_consume|ds_nop|addtid|tbuffer|load_block|store_block|load_tr|singleuse|subvector|"
    "s_version|atc_probe|movrel|s_rfe|cube|mullit|cdbg|ttrace|perflevel|setkill|"
    "s_wait_event|sendmsghalt|endpgm_saved|ordered_ps|clrexcp| "
    "lds|ds_param|mskor|wrap_rtn|condxchg|alloc_vgpr|"
    "barrier_init|barrier_join|barrier_leave|wakeup_barrier|get_barrier_state|"
    "barrier_signal_isfirst|gds|lds_direct|bvhcnt|lds_param| tfe|invalid dpp_ctrl|"
    "s_prefetch|s_buffer_prefetch|ds_direct|ds_sub_gs|ds_add_gs|"
    // CDNA's: sparse and 8-bit float products, unfused and legacy operations, scalar stores and
    // atomics, indexed registers, forks, and registers that gfx940 has elsewhere.
    "smfmac|fp8|bf8|xf32|_legacy_f|v_mad_f16|v_mac_f16|v_madmk|v_madak|cvt_pkaccum|screen_|"
    "dot2c_i32|dot8c|s_store|s_buffer_store|s_scratch|s_atomic|s_buffer_atomic|dcache_discard|"
    "gpr_idx|fork|s_cbranch_join|setvskip|buffer_atomic_add_f64|wbinvl1|flat_scratch|xnack_mask";
bool is_modelled(std::string_view text) {
  const size_t name = std::min(text.find_first_not_of(" \t"), text.size());
  if (text.substr(name).starts_with("exp ")) return false;
  for (std::string_view rest = kNotModelled;;) {
    const size_t bar = rest.find('|');
    if (contains(text, rest.substr(0, bar))) return false;
    if (bar == std::string_view::npos) return true;
    rest.remove_prefix(bar + 1);
  }
}
/// LLVM takes operands here that the guides do not allow: literals and EXEC as addresses, apertures
/// as destinations.
constexpr std::string_view kTooKind[] = {"buffer",      "flat",   "global",   "scratch",
                                         "v_readfirst", "v_cmp_", "v_cmpx_",  "v_dot",
                                         "v_pipeflush", "v_mfma", "v_accvgpr"};
bool is_too_kind(std::string_view text) {
  return std::ranges::any_of(kTooKind, [&](std::string_view p) { return text.starts_with(p); });
}

/// A word that carries an opcode of the tables, at random elsewhere.
uint32_t seeded(const OpcodeRow& r, Isa isa, uint32_t w, std::mt19937& random) {
  const uint32_t c = r.code;
  const bool is12 = isa == Isa::kGfx12, is10 = isa == Isa::kGfx10;
  const auto with = [&](uint32_t mask, uint32_t value) { return (w & ~mask) | value; };
  if (isa == Isa::kGfx9) {
    const uint32_t segment = r.format == Format::kFlat ? 0 : r.format == Format::kScratch ? 1 : 2;
    switch (r.format) {
      case Format::kSmem: return with(0xffff8000 & ~0x34000u, 0xc0000000 | c << 18);
      case Format::kVop3: return with(random() % 2 ? 0xffffff00 : 0xffff0000, 0xd0000000 | c << 16);
      case Format::kVop3P:
      case Format::kMai:
        return with(random() % 2 ? 0xffffff00 : 0xffff0000,
                    0xd3800000 | c << 16 | (random() % 2 ? 0x4000 : 0));
      case Format::kDs: return with(0xfdff0000, 0xd8000000 | c << 17);
      case Format::kFlat:
      case Format::kScratch:
      case Format::kGlobal: return with(0xfdfcc000, 0xdc000000 | segment << 14 | c << 18);
      case Format::kBuffer: return with(0xfffd0000, 0xe0000000 | c << 18);
      default: break;
    }
  }
  switch (r.format) {
    case Format::kSop2: return with(0xff800000, 0x80000000 | c << 23);
    case Format::kSopk: return with(0xff800000, 0xb0000000 | c << 23);
    case Format::kSop1: return with(0xff80ff00, 0xbe800000 | c << 8);
    case Format::kSopc: return with(0xffff0000, 0xbf000000 | c << 16);
    case Format::kSopp: return with(0xffff0000, 0xbf800000 | c << 16);
    case Format::kSmem:
      return is12   ? with(0xfe1fe000, 0xf4000000 | c << 13)
             : is10 ? with(0xfffea000, 0xf4000000 | c << 18)
                    : with(0xffff8000, 0xf4000000 | c << 18);
    case Format::kVop1: return with(0xfe01fe00, 0x7e000000 | c << 9);
    case Format::kVop2: return with(0xfe000000, c << 25);
    case Format::kVopc: return with(0xfffe0000, 0x7c000000 | c << 17);
    case Format::kVop3: return with(random() % 2 ? 0xffffff00 : 0xffff0000, 0xd4000000 | c << 16);
    case Format::kVop3P:
      return with(random() % 2 ? 0xffffff00 : 0xffff0000,
                  0xcc000000 | c << 16 | (random() % 2 ? 0x4000 : 0));
    case Format::kMai: break;
    case Format::kVopdX: return with(0xffc00000, 0xc8000000 | c << 22);
    case Format::kVopdY: return with(0xfc3e0000, 0xc8000000 | c << 17);
    case Format::kDs: return with(0xffff0000, 0xd8000000 | c << 18);
    case Format::kFlat:
    case Format::kScratch:
    case Format::kGlobal: {
      const uint32_t segment = r.format == Format::kFlat ? 0 : r.format == Format::kScratch ? 1 : 2;
      return is12   ? with(0xffffff80, 0xec000000 | segment << 24 | c << 14)
             : is10 ? with(0xfffce000, 0xdc000000 | segment << 14 | c << 18)
                    : with(0xffff0000, 0xdc000000 | segment << 16 | c << 18);
    }
    case Format::kBuffer:
      return is12 ? with(0xffffff80, 0xc4000000 | c << 14)
                  : with(is10 ? 0xffff0000 : 0xffff8000, 0xe0000000 | c << 18);
  }
  return w;
}

/// DS: fields that name no operand, which hardware passes over and LLVM wants to be 0, cleared.
std::vector<uint32_t> without_unused(const Instruction& in, std::span<const uint32_t> words) {
  std::vector<uint32_t> copy(words.begin(), words.end());
  const std::string_view operands = in.row->operands;
  for (uint32_t i = 0; in.format() == Format::kDs && i < 4; ++i)
    if (operands.size() < 2 * i + 2 || operands[2 * i] == '-')
      copy[1] &= ~(0xffu << (i == 0 ? 24 : 8 * (i - 1)));
  return copy;
}
std::string without(std::string text, std::string_view part) {
  for (size_t at = 0; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return text;
}
/// OP_SEL of long forms that LLVM passes over: the rows know.
std::string without_op_sel(std::string text) {
  const size_t at = text.find(" op_sel:[");
  if (at != std::string::npos) text.erase(at, text.find(']', at) + 1 - at);
  return text;
}

/// SDWA selects of 7 and an UNUSED of 3 mean nothing, and LLVM 19's printer crashes on them.
uint32_t without_reserved_selects(uint32_t word) {
  for (const uint32_t field : {7u << 8, 7u << 16, 7u << 24})
    if ((word & field) == field) word &= ~(field & 0x01010100);
  return (word >> 11 & 3) == 3 ? word & ~(1u << 11) : word;
}

/// What differs about these words; empty if nothing does or it is not ours to say.
std::string difference(const Oracle& oracle, const Oracle& halves, Isa isa,
                       std::span<const uint32_t> words) {
  auto [bytes, text] = oracle(words);
  if (contains(text, "Warning") || contains(text, "/*")) bytes = 0;  // LLVM decodes, then objects
  const auto ours = decode(words, isa);
  if (!bytes && ours && ours->format() == Format::kDs)
    std::tie(bytes, text) = oracle(without_unused(*ours, words));
  if (!bytes && ours && ours->has_high_registers) {
    // Registers by halves: LLVM 19 knows some of the instructions under a feature of its own.
    std::tie(bytes, text) = halves(words);
    if (!bytes || contains(text, "/*")) return {};
  }
  text = without(text, ".l");
  if (bytes && !is_modelled(text)) return {};
  if (!bytes && !ours) return {};
  if (!bytes) {
    const std::string said = to_text(*ours, isa);
    if (contains(said, "invalid dpp_ctrl") || contains(said, "s_delay_alu") ||
        ours->row->format == Format::kVop3P)
      return {};
    return "accepted: " + said;
  }
  const std::string theirs = normal(text);
  // NULL came with RDNA, and gfx940 has no global data share: LLVM reads and passes over them.
  if (!ours && isa == Isa::kGfx9 && contains(text, "null")) return {};
  if (!ours && isa == Isa::kGfx9 && words[0] >> 26 == 0x36 && words[0] >> 16 & 1) return {};
  if (!ours) return is_too_kind(theirs) ? "" : "refused: " + text;
  if (ours->bytes != bytes) return fmt::format("{} bytes of {}: {}", ours->bytes, bytes, text);
  const std::string said = normal(to_text(*ours, isa));
  // Modifiers without a meaning, which LLVM prints as something: execution refuses them. And a bar
  // that LLVM closes behind the carry, where normal() gives up.
  if (ours->passed_over || contains(text, ", vcc_lo|"))
    if (said.starts_with(theirs.substr(0, theirs.find(' ')))) return {};
  if (ours->format() == Format::kVop3 &&
      ours->row->bits.substr(3, 4).find('.') != std::string::npos)
    if (theirs == without_op_sel(said)) return {};
  return said == theirs ? "" : fmt::format("LLVM: {} — here: {}", theirs, said);
}

class Llvm : public testing::TestWithParam<const char*> {};

TEST_P(Llvm, DecodesRandomWordsAlike) {
  const Oracle oracle(GetParam()), halves(GetParam(), "+real-true16");
  if (!oracle.is_here()) GTEST_SKIP() << "libLLVM-19 is not installed";
  const Isa isa = *isa_of(GetParam());
  std::mt19937 random(2026);
  const auto rows = opcode_rows();
  uint32_t agreed = 0, bad = 0;
  for (int i = 0; i < 40'000; ++i) {
    uint32_t words[5];
    for (uint32_t& w : words) w = static_cast<uint32_t>(random());
    const OpcodeRow* row = &rows[random() % rows.size()];
    while (!row->in(isa)) row = &rows[random() % rows.size()];
    if (i % 16) words[0] = seeded(*row, isa, words[0], random);
    // Extensions of the short forms: as often as plain ones.
    if (i % 3 == 0 && row->has_sdwa()) words[0] = (words[0] & ~0x1ffu) | 249;
    if (i % 3 == 1 && row->has_dpp()) words[0] = (words[0] & ~0x1ffu) | (i % 2 ? 250 : 233);
    if (i % 2) words[1] = (words[1] & 0x07ffffff) | (i % 4 == 1 ? 0x18000000 : 0xf8000000);
    if ((isa == Isa::kGfx10 || isa == Isa::kGfx9) && words[0] >> 31 == 0 &&
        (words[0] & 0x1ff) == 249)
      words[1] = without_reserved_selects(words[1]);
    const std::string found = difference(oracle, halves, isa, words);
    agreed += decode(words, isa).has_value();
    if (!found.empty() && ++bad <= 20)
      ADD_FAILURE() << fmt::format("{:08x} {:08x} {:08x}: {}", words[0], words[1], words[2], found);
  }
  EXPECT_EQ(bad, 0u);
  EXPECT_GT(agreed, 8'000u);
}

TEST(LlvmSnippets, AreWhatTheySay) {
  for (const auto& [isa, chip] : std::map<Isa, const char*>{{Isa::kGfx9, "gfx942"},
                                                            {Isa::kGfx10, "gfx1030"},
                                                            {Isa::kGfx11, "gfx1100"},
                                                            {Isa::kGfx115, "gfx1150"},
                                                            {Isa::kGfx12, "gfx1201"}}) {
    const Oracle oracle(chip), halves(chip, "+real-true16");
    if (!oracle.is_here()) GTEST_SKIP() << "libLLVM-19 is not installed";
    for (const Snippet& s : snippets()) {
      if (s.isa != isa) continue;
      EXPECT_EQ(difference(oracle, halves, isa, s.words), "") << s.text;
      if (const auto ours = decode(s.words, isa); ours && ours->has_high_registers) continue;
      const auto [bytes, text] = oracle(s.words);
      EXPECT_EQ(normal(text).substr(0, normal(text).find(' ')),
                normal(std::string(s.text)).substr(0, normal(std::string(s.text)).find(' ')));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, Llvm,
                         testing::Values("gfx940", "gfx942", "gfx1030", "gfx1031", "gfx1032",
                                         "gfx1033", "gfx1034", "gfx1035", "gfx1036", "gfx1100",
                                         "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151",
                                         "gfx1200", "gfx1201"));

}  // namespace
}  // namespace bm::sim::amd::test
