// The decoder against LLVM's: validity, length and text of random words and of the snippets. LLVM
// 19 is opened at run time; without it the tests skip.

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <random>

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
  explicit Oracle(const char* chip) {
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
      context_ = create("amdgcn-amd-amdhsa", chip, "", nullptr, 0, nullptr, nullptr);
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
    "s_version|atc_probe|movrel|s_rfe|cube|mullit|lerp|sad|cdbg|ttrace|perflevel|setkill|"
    "s_wait_event|sendmsghalt|endpgm_saved|gl1|ds_param|mskor|wrap_rtn|condxchg|alloc_vgpr|"
    "barrier_init|barrier_join|barrier_leave|wakeup_barrier|get_barrier_state|"
    "barrier_signal_isfirst|gds|lds_direct|bvhcnt|lds_param| tfe|invalid dpp_ctrl|buffer_gl|"
    "prefetch|ds_direct|ds_sub_gs|ds_add_gs|sext(|v_mov_b16";
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
constexpr std::string_view kTooKind[] = {"buffer",      "flat",   "global", "scratch",
                                         "v_readfirst", "v_cmp_", "v_dot"};
bool is_too_kind(std::string_view text) {
  return std::ranges::any_of(kTooKind, [&](std::string_view p) { return text.starts_with(p); });
}

/// A word that carries an opcode of the tables, at random elsewhere.
uint32_t seeded(const OpcodeRow& r, Isa isa, uint32_t w, std::mt19937& random) {
  const uint32_t c = r.code;
  const bool is12 = isa == Isa::kGfx12;
  const auto with = [&](uint32_t mask, uint32_t value) { return (w & ~mask) | value; };
  switch (r.format) {
    case Format::kSop2: return with(0xff800000, 0x80000000 | c << 23);
    case Format::kSopk: return with(0xff800000, 0xb0000000 | c << 23);
    case Format::kSop1: return with(0xff80ff00, 0xbe800000 | c << 8);
    case Format::kSopc: return with(0xffff0000, 0xbf000000 | c << 16);
    case Format::kSopp: return with(0xffff0000, 0xbf800000 | c << 16);
    case Format::kSmem:
      return is12 ? with(0xfe1fe000, 0xf4000000 | c << 13) : with(0xffff8000, 0xf4000000 | c << 18);
    case Format::kVop1: return with(0xfe01fe00, 0x7e000000 | c << 9);
    case Format::kVop2: return with(0xfe000000, c << 25);
    case Format::kVopc: return with(0xfffe0000, 0x7c000000 | c << 17);
    case Format::kVop3: return with(random() % 2 ? 0xffffff00 : 0xffff0000, 0xd4000000 | c << 16);
    case Format::kVop3P:
      return with(random() % 2 ? 0xffffff00 : 0xffff0000,
                  0xcc000000 | c << 16 | (random() % 2 ? 0x4000 : 0));
    case Format::kVopdX: return with(0xffc00000, 0xc8000000 | c << 22);
    case Format::kVopdY: return with(0xfc3e0000, 0xc8000000 | c << 17);
    case Format::kDs: return with(0xffff0000, 0xd8000000 | c << 18);
    case Format::kFlat:
    case Format::kScratch:
    case Format::kGlobal: {
      const uint32_t segment = r.format == Format::kFlat ? 0 : r.format == Format::kScratch ? 1 : 2;
      return is12 ? with(0xffffff80, 0xec000000 | segment << 24 | c << 14)
                  : with(0xffff0000, 0xdc000000 | segment << 16 | c << 18);
    }
    case Format::kBuffer:
      return is12 ? with(0xffffff80, 0xc4000000 | c << 14) : with(0xffff8000, 0xe0000000 | c << 18);
  }
  return w;
}

/// What differs about these words; empty if nothing does or it is not ours to say.
std::string difference(const Oracle& oracle, Isa isa, std::span<const uint32_t> words) {
  auto [bytes, text] = oracle(words);
  if (contains(text, "Warning") || contains(text, "/*")) bytes = 0;  // LLVM decodes, then objects
  const auto ours = decode(words, isa);
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
  if (!ours) return is_too_kind(theirs) ? "" : "refused: " + text;
  if (ours->bytes != bytes) return fmt::format("{} bytes of {}: {}", ours->bytes, bytes, text);
  const std::string said = normal(to_text(*ours, isa));
  return said == theirs ? "" : fmt::format("LLVM: {} — here: {}", theirs, said);
}

class Llvm : public testing::TestWithParam<const char*> {};

TEST_P(Llvm, DecodesRandomWordsAlike) {
  const Oracle oracle(GetParam());
  if (!oracle.is_here()) GTEST_SKIP() << "libLLVM-19 is not installed";
  const Isa isa = *isa_of(GetParam());
  std::mt19937 random(2026);
  const auto rows = opcode_rows();
  uint32_t agreed = 0, bad = 0;
  for (int i = 0; i < 40'000; ++i) {
    uint32_t words[5];
    for (uint32_t& w : words) w = static_cast<uint32_t>(random());
    if (i % 16) words[0] = seeded(rows[random() % rows.size()], isa, words[0], random);
    if (i % 2) words[1] = (words[1] & 0x07ffffff) | (i % 4 == 1 ? 0x18000000 : 0xf8000000);
    const std::string found = difference(oracle, isa, words);
    agreed += decode(words, isa).has_value();
    if (!found.empty() && ++bad <= 20)
      ADD_FAILURE() << fmt::format("{:08x} {:08x} {:08x}: {}", words[0], words[1], words[2], found);
  }
  EXPECT_EQ(bad, 0u);
  EXPECT_GT(agreed, 8'000u);
}

TEST(LlvmSnippets, AreWhatTheySay) {
  for (const auto& [isa, chip] : std::map<Isa, const char*>{
           {Isa::kGfx11, "gfx1100"}, {Isa::kGfx115, "gfx1150"}, {Isa::kGfx12, "gfx1201"}}) {
    const Oracle oracle(chip);
    if (!oracle.is_here()) GTEST_SKIP() << "libLLVM-19 is not installed";
    for (const Snippet& s : snippets()) {
      if (s.isa != isa) continue;
      EXPECT_EQ(difference(oracle, isa, s.words), "") << s.text;
      const auto [bytes, text] = oracle(s.words);
      EXPECT_EQ(normal(text).substr(0, normal(text).find(' ')),
                normal(std::string(s.text)).substr(0, normal(std::string(s.text)).find(' ')));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, Llvm,
                         testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150",
                                         "gfx1151", "gfx1200", "gfx1201"));

}  // namespace
}  // namespace bm::sim::amd::test
