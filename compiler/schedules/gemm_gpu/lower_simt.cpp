// SIMT GEMM through shared memory: a work-group stages tiles of A and B, step by step along K, and
// every work-item multiplies its share of them; see StagedPlan.
#include <array>
#include <bit>
#include <optional>
#include <span>

#include "compiler/schedules/gemm_gpu/lowering.h"

namespace bm::compiler {
namespace {

/// Elements that one access of shared memory takes.
uint32_t quad(const Node* n) { return 16 / static_cast<uint32_t>(item_size(n->dtype)); }

/// Distance of a work-item's result `i` from its first: whole accesses are spread over the tile, so
/// that adjacent work-items read adjacent ones.
int64_t spread_out(const StagedOperand& o, uint32_t i) {
  const uint32_t width = quad(o.value), parts = o.per_item / width;
  return int64_t{i / width} * (o.tile / parts) + i % width;
}

}  // namespace

void SimtGemm::tile_of_group(ValueId group, BlockId block) {
  s_.env = e_.unbound();
  ValueId rest = group;
  const ValueId column = e_.next_digit(&rest, b_.index(p_.right.tiles()), false);
  const ValueId row = e_.next_digit(&rest, b_.index(p_.left.tiles()), e_.schedule().loops.empty());
  s_.env = bind_batch(e_, rest, std::move(s_.env), block);
  s_.row = Expr(Expr(b_, row) * p_.left.tile);
  s_.column = Expr(Expr(b_, column) * p_.right.tile);
  const uint32_t across = p_.right.tile / p_.right.per_item, width = quad(p_.reduce);
  const Expr item(b_, b_.item());
  s_.item_row = Expr((item >> std::countr_zero(across)) * width);
  s_.item_column = Expr((item & (across - 1)) * width);
  s_.left = b_.add_local(p_.reduce->dtype, p_.left.row() * p_.steps);
  s_.right = b_.add_local(p_.reduce->dtype, p_.right.row() * p_.steps);
}

/// This work-item's share of a factor, and where it goes. Adjacent work-items take what is
/// adjacent in memory.
void SimtGemm::add_share(const StagedOperand& o, bool is_left, const Env& env, BlockId block,
                         std::vector<Staged>* out) {
  const uint32_t items = p_.items();
  // Element e = item + n·items of the factor, counted along `inner` first.
  const uint32_t inner = o.is_k_major ? p_.steps : o.tile;
  const Expr item(b_, b_.item());
  const Expr low = item & (std::min(inner, items) - 1);
  const Expr high = item >> std::countr_zero(std::min(inner, items));
  const Expr &along_own = o.is_k_major ? high : low, &k_own = o.is_k_major ? low : high;
  // Rows beyond the matrix are not stored: the last one stands for them.
  Offsets along = lines(o.along, o.tile, b_.add(is_left ? s_.row : s_.column, along_own), block);
  const auto row = static_cast<int64_t>(o.row());
  const Expr at = k_own * row + along_own;
  for (uint32_t e = 0; e < o.tile * p_.steps; e += items) {
    const int64_t low_offset = e % inner, high_offset = e / inner;
    const int64_t along_offset = o.is_k_major ? high_offset : low_offset;
    const int64_t k_offset = o.is_k_major ? low_offset : high_offset;
    out->push_back({.operand = &o,
                    .array = is_left ? s_.left : s_.right,
                    .at = Expr(at + (k_offset * row + along_offset)),
                    .line = e_.bound(env, o.along, along.at(along_offset).binding),
                    .k_own = k_own,
                    .k_offset = k_offset});
  }
}

/// The elements of both factors from step `k` on. Those beyond K add nothing. `is_whole`: none is.
std::vector<ValueId> SimtGemm::load_shares(std::span<const Staged> shares, ValueId k, bool is_whole,
                                           BlockId block) {
  std::vector<ValueId> out;
  std::optional<Offsets> steps;
  const StagedOperand* of = nullptr;
  for (const Staged& share : shares) {
    const ValueId first = b_.add(k, share.k_own);
    if (share.operand != of)
      steps.emplace(is_whole ? Offsets(e_, first, block) : lines(p_.k, p_.steps, first, block));
    of = share.operand;
    const Offsets::Position step = steps->at(share.k_offset);
    ValueId value = e_.emit(of->value, e_.bound(share.line, p_.k, step.binding));
    if (step.exists != kNone) value = b_.select(step.exists, value, b_.constant(b_.type(value), 0));
    out.push_back(value);
  }
  return out;
}

/// Only the last steps may not be there: the others are loaded without comparisons.
std::vector<ValueId> SimtGemm::load_any_shares(std::span<const Staged> shares, ValueId k,
                                               BlockId block) {
  const int64_t extent = p_.k->src[0]->imm;
  if (extent % p_.steps == 0) return load_shares(shares, k, true, block);
  std::vector<uint32_t> registers;
  for (size_t i = 0; i < shares.size(); ++i)
    registers.push_back(b_.add_register({p_.reduce->dtype, 1}));
  const ValueId is_whole = b_.lt(k, b_.index(extent - p_.steps + 1));
  for (const bool has_all : {true, false})
    e_.branch(has_all ? is_whole : b_.negated(is_whole), block, [&](BlockId inside) {
      const std::vector<ValueId> values = load_shares(shares, k, has_all, inside);
      for (size_t i = 0; i < values.size(); ++i) b_.assign(inside, registers[i], values[i]);
    });
  std::vector<ValueId> out;
  for (const uint32_t r : registers) out.push_back(b_.read(block, r));
  return out;
}

Offsets SimtGemm::lines(const Node* range, uint32_t tile, ValueId first, BlockId block) {
  const Node* extent = range->src[0];
  if (extent->is_const() && extent->imm % tile == 0) return {e_, first, block};
  return {e_, first, block, e_.emit(extent, s_.env), true};
}

void SimtGemm::multiply(BlockId block) {
  const uint32_t width = quad(p_.reduce);
  std::vector<ValueId> accumulators;
  for (const uint32_t reg : s_.accumulators) accumulators.push_back(b_.read(block, reg));
  const auto load = [&](const StagedOperand& o, uint32_t array, ValueId own, uint32_t step) {
    std::vector<ValueId> out;
    for (uint32_t i = 0; i < o.per_item; i += width) {
      const int64_t offset = int64_t{step} * static_cast<int64_t>(o.row()) + spread_out(o, i);
      const ValueId words = b_.local_load(block, array, b_.add(own, b_.index(offset)), width);
      for (uint32_t lane = 0; lane < width; ++lane) out.push_back(b_.extract(words, lane));
    }
    return out;
  };
  for (uint32_t step = 0; step < p_.steps; ++step) {
    const std::vector<ValueId> left = load(p_.left, s_.left, s_.item_row, step);
    const std::vector<ValueId> right = load(p_.right, s_.right, s_.item_column, step);
    contract_fma(b_, left, right, accumulators);
  }
  for (size_t i = 0; i < accumulators.size(); ++i)
    b_.assign(block, s_.accumulators[i], accumulators[i]);
}

void SimtGemm::store_results(BlockId block) {
  const Confined confined(e_, block);
  const auto positions = [&](const StagedOperand& o, ValueId first, ValueId own) {
    Offsets all = lines(o.along, o.tile, b_.add(first, own), block);
    std::vector<Offsets::Position> out;
    for (uint32_t i = 0; i < o.per_item; ++i) out.push_back(all.at(spread_out(o, i)));
    return out;
  };
  const std::vector<Offsets::Position> rows = positions(p_.left, s_.row, s_.item_row),
                                       columns = positions(p_.right, s_.column, s_.item_column);
  bool is_cut = false;
  Epilogue out(e_, p_.reduce);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < columns.size(); ++j) {
      ValueId gate = rows[i].exists == kNone ? columns[j].exists : rows[i].exists;
      if (rows[i].exists != kNone && columns[j].exists != kNone)
        gate = b_.bit_and(rows[i].exists, columns[j].exists);
      is_cut = is_cut || gate != kNone;
      const Env row = e_.bound(s_.env, p_.left.along, rows[i].binding);
      out.add(e_.bound(row, p_.right.along, columns[j].binding),
              b_.read(block, s_.accumulators[i * columns.size() + j]), gate);
    }
  if (is_cut)
    out.store_pairs(block, p_.right.along, false);
  else
    out.store(block);
}

void lower_simt_gemm(Emitter& e) { SimtGemm(e).run(); }

void SimtGemm::run() {
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  tile_of_group(groups.index, groups.body);
  // Extents that are known at launch only leave some groups without a tile.
  ValueId has_tile = kNone;
  for (const StagedOperand* o : {&p_.left, &p_.right}) {
    if (o->along->src[0]->is_const()) continue;
    const ValueId end = e_.emit(o->along->src[0], s_.env);
    const ValueId is_inside = b_.lt(o == &p_.left ? s_.row : s_.column, end);
    has_tile = has_tile == kNone ? is_inside : b_.bit_and(has_tile, is_inside);
  }
  const BlockId body = has_tile == kNone ? groups.body : b_.open_block(groups.body);
  s_.accumulators =
      clear_registers(b_, body, {p_.reduce->dtype, 1}, p_.left.per_item * p_.right.per_item);
  OuterLoops outer(e_, p_.reduce, p_.k, s_.env, body);
  const Env& env = outer.env();
  const Builder::Loop loop = b_.open_loop(outer.body());
  std::vector<Staged> shares;
  add_share(p_.left, true, env, loop.body, &shares);
  add_share(p_.right, false, env, loop.body, &shares);
  const std::vector<ValueId> values = load_any_shares(shares, loop.index, loop.body);
  b_.barrier(loop.body);  // all have read what was there
  for (size_t i = 0; i < shares.size(); ++i)
    b_.local_store(loop.body, shares[i].array, shares[i].at, values[i]);
  b_.barrier(loop.body);
  multiply(loop.body);
  b_.close_loop(loop, b_.index(0), b_.index(p_.k->src[0]->imm), p_.steps);
  outer.close();

  store_results(body);
  if (has_tile != kNone) b_.close_if(body, has_tile);
  b_.close_groups(groups, 0, kNone);
}

}  // namespace bm::compiler
