#pragma once
// Operation names and what executes them; one table a file, found by name.

#include <span>
#include <string_view>

#include "tests/sim/amd/exec/wave.h"

namespace bm::sim::amd {

struct Semantics {
  std::string_view name;
  Handler run;
};

std::span<const Semantics> scalar_integer_ops();
std::span<const Semantics> scalar_float_ops();
std::span<const Semantics> scalar_control_ops();
std::span<const Semantics> scalar_memory_ops();
std::span<const Semantics> vector_float_ops();
std::span<const Semantics> vector_half_ops();
std::span<const Semantics> vector_double_ops();
std::span<const Semantics> vector_integer_ops();
std::span<const Semantics> vector_convert_ops();
std::span<const Semantics> vector_compare_ops();
std::span<const Semantics> vector_packed_ops();
std::span<const Semantics> vector_lane_ops();
std::span<const Semantics> matrix_ops();
std::span<const Semantics> mfma_ops();
std::span<const Semantics> lds_lane_ops();

/// Executes a VOPD whose halves are Step::x and Step::y.
void run_dual(Wave& w, const Step& in);
/// Compares have rules in their names instead of rows.
Handler compare_handler(std::string_view name);
/// The name that carries the semantics, RDNA3's: RDNA4 renamed some, RDNA2 had others.
std::string_view canonical_name(const OpcodeRow& row);
/// What executes a row, and what it wants to know of it. Null: no semantics.
struct Bound {
  Handler run = nullptr;
  const void* detail = nullptr;
};
Bound memory_handler(const OpcodeRow& row);
Bound handler_for(const OpcodeRow& row);
/// Fills in sources that the encoding implies: the destination of v_fmac, literals of v_fmamk.
void bind_operands(Step& step);

}  // namespace bm::sim::amd
