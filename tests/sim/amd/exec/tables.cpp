#include "tests/sim/amd/exec/tables.h"

#include <string>
#include <unordered_map>

namespace bm::sim::amd {
namespace {

struct Rename {
  std::string_view now, before;
};
// gfx12 renamed these without changing them.
constexpr Rename kRenames[] = {
    {"s_add_co_u32", "s_add_u32"},         {"s_sub_co_u32", "s_sub_u32"},
    {"s_add_co_i32", "s_add_i32"},         {"s_sub_co_i32", "s_sub_i32"},
    {"s_add_co_ci_u32", "s_addc_u32"},     {"s_sub_co_ci_u32", "s_subb_u32"},
    {"s_addk_co_i32", "s_addk_i32"},       {"v_mad_co_u64_u32", "v_mad_u64_u32"},
    {"v_mad_co_i64_i32", "v_mad_i64_i32"}, {"v_cvt_pk_rtz_f16_f32", "v_cvt_pk_rtz_f16_f32"},
};
constexpr Rename kDualHalves[] = {
    {"v_dual_max_num_f32", "v_max_f32"},
    {"v_dual_min_num_f32", "v_min_f32"},
};

using Index = std::unordered_map<std::string_view, Handler>;

const Index& index() {
  static const Index instance = [] {
    Index i;
    for (const auto table :
         {scalar_integer_ops(), scalar_float_ops(), scalar_control_ops(), scalar_memory_ops(),
          vector_float_ops(), vector_half_ops(), vector_double_ops(), vector_integer_ops(),
          vector_convert_ops(), vector_packed_ops(), vector_lane_ops(), matrix_ops(), mfma_ops(),
          lds_lane_ops()})
      for (const Semantics& row : table) i.emplace(row.name, row.run);
    return i;
  }();
  return instance;
}

Handler find(const std::string& name) {
  const auto found = index().find(name);
  return found == index().end() ? nullptr : found->second;
}

bool is_memory(Format format) { return format >= Format::kDs; }

}  // namespace

std::string_view canonical_name(const OpcodeRow& row) {
  const std::string_view name = row.meaning();
  for (const Rename& r : kRenames)
    if (r.now == name) return r.before;
  return name;
}

Bound handler_for(const OpcodeRow& row) {
  std::string name(canonical_name(row));
  if (row.format == Format::kVopdX || row.format == Format::kVopdY) {
    for (const Rename& r : kDualHalves)
      if (r.now == row.name) return {find(std::string(r.before)), nullptr};
    name.erase(2, 5);  // v_dual_add_f32 is v_add_f32
  }
  if (Handler h = find(name)) return {h, nullptr};
  if (Handler h = compare_handler(name)) return {h, nullptr};
  if (is_memory(row.format)) return memory_handler(row);
  // "num" says which of IEEE's minima is meant; gfx11 has but that one.
  if (const size_t at = name.find("_num_"); at != std::string::npos) name.erase(at, 4);
  return {find(name), nullptr};
}

bool is_executable(const OpcodeRow& row) { return handler_for(row).run != nullptr; }

void bind_operands(Step& step) {
  const std::string_view name = step.row->meaning();
  const Slot literal{kLiteral, 1, '1'};
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (!name.starts_with("v_")) return;
  if ((has("_fmac_") || has("_dot4c_")) && step.src[2].dwords == 0) {
    step.src[2] = step.dst;
    if (name == "v_pk_fmac_f16") step.op_sel_hi = 7;
    // The addend is the half of the register that is written.
    else if (step.op_sel & 8)
      step.op_sel |= 4;
  } else if (has("_fmamk_")) {
    step.src[2] = step.src[1];
    step.src[1] = literal;
    // With the register goes the half of it.
    step.op_sel = static_cast<uint8_t>((step.op_sel & 9) | (step.op_sel & 2) << 1);
  } else if (has("_fmaak_")) {
    step.src[2] = literal;
  }
}

}  // namespace bm::sim::amd
