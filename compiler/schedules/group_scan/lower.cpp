// Scans (prefix sums) on GPUs in one pass: a work-item scans its elements, lanes of a sub-group and
// sub-groups of a group exchange what theirs give together, tiles hand it on in registers.
#include <bit>

#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/groups/lowering.h"

namespace bm::compiler {
namespace {

/// Partial results of sub-groups that are added up before they join the carry.
constexpr uint32_t kPlainPartials = 8;

/// What elements are combined in: 16-bit floats in float32, narrow integers in 32 bits.
DType scan_type(const Node* scan) {
  const DType t = scan->dtype;
  if (is_half_like(t)) return DType::kF32;
  if (item_size(t) >= 4) return t;
  return is_bool(t) || is_unsigned(t) ? DType::kU32 : DType::kI32;
}

class GroupScanLowering final : public GroupLowering {
 public:
  explicit GroupScanLowering(Emitter& e) : GroupLowering(e), p_(*e.schedule().group_scan()) {
    for (const ir::Store& s : e.kernel().stores) {
      const std::array roots{s.value};
      for (const Node* n : ir::topological(roots))
        if (n->op == Op::kScan && std::ranges::find(scans_, n) == scans_.end()) scans_.push_back(n);
    }
  }

 private:
  /// Elements of a work-item in one tile, by runs, and whether they are there (kNone: certainly).
  struct Tile {
    Instances elements;
    std::vector<ValueId> masks;
  };
  /// What this work-item's elements give, by run: the elements so far; those of work-items before
  /// it in its sub-group; and of all of these, which goes to the others.
  struct Partial {
    std::vector<ValueId> prefixes, before, all;
  };

  void lower_items(BlockId block, Instances instances, ValueId chunk) override;
  void lower_line(const Env& env, BlockId block);
  void lower_tile(const Env& env, ValueId start, BlockId block, bool is_only);
  Tile bind_tile(const Env& env, ValueId start, BlockId block);
  Partial scan_elements(const Node* scan, const Tile& tile, BlockId block);
  ValueId exchanged(ValueId value, uint32_t with, BlockId block);
  ValueId part() const;
  ValueId column() const;
  /// Long running sums in float32: what the additions so far have rounded away goes along.
  static bool is_compensated(const Node* scan) {
    return scan->reduce_op() == ir::ReduceOp::kSum && scan_type(scan) == DType::kF32;
  }
  struct Running {
    ValueId sum, lost = kNone;
  };
  Running added(const Node* scan, const Running& so_far, ValueId value);

  const ScanPlan& p_;
  std::vector<const Node*> scans_;
  std::vector<uint32_t> carries_;  // registers, by scan
  std::vector<uint32_t> losses_;   // of compensated ones; otherwise the carry itself
  std::vector<uint32_t> arrays_;   // shared, by scan
};

ValueId GroupScanLowering::part() const {
  if (p_.columns == 1) return b_.item();
  if (p_.is_part_low) return b_.bit_and(b_.item(), b_.index(p_.parts - 1));
  return b_.shr(b_.item(), std::countr_zero(p_.columns));
}

ValueId GroupScanLowering::column() const {
  if (p_.columns == 1) return b_.index(0);
  if (!p_.is_part_low) return b_.bit_and(b_.item(), b_.index(p_.columns - 1));
  return b_.shr(b_.item(), std::countr_zero(p_.parts));
}

void GroupScanLowering::lower_items(BlockId block, Instances instances, ValueId /*chunk*/) {
  Env env = instances[0];
  if (p_.beside != nullptr) {
    const Node* extent = p_.beside->src[0];
    const Expr at = Expr(b_, e_.binding(env, p_.beside).base) + Expr(b_, column());
    env = e_.bound_at(env, p_.beside, at, block);
    if (!extent->is_const() || extent->imm % p_.columns != 0)
      e_.set_mask(env[e_.number_of(p_.beside)], Expr(at < Expr(b_, e_.emit(extent, env))));
  }
  if (e_.schedule().contiguous.count < 2) return lower_line(env, block);
  where_aligned(block, [&](BlockId body) { lower_line(env, body); });
}

void GroupScanLowering::lower_line(const Env& env, BlockId block) {
  carries_.clear();
  losses_.clear();
  for (const Node* scan : scans_) {
    const Type t{scan_type(scan), 1};
    carries_.push_back(b_.add_register(t));
    b_.assign(block, carries_.back(), b_.neutral(scan->reduce_op(), t));
    losses_.push_back(is_compensated(scan) ? b_.add_register(t) : carries_.back());
    if (is_compensated(scan)) b_.assign(block, losses_.back(), b_.neutral(scan->reduce_op(), t));
    if (p_.units() > 1 && arrays_.size() < scans_.size())
      arrays_.push_back(b_.add_local(t.dtype, uint64_t{p_.runs} * p_.units() * p_.columns));
  }
  const Node* extent = p_.along->src[0];
  if (extent->is_const() && extent->imm <= p_.tile())
    return lower_tile(env, b_.index(0), block, true);
  const ValueId end = e_.emit(extent, env);
  const Builder::Loop tiles = b_.open_loop(block);
  lower_tile(env, tiles.index, tiles.body, false);
  b_.close_loop(tiles, b_.index(0), end, p_.tile());
}

GroupScanLowering::Tile GroupScanLowering::bind_tile(const Env& env, ValueId start, BlockId block) {
  const Node* extent = p_.along->src[0];
  const Expr end(b_, e_.emit(extent, env));
  const int64_t run = int64_t{p_.parts} * p_.per_item;
  const bool is_whole = extent->is_const() && extent->imm % p_.tile() == 0;
  const bool has_whole_items = extent->is_const() && extent->imm % p_.per_item == 0;
  const Expr first = Expr(b_, start) + Expr(b_, part()) * int64_t{p_.per_item};
  Offsets positions(e_, first, block);
  Tile tile;
  for (uint32_t r = 0; r < p_.runs; ++r)
    for (uint32_t j = 0; j < p_.per_item; ++j) {
      const int64_t offset = r * run + j;
      const uint32_t binding = positions.at(offset).binding;
      ValueId mask = kNone;
      if (!is_whole)
        mask = has_whole_items && j > 0 ? tile.masks.back() : ValueId{Expr(first + offset < end)};
      e_.set_mask(binding, mask);
      tile.masks.push_back(mask);
      tile.elements.push_back(e_.bound(env, p_.along, binding));
    }
  return tile;
}

/// A value of another lane, whatever its width.
ValueId GroupScanLowering::exchanged(ValueId value, uint32_t with, BlockId block) {
  const DType t = b_.type(value).dtype;
  if (item_size(t) == 4) return b_.shuffle(block, value, with);
  const Expr bits(b_, b_.bitcast(value, DType::kU64));
  const Expr low_word = convert(bits, DType::kU32), high_word = convert(bits >> 32, DType::kU32);
  const auto other = [&](const Expr& word) -> Expr {
    return convert(Expr(b_, b_.shuffle(block, word, with)), DType::kU64);
  };
  const Expr low = other(low_word), high = other(high_word);
  return Expr(bitcast(low | (high << 32), t));
}

GroupScanLowering::Partial GroupScanLowering::scan_elements(const Node* scan, const Tile& tile,
                                                            BlockId block) {
  const ir::ReduceOp op = scan->reduce_op();
  const Type t{scan_type(scan), 1};
  const ValueId neutral = b_.neutral(op, t);
  Partial out;
  for (uint32_t r = 0; r < p_.runs; ++r) {
    ValueId sum = kNone;
    for (uint32_t j = 0; j < p_.per_item; ++j) {
      const size_t i = size_t{r} * p_.per_item + j;
      const Expr element(b_, e_.emit(scan->src[0], tile.elements[i]));
      ValueId value = b_.cast(element, t.dtype);
      if (tile.masks[i] != kNone) value = b_.select(tile.masks[i], value, neutral);
      sum = j == 0 ? value : b_.reduce_step(op, sum, value);
      out.prefixes.push_back(sum);
    }
    ValueId before = neutral;
    for (uint32_t with = 1; with < p_.lanes; with *= 2) {
      const ValueId other = exchanged(sum, with, block);
      const Expr is_upper = (Expr(b_, b_.item()) & with) != 0;
      const ValueId joined = b_.reduce_step(op, other, before);
      before = b_.select(is_upper, joined, before);
      sum = b_.reduce_step(op, sum, other);
    }
    out.before.push_back(before);
    out.all.push_back(sum);
  }
  return out;
}

/// The two-sum of Knuth (The Art of Computer Programming 2, 4.2.2): exact, whichever is larger.
GroupScanLowering::Running GroupScanLowering::added(const Node* scan, const Running& so_far,
                                                    ValueId value) {
  Running out{b_.reduce_step(scan->reduce_op(), so_far.sum, value), so_far.lost};
  if (!is_compensated(scan)) return out;
  const Expr before(b_, so_far.sum), after(b_, out.sum);
  const Expr part = after - before;
  const Expr lost = (before - (after - part)) + (Expr(b_, value) - part);
  // Infinite running sums have lost nothing that is a number.
  const Expr is_number = lost == lost;
  const Expr neutral(b_, b_.neutral(scan->reduce_op(), b_.type(lost)));
  out.lost = Expr(Expr(b_, so_far.lost) + select(is_number, lost, neutral));
  return out;
}

void GroupScanLowering::lower_tile(const Env& env, ValueId start, BlockId block, bool is_only) {
  const Tile tile = bind_tile(env, start, block);
  emit_loads(tile.elements);
  const uint32_t units = p_.units();
  const Expr part_index(b_, part());
  const Expr unit = part_index >> std::countr_zero(p_.lanes);
  std::vector<Partial> partials;
  for (const Node* scan : scans_) partials.push_back(scan_elements(scan, tile, block));
  const auto position = [&](uint32_t run, ValueId of_unit) {
    const Expr at = Expr(b_, of_unit) + int64_t{run} * units;
    return ValueId{Expr(at * int64_t{p_.columns} + Expr(b_, column()))};
  };
  if (units > 1) {
    const auto write = [&](BlockId body) {
      for (size_t s = 0; s < scans_.size(); ++s)
        for (uint32_t r = 0; r < p_.runs; ++r)
          b_.local_store(body, arrays_[s], position(r, unit), partials[s].all[r]);
    };
    const Expr is_first = (part_index & (p_.lanes - 1)) < 1;
    if (p_.lanes == 1)
      write(block);
    else
      e_.branch(is_first, block, write);
    b_.barrier(block);
  }
  for (size_t s = 0; s < scans_.size(); ++s) {
    const ir::ReduceOp op = scans_[s]->reduce_op();
    const bool has_lost = is_compensated(scans_[s]);
    const ValueId neutral = b_.neutral(op, {scan_type(scans_[s]), 1});
    Running so_far{b_.read(block, carries_[s])};
    if (has_lost) so_far.lost = b_.read(block, losses_[s]);
    for (uint32_t r = 0; r < p_.runs; ++r) {
      Running earlier = so_far;
      if (units == 1) so_far = added(scans_[s], so_far, partials[s].all[r]);
      ValueId own = neutral;
      for (uint32_t first = 0; units > 1 && first < units; first += kPlainPartials) {
        if (first > 0) {
          const ValueId is_later = b_.lt(b_.index(first - 1), unit);
          earlier.sum = b_.select(is_later, so_far.sum, earlier.sum);
          if (has_lost) earlier.lost = b_.select(is_later, so_far.lost, earlier.lost);
          own = b_.select(is_later, neutral, own);
        }
        ValueId all = b_.local_load(block, arrays_[s], position(r, b_.index(first)));
        for (uint32_t u = first + 1; u < std::min(first + kPlainPartials, units); ++u) {
          own = Expr(select(u - 1 < unit, Expr(b_, all), Expr(b_, own)));
          const ValueId next = b_.local_load(block, arrays_[s], position(r, b_.index(u)));
          all = b_.reduce_step(op, all, next);
        }
        so_far = added(scans_[s], so_far, all);
      }
      // What is small first: one rounding of what is large.
      ValueId before = has_lost ? earlier.lost : earlier.sum;
      if (units > 1) before = b_.reduce_step(op, before, own);
      if (p_.lanes > 1) before = b_.reduce_step(op, before, partials[s].before[r]);
      for (uint32_t j = 0; j < p_.per_item; ++j) {
        const size_t i = size_t{r} * p_.per_item + j;
        ValueId result = b_.reduce_step(op, before, partials[s].prefixes[i]);
        if (has_lost) result = b_.reduce_step(op, earlier.sum, result);
        e_.set_known(scans_[s], tile.elements[i], b_.cast(result, scans_[s]->dtype));
      }
    }
    if (!is_only) {
      b_.assign(block, carries_[s], so_far.sum);
      if (has_lost) b_.assign(block, losses_[s], so_far.lost);
    }
  }
  // The next tile writes what this one reads.
  if (units > 1 && !is_only) b_.barrier(block);
  if (contiguous_.count() > 1)
    contiguous_.emit_stores(block, tile.elements);
  else
    e_.emit_stores(block, tile.elements, e_.kernel().stores);
}

}  // namespace

void lower_group_scan(Emitter& e) {
  GroupScanLowering lowering(e);
  e.add_rule(lowering);
  lowering.run();
}

}  // namespace bm::compiler
