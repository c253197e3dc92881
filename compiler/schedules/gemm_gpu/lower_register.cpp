// Products of matrices on instructions that a sub-group executes together; see MatrixPlan and
// StmtKind::kMatrix.
#include <algorithm>
#include <array>
#include <bit>

#include "compiler/schedules/gemm_gpu/lower_register.h"

namespace bm::compiler {

namespace {

/// Distance of a slot's rows or columns from those of work-items with g = 0.
int64_t slot_offset(const MatrixOperand& o, uint32_t slot) {
  if (o.is_deep) return int64_t{slot} * o.slot;
  return int64_t{slot / o.together()} * o.slot * o.together() + slot % o.together();
}

/// Distance between neighbouring rows or columns of a slot.
int64_t slot_step(const MatrixOperand& o) { return o.is_deep ? 1 : o.together(); }

}  // namespace

Emitter::Tile Emitter::place_tile(ValueId group, BlockId block) {
  const MatrixPlan& p = *schedule_.matrix();
  const int64_t rows = p.groups_down(), columns = p.groups_across();
  Tile tile;
  tile.env = Env(ranges_.size(), 0);
  ValueId rest = group;
  const bool has_more = !schedule_.loops.empty();
  const ValueId in_band = next_digit(&rest, b_.index(p.band), false);
  const ValueId column = next_digit(&rest, b_.index(columns), false);
  const ValueId band = next_digit(&rest, b_.index(rows / p.band), !has_more);
  for (size_t i = 0; i < schedule_.loops.size(); ++i) {
    const Node* range = schedule_.loops[i].range;
    const ValueId count = emit(range->src[0], tile.env);
    const ValueId digit = next_digit(&rest, count, i + 1 == schedule_.loops.size());
    tile.env = bound(tile.env, range, make_bindings(digit, block, 0, 1, 0));
  }
  const ValueId item = b_.item(), sub_group = b_.shr(item, std::countr_zero(p.sub_group));
  const ValueId lane = b_.bit_and(item, b_.index(p.sub_group - 1));
  if (p.info.is_part_low) {
    tile.place = b_.shr(lane, std::countr_zero(p.info.parts));
    tile.part = b_.bit_and(item, b_.index(p.info.parts - 1));
  } else {
    tile.place = b_.bit_and(item, b_.index(p.info.slot - 1));
    tile.part = b_.shr(lane, std::countr_zero(p.info.slot));
  }
  const ValueId tile_down = b_.bit_and(sub_group, b_.index(p.tiles_down - 1));
  const ValueId tile_across = b_.shr(sub_group, std::countr_zero(p.tiles_down));
  const ValueId row = b_.add(b_.mul(band, b_.index(p.band)), in_band);
  tile.first_row = b_.mul(row, b_.index(p.down()));
  tile.own_row = b_.mul(tile_down, b_.index(p.left.rows()));
  tile.row = b_.add(tile.first_row, tile.own_row);
  tile.first_column = b_.mul(column, b_.index(p.across()));
  tile.own_column = b_.mul(tile_across, b_.index(p.right.rows()));
  tile.column = b_.add(tile.first_column, tile.own_column);
  return tile;
}

void Emitter::bind_tile(Tile* tile, BlockId block) {
  const MatrixPlan& p = *schedule_.matrix();
  // Bindings of slots, one after the other from where this work-item starts.
  const auto bind = [&](ValueId base, int64_t offset, uint32_t* origin) {
    const uint32_t made = make_bindings(base, block, offset, 1, *origin);
    *origin = bindings_[made].origin;
    return made;
  };
  const auto slots = [&](const MatrixOperand& o, ValueId first, std::vector<uint32_t>* out) {
    const ValueId base = b_.add(first, b_.mul(tile->place, b_.index(slot_step(o))));
    uint32_t origin = 0;
    for (uint32_t slot = 0; slot < o.slots; ++slot)
      out->push_back(bind(base, slot_offset(o, slot), &origin));
  };
  slots(p.left, tile->row, &tile->left);
  slots(p.right, tile->column, &tile->right);
  const bool is_paired = p.info.row_step == 0;
  const MatrixOperand& moved = is_paired ? p.right : p.left;
  const int64_t part_step = is_paired ? 2 : p.info.row_part;
  const ValueId step = b_.index(part_step * slot_step(moved));
  const ValueId base = b_.add(is_paired ? tile->column : tile->row, b_.mul(tile->part, step));
  uint32_t origin = 0;
  const auto result = [&](uint32_t slot, uint32_t number) {
    return bind(base, slot_offset(moved, slot) + slot_step(moved) * number, &origin);
  };
  for (uint32_t slot = 0; slot < p.left.slots; slot += p.info.left_slots) {
    std::vector<uint32_t>& rows = tile->out_rows.emplace_back();
    for (uint32_t s = 0; s < p.info.sums; ++s)
      rows.push_back(is_paired ? tile->left[slot + s / 2] : result(slot, s * p.info.row_step));
  }
  for (uint32_t slot = 0; slot < p.right.slots; ++slot) {
    std::vector<uint32_t>& columns = tile->out_columns.emplace_back();
    for (uint32_t s = 0; s < p.info.sums; ++s)
      columns.push_back(!is_paired ? tile->right[slot] : s < 2 ? result(slot, s) : columns[s - 2]);
  }
  clear_sums(tile, block);
}

void Emitter::clear_sums(Tile* tile, BlockId block) {
  const MatrixPlan& p = *schedule_.matrix();
  const Type type{p.info.sum, 1};
  for (uint32_t i = 0; i < p.left.slots / p.info.left_slots * p.right.slots; ++i)
    for (uint32_t c = 0; c < p.info.sums; ++c) {
      const uint32_t reg = b_.add_register(type);
      if (c == 0) tile->sums.push_back(reg);
      b_.assign(block, reg, b_.constant(type, 0));
    }
}

/// Four words of depth for every slot: those of this work-item, which start at depth + offset.
std::vector<std::vector<ValueId>> Emitter::fragments(const MatrixOperand& o,
                                                     const std::vector<uint32_t>& slots,
                                                     const Env& env, ValueId depth, int64_t offset,
                                                     BlockId block, bool is_aligned) {
  const auto param = static_cast<int>(o.load->imm);
  const Node* range = schedule_.matrix()->depth;
  const uint32_t per_load = o.per_load(), per_word = per_load / 4;
  const uint32_t count = o.is_deep ? 4 : o.together() / per_word;
  const auto load = [&](uint32_t slot, uint32_t at) {
    const ValueId index = emit(o.load->src[0], bound(bound(env, o.along, slots[slot]), range, at));
    const ValueId words = b_.words(param, count, index, is_aligned);
    std::vector<ValueId> out;
    for (uint32_t w = 0; w < count; ++w) out.push_back(b_.extract(words, w));
    return out;
  };
  const uint32_t origin = make_bindings(depth, block, 0, 1, 0);
  const auto at_depth = [&](int64_t r) {
    return make_bindings(depth, block, offset + r, 1, origin);
  };
  std::vector<std::vector<ValueId>> out;
  if (o.is_deep) {
    for (uint32_t slot = 0; slot < o.slots; ++slot) out.push_back(load(slot, at_depth(0)));
    return out;
  }
  // Rows of memory are one number deep: those of neighbouring depths are put together.
  const auto half = [&](ValueId word, uint32_t from, uint32_t to) {
    if (from == to)
      return b_.bit_and(word, b_.constant({DType::kU32, 1}, to ? 0xffff0000 : 0xffff));
    return to ? b_.shl(word, 16) : b_.shr(word, 16);
  };
  for (uint32_t group = 0; group < o.slots; group += o.together()) {
    std::vector<std::vector<ValueId>> rows;
    for (uint32_t r = 0; r < per_load; ++r) rows.push_back(load(group, at_depth(r)));
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

void Emitter::issue_products(const Tile& tile, BlockId block,
                             const std::vector<std::vector<ValueId>>& left,
                             const std::vector<std::vector<ValueId>>& right) {
  const MatrixPlan& p = *schedule_.matrix();
  const uint32_t each = p.info.words(), together = p.info.left_slots;
  for (uint32_t w = 0; w < 4 * p.chunks; w += each)
    for (uint32_t i = 0; i < p.left.slots / together; ++i)
      for (uint32_t j = 0; j < p.right.slots; ++j) {
        std::vector<ValueId> operands;
        for (uint32_t h = 0; h < each; ++h)
          for (uint32_t row = 0; row < together; ++row)
            operands.push_back(left[together * i + row][w + h]);
        for (uint32_t h = 0; h < each; ++h) operands.push_back(right[j][w + h]);
        b_.matrix(block, p.info, tile.sums[i * p.right.slots + j], std::move(operands));
      }
}

void Emitter::multiply_tiles(const Tile& tile, BlockId block, bool is_aligned) {
  const MatrixPlan& p = *schedule_.matrix();
  struct Open {
    Builder::Loop loop;
    ValueId end;
  };
  std::vector<Open> open;
  Env env = tile.env;
  for (size_t i = 1; i < p.reduce->src.size(); ++i) {
    const Node* range = p.reduce->src[i];
    if (range == p.depth) continue;
    const ValueId end = emit(range->src[0], env);
    open.push_back({b_.open_loop(block), end});
    block = open.back().loop.body;
    env = bound(env, range, make_bindings(open.back().loop.index, block, 0, 1, 0));
  }
  const Builder::Loop loop = b_.open_loop(block);
  ValueId depth = loop.index;
  if (p.info.parts > 1) depth = b_.add(depth, b_.mul(tile.part, b_.index(p.left.per_load())));
  // Words of every slot, all chunks of a trip one after the other.
  std::vector<std::vector<ValueId>> left(p.left.slots), right(p.right.slots);
  const auto append = [](std::vector<std::vector<ValueId>>* all,
                         const std::vector<std::vector<ValueId>>& chunk) {
    for (size_t slot = 0; slot < chunk.size(); ++slot)
      (*all)[slot].insert((*all)[slot].end(), chunk[slot].begin(), chunk[slot].end());
  };
  for (uint32_t c = 0; c < p.chunks; ++c) {
    const int64_t offset = c * p.chunk();
    append(&left, fragments(p.left, tile.left, env, depth, offset, loop.body, is_aligned));
    append(&right, fragments(p.right, tile.right, env, depth, offset, loop.body, is_aligned));
  }
  issue_products(tile, loop.body, left, right);
  b_.close_loop(loop, b_.index(0), b_.index(p.depth->src[0]->imm), p.trip());
  for (size_t i = open.size(); i-- > 0;) b_.close_loop(open[i].loop, b_.index(0), open[i].end, 1);
}

void Emitter::store_tile(const Tile& tile, BlockId block) {
  const MatrixPlan& p = *schedule_.matrix();
  Instances instances;
  const auto keep = [&](uint32_t i, uint32_t j, uint32_t s) {
    const Env row = bound(tile.env, p.left.along, tile.out_rows[i][s]);
    instances.push_back(bound(row, p.right.along, tile.out_columns[j][s]));
    memo_[key(p.reduce, instances.back())] = b_.read(block, tile.sums[i * p.right.slots + j] + s);
  };
  // Row after row.
  const uint32_t each = p.info.row_step == 0 ? 2 : 1;  // sums side by side in one row
  for (uint32_t i = 0; i < tile.out_rows.size(); ++i)
    for (uint32_t s = 0; s < p.info.sums; s += each)
      for (uint32_t j = 0; j < p.right.slots; ++j)
        for (uint32_t e = 0; e < each; ++e) keep(i, j, s + e);
  emit_stores(block, instances, kernel_.stores);
}

void Emitter::lower_matrix(BlockId root) {
  const MatrixPlan& p = *schedule_.matrix();
  if (p.pipe) return lower_pipe(root);
  const Builder::Loop groups = b_.open_loop(root, LoopKind::kGroup);
  Tile tile = place_tile(groups.index, groups.body);
  bind_tile(&tile, groups.body);
  // Loads of 16 bytes need params that start at a multiple of them; memory that a program was given
  // may not.
  const ValueId left = b_.is_aligned(static_cast<int>(p.left.load->imm));
  const ValueId right = b_.is_aligned(static_cast<int>(p.right.load->imm));
  const ValueId is_aligned = b_.bit_and(left, right);
  const ValueId is_not = b_.raw(Op::kNot, DType::kBool, {is_aligned});
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
