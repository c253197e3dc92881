#include "tests/sim/amd/exec/matrix_hazards.h"

#include <algorithm>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

/// From a VALU instruction to an MFMA that reads its result.
constexpr uint32_t kVectorStates = 2;

struct Passes {
  std::string_view shape;
  uint32_t narrow, single;  ///< of operands of 8 and 16 bits, of float32; 0: there is none
};
constexpr Passes kPasses[] = {
    {"_32x32x4_2b_", 16, 0}, {"_16x16x4_4b_", 8, 0}, {"_4x4x4_16b_", 2, 0}, {"_32x32x8_", 8, 0},
    {"_16x16x16_", 4, 0},    {"_32x32x16_", 8, 0},   {"_16x16x32_", 4, 0},  {"_32x32x1_2b_", 0, 16},
    {"_16x16x1_4b_", 0, 8},  {"_4x4x1_16b_", 0, 2},  {"_32x32x2_", 0, 16},  {"_16x16x4_", 0, 8},
};

bool is_vector_alu(const Instruction& in) {
  return in.format() >= Format::kVop1 && in.format() <= Format::kVop3P;
}

bool overlap(const Slot& a, const Slot& b) {
  return a.is_vgpr() && b.is_vgpr() && a.code < b.code + b.dwords && b.code < a.code + a.dwords;
}

}  // namespace

uint32_t MatrixHazards::states_of(const Instruction& in) {
  const std::string_view name = in.row->meaning();
  if (in.format() != Format::kMai || !name.starts_with("v_mfma_") || name.ends_with("_f64"))
    return 0;
  for (const Passes& p : kPasses) {
    if (name.find(p.shape) == std::string_view::npos) continue;
    const bool is_single = name.ends_with("_f32");
    const uint32_t passes = is_single ? p.single : p.narrow;
    return passes == 0 ? 0 : passes + (is_single ? 2 : 3);
  }
  return 0;
}

std::optional<std::string> MatrixHazards::problem(const Instruction& in, uint32_t states) const {
  if (writes_.empty()) return std::nullopt;
  const bool is_matrix = states != 0;
  for (const Write& w : writes_) {
    if (w.until <= now_) continue;
    const auto refuse = [&](std::string_view what) {
      return fmt::format("{} {} more wait states after {} wrote it", what, w.until - now_,
                         w.is_matrix ? "a matrix instruction" : "the VALU");
    };
    // Accumulators pass from one matrix instruction to the next by rules of their own.
    const int sources = is_matrix && w.is_matrix ? 2 : 3;
    for (int i = 0; i < sources; ++i)
      if ((w.is_matrix || is_matrix) && overlap(in.src[i], w.dst)) return refuse("read");
    if (w.is_matrix && is_vector_alu(in) && overlap(in.dst, w.dst)) return refuse("written");
  }
  return std::nullopt;
}

void MatrixHazards::issue(const Instruction& in, uint32_t states) {
  now_ += in.row->name == "s_nop" ? (in.imm & 15) + 1u : 1u;
  std::erase_if(writes_, [&](const Write& w) { return w.until <= now_; });
  if (states != 0)
    writes_.push_back({in.dst, now_ + states, true});
  else if (is_vector_alu(in) && in.dst.is_vgpr())
    writes_.push_back({in.dst, now_ + kVectorStates, false});
}

}  // namespace bm::sim::amd
