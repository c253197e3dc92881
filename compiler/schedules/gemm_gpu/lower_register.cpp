// GEMM by MMA whose fragments every sub-group loads into registers itself; see MatrixPlan and
// StmtKind::kMma.
#include <algorithm>
#include <array>
#include <bit>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_gpu/lowering.h"

namespace bm::compiler {
namespace {

/// Distance of a slot's rows or columns from those of work-items with g = 0.
int64_t slot_offset(const MatrixOperand& o, uint32_t slot) {
  if (o.is_k_major) return int64_t{slot} * o.slot;
  return int64_t{slot / o.together()} * o.slot * o.together() + slot % o.together();
}

/// Distance between adjacent rows or columns of a slot.
int64_t slot_step(const MatrixOperand& o) { return o.is_k_major ? 1 : o.together(); }

}  // namespace

Env bind_batch(Emitter& e, ValueId rest, Env env, BlockId block) {
  const std::vector<AxisPlan>& loops = e.schedule().loops;
  for (size_t i = 0; i < loops.size(); ++i) {
    const ValueId count = e.emit(loops[i].range->src[0], env);
    const ValueId digit = e.next_digit(&rest, count, i + 1 == loops.size());
    env = e.bound_at(env, loops[i].range, digit, block);
  }
  return env;
}

OuterLoops::OuterLoops(Emitter& e, const Node* reduce, const Node* k, Env env, BlockId block)
    : b_(e.builder()), env_(std::move(env)), body_(block) {
  for (size_t i = 1; i < reduce->src.size(); ++i) {
    const Node* range = reduce->src[i];
    if (range == k) continue;
    const ValueId end = e.emit(range->src[0], env_);
    open_.push_back({b_.open_loop(body_), end});
    body_ = open_.back().loop.body;
    env_ = e.bound_at(env_, range, open_.back().loop.index, body_);
  }
}

void OuterLoops::close() {
  for (size_t i = open_.size(); i-- > 0;)
    b_.close_loop(open_[i].loop, b_.index(0), open_[i].end, 1);
}

MmaGemm::Tile MmaGemm::tile_of_group(ValueId group, BlockId block) {
  const int64_t rows = p_.grid_m(), columns = p_.grid_n();
  Tile tile;
  tile.env = e_.unbound();
  ValueId rest = group;
  const bool has_more = !e_.schedule().loops.empty();
  const Expr in_band(b_, e_.next_digit(&rest, b_.index(p_.band), false));
  const Expr column(b_, e_.next_digit(&rest, b_.index(columns), false));
  const Expr band(b_, e_.next_digit(&rest, b_.index(rows / p_.band), !has_more));
  tile.env = bind_batch(e_, rest, std::move(tile.env), block);
  const ValueId item = b_.item(), sub_group = b_.shr(item, std::countr_zero(p_.sub_group));
  const ValueId lane = b_.bit_and(item, b_.index(p_.sub_group - 1));
  if (p_.info.is_part_low) {
    tile.lane_group = b_.shr(lane, std::countr_zero(p_.info.parts));
    tile.part = b_.bit_and(item, b_.index(p_.info.parts - 1));
  } else {
    tile.lane_group = b_.bit_and(item, b_.index(p_.info.slot - 1));
    tile.part = b_.shr(lane, std::countr_zero(p_.info.slot));
  }
  const Expr warp(b_, sub_group);
  const Expr warp_m = warp & (p_.warps_m - 1);
  const Expr warp_n(b_, b_.shr(sub_group, std::countr_zero(p_.warps_m)));
  const Expr row = band * p_.band + in_band;
  const Expr first_row = row * p_.block_m();
  const Expr own_row = warp_m * p_.left.rows();
  tile.row = Expr(first_row + own_row);
  const Expr first_column = column * p_.block_n();
  const Expr own_column = warp_n * p_.right.rows();
  tile.column = Expr(first_column + own_column);
  tile.first_row = first_row;
  tile.own_row = own_row;
  tile.first_column = first_column;
  tile.own_column = own_column;
  return tile;
}

void RegisterGemm::bind_tile(Tile* tile, BlockId block) {
  const Expr lane_group(b_, tile->lane_group), part(b_, tile->part);
  const auto slots = [&](const MatrixOperand& o, ValueId first, std::vector<uint32_t>* out) {
    Offsets lines(e_, Expr(Expr(b_, first) + lane_group * slot_step(o)), block);
    for (uint32_t slot = 0; slot < o.slots; ++slot)
      out->push_back(lines.at(slot_offset(o, slot)).binding);
  };
  slots(p_.left, tile->row, &tile->left);
  slots(p_.right, tile->column, &tile->right);
  const bool is_paired = p_.info.row_step == 0;
  const MatrixOperand& moved = is_paired ? p_.right : p_.left;
  const Expr first(b_, is_paired ? tile->column : tile->row);
  const int64_t step = (is_paired ? 2 : p_.info.row_part) * slot_step(moved);
  Offsets results(e_, Expr(first + part * step), block);
  const auto result = [&](uint32_t slot, uint32_t number) {
    return results.at(slot_offset(moved, slot) + slot_step(moved) * number);
  };
  for (uint32_t slot = 0; slot < p_.left.slots; slot += p_.info.a_slots) {
    std::vector<Offsets::Position>& rows = tile->out_rows.emplace_back();
    for (uint32_t s = 0; s < p_.info.accumulators; ++s)
      rows.push_back(is_paired ? Offsets::Position{.binding = tile->left[slot + s / 2]}
                               : result(slot, s * p_.info.row_step));
  }
  for (uint32_t slot = 0; slot < p_.right.slots; ++slot) {
    std::vector<Offsets::Position>& columns = tile->out_columns.emplace_back();
    for (uint32_t s = 0; s < p_.info.accumulators; ++s)
      columns.push_back(!is_paired ? Offsets::Position{.binding = tile->right[slot]}
                        : s < 2    ? result(slot, s)
                                   : columns[s - 2]);
  }
  clear_accumulators(tile, block);
}

void MmaGemm::clear_accumulators(Tile* tile, BlockId block) {
  for (uint32_t i = 0; i < p_.left.slots / p_.info.a_slots * p_.right.slots; ++i)
    tile->accumulators.push_back(
        clear_registers(b_, block, {p_.info.sum, 1}, p_.info.accumulators).front());
}

ValueId MmaGemm::operands_aligned() {
  const ValueId a = b_.is_aligned(static_cast<int>(p_.left.load->imm));
  const ValueId b = b_.is_aligned(static_cast<int>(p_.right.load->imm));
  return b_.bit_and(a, b);
}

/// Four words of K for every slot: those of this work-item, which start at k + offset.
SlotWords RegisterGemm::fragments(const MatrixOperand& o, const std::vector<uint32_t>& slots,
                                  const Env& env, ValueId k, int64_t offset, BlockId block,
                                  bool is_aligned) {
  const auto param = static_cast<int>(o.load->imm);
  const Node* range = p_.k;
  const uint32_t per_load = o.per_load(), per_word = per_load / 4;
  const uint32_t count = o.is_k_major ? 4 : o.together() / per_word;
  const auto load = [&](uint32_t slot, uint32_t at) {
    const ValueId index =
        e_.emit(o.load->src[0], e_.bound(e_.bound(env, o.along, slots[slot]), range, at));
    const ValueId words = b_.words(param, count, index, is_aligned);
    std::vector<ValueId> out;
    for (uint32_t w = 0; w < count; ++w) out.push_back(b_.extract(words, w));
    return out;
  };
  Offsets steps(e_, k, block);
  const auto at_k = [&](int64_t r) { return steps.at(offset + r).binding; };
  SlotWords out;
  if (o.is_k_major) {
    for (uint32_t slot = 0; slot < o.slots; ++slot) out.push_back(load(slot, at_k(0)));
    return out;
  }
  // Rows of memory hold one step of K: those of adjacent steps are packed into words.
  const auto half = [&](ValueId word, uint32_t from, uint32_t to) {
    if (from == to)
      return b_.bit_and(word, b_.constant({DType::kU32, 1}, to ? 0xffff0000 : 0xffff));
    return to ? b_.shl(word, 16) : b_.shr(word, 16);
  };
  for (uint32_t group = 0; group < o.slots; group += o.together()) {
    SlotWords rows;
    for (uint32_t r = 0; r < per_load; ++r) rows.push_back(load(group, at_k(r)));
    for (uint32_t slot = 0; slot < o.together(); ++slot) {
      std::vector<ValueId> words;
      for (uint32_t w = 0; w < 4; ++w) {
        if (per_word == 1) {
          words.push_back(rows[w][slot]);
          continue;
        }
        const ValueId low = half(rows[2 * w][slot / 2], slot % 2, 0);
        words.push_back(b_.bit_or(low, half(rows[2 * w + 1][slot / 2], slot % 2, 1)));
      }
      out.push_back(std::move(words));
    }
  }
  return out;
}

void RegisterGemm::multiply_tiles(const Tile& tile, BlockId block, bool is_aligned) {
  OuterLoops outer(e_, p_.reduce, p_.k, tile.env, block);
  const Env& env = outer.env();
  const Builder::Loop loop = b_.open_loop(outer.body());
  const Expr first(b_, loop.index), part(b_, tile.part);
  const Expr k = p_.info.parts > 1 ? Expr(first + part * p_.left.per_load()) : first;
  // Words of every slot, all steps of K of an iteration one after the other.
  SlotWords left(p_.left.slots), right(p_.right.slots);
  const auto append = [](SlotWords* all, const SlotWords& step_words) {
    for (size_t slot = 0; slot < step_words.size(); ++slot)
      (*all)[slot].insert((*all)[slot].end(), step_words[slot].begin(), step_words[slot].end());
  };
  for (uint32_t c = 0; c < p_.k_steps; ++c) {
    const int64_t offset = c * p_.k_step();
    append(&left, fragments(p_.left, tile.left, env, k, offset, loop.body, is_aligned));
    append(&right, fragments(p_.right, tile.right, env, k, offset, loop.body, is_aligned));
  }
  contract_mma(b_, loop.body, p_.info, tile.accumulators, left, right);
  b_.close_loop(loop, b_.index(0), b_.index(p_.k->src[0]->imm), p_.tile_k());
  outer.close();
}

void RegisterGemm::store_tile(const Tile& tile, BlockId block) {
  Epilogue out(e_, p_.reduce);
  const auto keep = [&](uint32_t i, uint32_t j, uint32_t s) {
    const Env row = e_.bound(tile.env, p_.left.along, tile.out_rows[i][s].binding);
    out.add(e_.bound(row, p_.right.along, tile.out_columns[j][s].binding),
            b_.read(block, tile.accumulators[i * p_.right.slots + j] + s));
  };
  // Row after row.
  const uint32_t each = p_.info.row_step == 0 ? 2 : 1;  // accumulators side by side in one row
  for (uint32_t i = 0; i < tile.out_rows.size(); ++i)
    for (uint32_t s = 0; s < p_.info.accumulators; s += each)
      for (uint32_t j = 0; j < p_.right.slots; ++j)
        for (uint32_t e = 0; e < each; ++e) keep(i, j, s + e);
  out.store(block);
}

void lower_register_gemm(Emitter& e) { RegisterGemm(e).run(); }

void RegisterGemm::run() {
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  Tile tile = tile_of_group(groups.index, groups.body);
  bind_tile(&tile, groups.body);
  // Loads of 16 bytes need params that start at a multiple of them; memory that a program was given
  // may not.
  const ValueId is_aligned = operands_aligned();
  const ValueId is_not = b_.negated(is_aligned);
  const BlockId fast = b_.open_block(groups.body);
  multiply_tiles(tile, fast, true);
  b_.close_if(fast, is_aligned);
  const BlockId slow = b_.open_block(groups.body);
  multiply_tiles(tile, slow, false);
  b_.close_if(slow, is_not);
  store_tile(tile, groups.body);
  b_.close_groups(groups, 0, kNone);
}

}  // namespace bm::compiler
