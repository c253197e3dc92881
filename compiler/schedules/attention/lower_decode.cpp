// Decode attention: logits, online softmax and P·V of one part of the keys, a key to a team of
// lanes; then what the teams have is joined. See DecodeAttentionPlan.
#include <bit>
#include <cmath>
#include <vector>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {
namespace {

constexpr uint32_t kStoredWords = 4;

Expr larger(const Expr& x, const Expr& y) { return select(x < y, y, x); }

/// `row_max`, or 0 where there was nothing but -inf so far: distances from -inf would be NaN.
Expr finite(const Expr& row_max) { return select(row_max == -HUGE_VAL, 0, row_max); }

class DecodeAttention {
 public:
  explicit DecodeAttention(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().group_attention()->decode), a_(p_.parts) {}
  void run();

 private:
  Expr expr(ValueId v) const { return {b_, v}; }
  size_t rows() const { return static_cast<size_t>(p_.rows); }
  void bind_group(ValueId group, BlockId block);
  void bind_rows(const Expr& first, BlockId block);
  void read_queries(BlockId block);
  std::vector<ValueId> load_chunk(const Node* load, const Env& env) const;
  std::vector<ValueId> elements_of(const Node* load, ValueId word) const;
  /// Chunks that a lane has of a key or value.
  struct Line {
    std::vector<std::vector<ValueId>> words;
    std::vector<Env> chunks;  ///< with the loop along the line at their first element
  };
  Line load_line(const Node* load, const Node* scale, const Node* along,
                 const std::vector<Expr>& chunks, const Env& key, BlockId block);
  std::vector<Expr> chunks_of(const Node* load, const Node* along, uint32_t count) const;
  ValueId is_chunk(const Node* load, const Node* along, uint32_t number) const;
  void attend(ValueId first_key, BlockId block);
  void run_keys(BlockId block);
  ValueId over_team(ValueId value, BlockId block);
  void rescale_to(size_t row, ValueId candidate, ValueId* shift, ValueId* factor, BlockId block);
  void join_teams(BlockId block);
  void store_results(BlockId block);

  Emitter& e_;
  Builder& b_;
  const DecodeAttentionPlan& p_;
  const AttentionParts& a_;
  Env env_;
  std::vector<uint32_t> row_;  ///< bindings; empty: there is one query without a loop
  ValueId lane_ = kNone;       ///< in its team
  ValueId keys_ = kNone;       ///< of the part
  bool is_aligned_ = false;    ///< of what is being written: params start at multiples of 16 bytes
  std::vector<std::vector<ValueId>> queries_;   ///< [element of this lane's chunks][query]
  std::vector<uint32_t> row_max_, row_sum_;     ///< registers, by query
  std::vector<std::vector<uint32_t>> results_;  ///< registers, by query: elements of the chunks
};

/// Loops over heads and parts of the keys, and the keys of this one that are not masked.
void DecodeAttention::bind_group(ValueId group, BlockId block) {
  env_ = e_.unbound();
  ValueId rest = group;
  const int64_t all = a_.row ? a_.row->src[0]->imm : 1;
  const Expr row_block(b_, e_.next_digit(&rest, b_.index(all / p_.rows), a_.batch.empty()));
  for (size_t i = a_.batch.size(); i-- > 0;) {
    const ValueId digit = e_.next_digit(&rest, b_.index(a_.batch[i]->src[0]->imm), i == 0);
    env_ = e_.bound(env_, a_.batch[i], e_.make_bindings(digit, block, 0, 1, 0));
  }
  bind_rows(Expr(row_block * p_.rows), block);
  const ValueId length = e_.emit(a_.key->src[0], env_);
  const ValueId bound = e_.emit(a_.causal_bound, env_);
  keys_ = e_.min_index(length, bound);
  lane_ = Expr(expr(b_.item()) & int64_t{p_.team - 1});
}

void DecodeAttention::bind_rows(const Expr& first, BlockId block) {
  if (!a_.row) return;
  Offsets rows(e_, first, block);
  for (int64_t r = 0; r < p_.rows; ++r) row_.push_back(rows.at(r).binding);
}

/// Indices of the chunks that this lane has of a line. Lanes behind its end have the last one.
std::vector<Expr> DecodeAttention::chunks_of(const Node* load, const Node* along,
                                             uint32_t count) const {
  const int64_t all = along->src[0]->imm / DecodeAttentionPlan::chunk_items(load);
  std::vector<Expr> out;
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t first = int64_t{i} * p_.team;
    Expr chunk = expr(lane_) + first;
    if (first + p_.team > all) chunk = min(chunk, expr(b_.index(all - 1)));
    out.push_back(chunk);
  }
  return out;
}

/// Whether this lane has such a chunk; kNone: all lanes have.
ValueId DecodeAttention::is_chunk(const Node* load, const Node* along, uint32_t number) const {
  const int64_t all = along->src[0]->imm / DecodeAttentionPlan::chunk_items(load);
  const int64_t first = int64_t{number} * p_.team;
  if (first + p_.team <= all) return kNone;
  const Expr chunk = expr(lane_) + first;
  return b_.lt(chunk, b_.index(all));
}

void DecodeAttention::read_queries(BlockId block) {
  const int64_t items = DecodeAttentionPlan::chunk_items(p_.keys);
  const std::vector<Expr> chunks = chunks_of(p_.keys, a_.head_dim, p_.key_chunks);
  std::vector<std::vector<uint32_t>> bindings;
  for (const Expr& chunk : chunks) {
    Offsets elements(e_, Expr(chunk * items), block);
    bindings.emplace_back();
    for (int64_t i = 0; i < items; ++i) bindings.back().push_back(elements.at(i).binding);
  }
  queries_.resize(chunks.size() * static_cast<size_t>(items));
  for (size_t r = 0; r < rows(); ++r) {
    size_t element = 0;
    const Env env = a_.row ? e_.bound(env_, a_.row, row_[r]) : env_;
    for (uint32_t p = 0; p < p_.key_chunks; ++p) {
      const ValueId exists = is_chunk(p_.keys, a_.head_dim, p);
      for (const uint32_t binding : bindings[p]) {
        const ValueId q = e_.emit(a_.query, e_.bound(env, a_.head_dim, binding));
        queries_[element++].push_back(exists == kNone ? q : b_.select(exists, q, b_.like(q, 0)));
      }
    }
  }
}

/// The words of a chunk; 0 where an index that was looked up is not there.
std::vector<ValueId> DecodeAttention::load_chunk(const Node* load, const Env& env) const {
  ValueId at = e_.emit(load->src[0], env), gate = kNone;
  if (load->src.size() > 1) {
    gate = e_.emit(load->src[1], env);
    at = b_.select(gate, at, b_.index(0));
  }
  const auto count =
      static_cast<uint32_t>(DecodeAttentionPlan::chunk_items(load) * item_size(load->dtype) / 4);
  const ValueId words = b_.words(static_cast<int>(load->imm), count, at, is_aligned_);
  std::vector<ValueId> out;
  for (uint32_t w = 0; w < count; ++w) {
    const ValueId word = b_.extract(words, w);
    out.push_back(gate == kNone ? word : b_.select(gate, word, b_.like_int(word, 0)));
  }
  return out;
}

/// Float32 of the elements in a word.
std::vector<ValueId> DecodeAttention::elements_of(const Node* load, ValueId word) const {
  if (load->dtype == DType::kF32) return {b_.bitcast(word, DType::kF32)};
  if (load->dtype == DType::kI8) {
    const Expr bits = bitcast(expr(word), DType::kI32);
    std::vector<ValueId> out;
    for (const int64_t left : {24, 16, 8, 0}) {
      const Expr code = (left == 0 ? bits : Expr(bits << left)) >> int64_t{24};
      out.push_back(b_.convert(code, DType::kF32));
    }
    return out;
  }
  const auto element = [&](ValueId bits) {
    const Expr half = bitcast(convert(expr(bits), DType::kU16), load->dtype);
    return b_.cast(half, DType::kF32);
  };
  const ValueId low = element(b_.bit_and(word, b_.like_int(word, 0xffff)));
  const ValueId high = element(b_.shr(word, 16));
  return {low, high};
}

/// Loads alone: nothing waits for them yet.
DecodeAttention::Line DecodeAttention::load_line(const Node* load, const Node* scale,
                                                 const Node* along, const std::vector<Expr>& chunks,
                                                 const Env& key, BlockId block) {
  const int64_t items = DecodeAttentionPlan::chunk_items(load);
  Line out;
  for (const Expr& chunk : chunks) {
    out.chunks.push_back(e_.bound_at(key, along, Expr(chunk * items), block));
    out.words.push_back(load_chunk(load, out.chunks.back()));
    if (!scale) continue;
    for (const Node* n : ir::topological({&scale, 1}))
      if (n->op == Op::kLoad) e_.emit(n, out.chunks.back());
  }
  return out;
}

ValueId DecodeAttention::over_team(ValueId value, BlockId block) {
  Expr sum = expr(value);
  for (uint32_t with = p_.team / 2; with > 0; with /= 2)
    sum = sum + expr(b_.shuffle(block, sum, with));
  return sum;
}

/// The query's row max becomes the larger of what it was and `candidate`: `*shift`, finite; what is
/// there is rescaled by `*factor`.
void DecodeAttention::rescale_to(size_t row, ValueId candidate, ValueId* shift, ValueId* factor,
                                 BlockId block) {
  const Expr before = expr(b_.read(block, row_max_[row])), now = larger(before, expr(candidate));
  *shift = finite(now);
  const Expr distance = before - expr(*shift);
  *factor = b_.exp2_of_distance(distance, p_.scale);
  b_.assign(block, row_max_[row], now);
}

/// Keys `first_key` + team, and `unroll` as far apart as there are teams.
void DecodeAttention::attend(ValueId first_key, BlockId block) {
  const Expr team = expr(b_.item()) >> std::countr_zero(p_.team);
  const std::vector<Expr> key_chunks = chunks_of(p_.keys, a_.head_dim, p_.key_chunks),
                          value_chunks = chunks_of(p_.values, a_.column, p_.value_chunks);
  struct Key {
    Env env;
    ValueId is_there = kNone;
    Line key, value;
  };
  std::vector<Key> keys;
  for (uint32_t u = 0; u < p_.unroll; ++u) {
    const Expr at = expr(first_key) + team + int64_t{u} * p_.teams();
    keys.push_back({e_.bound_at(env_, a_.key, at, block), b_.lt(at, keys_), {}, {}});
  }
  for (Key& k : keys)
    k.key = load_line(p_.keys, p_.key_scale, a_.head_dim, key_chunks, k.env, block);
  for (Key& k : keys)
    k.value = load_line(p_.values, p_.value_scale, a_.column, value_chunks, k.env, block);
  if (b_.target().hoists_loads) b_.pipe(block, PipeOp::kOrder);
  std::vector<std::vector<ValueId>> logits(rows());
  for (const Key& k : keys) {
    std::vector<ValueId> accumulators(rows(), kNone);
    size_t i = 0;
    for (size_t c = 0; c < k.key.words.size(); ++c) {
      std::vector<ValueId> own(p_.key_scale ? rows() : 0, kNone);
      for (const ValueId word : k.key.words[c])
        for (const ValueId element : elements_of(p_.keys, word))
          contract_fma(b_, queries_[i++], {&element, 1}, p_.key_scale ? own : accumulators);
      if (!p_.key_scale) continue;
      const ValueId scale = e_.emit(p_.key_scale, k.key.chunks[c]);
      contract_fma(b_, own, {&scale, 1}, accumulators);
    }
    for (size_t r = 0; r < rows(); ++r) {
      const Env env = a_.row ? e_.bound(k.env, a_.row, row_[r]) : k.env;
      e_.set_known(a_.product, env, over_team(accumulators[r], block));
      const ValueId logit = e_.emit(a_.logit, env);
      logits[r].push_back(b_.select(k.is_there, logit, b_.like(logit, -HUGE_VAL)));
    }
  }
  for (size_t r = 0; r < rows(); ++r) {
    Expr row_max = expr(logits[r][0]);
    for (size_t u = 1; u < keys.size(); ++u) row_max = larger(row_max, expr(logits[r][u]));
    ValueId shift = kNone, factor = kNone;
    rescale_to(r, row_max, &shift, &factor, block);
    const auto rescaled = [&](uint32_t reg) -> Expr {
      return expr(b_.read(block, reg)) * expr(factor);
    };
    Expr row_sum = rescaled(row_sum_[r]);
    std::vector<ValueId> accumulators;
    for (const uint32_t reg : results_[r]) accumulators.push_back(rescaled(reg));
    for (size_t u = 0; u < keys.size(); ++u) {
      const Expr distance = expr(logits[r][u]) - expr(shift);
      const ValueId numerator = b_.exp2_of_distance(distance, p_.scale);
      row_sum = row_sum + expr(numerator);
      std::span<ValueId> rest = accumulators;
      const Line& value = keys[u].value;
      for (size_t c = 0; c < value.words.size(); ++c) {
        ValueId weight = numerator;
        if (p_.value_scale) weight = b_.mul(weight, e_.emit(p_.value_scale, value.chunks[c]));
        for (const ValueId word : value.words[c]) {
          const std::vector<ValueId> elements = elements_of(p_.values, word);
          contract_fma(b_, {&weight, 1}, elements, rest.first(elements.size()));
          rest = rest.subspan(elements.size());
        }
      }
    }
    b_.assign(block, row_sum_[r], row_sum);
    for (size_t i = 0; i < accumulators.size(); ++i)
      b_.assign(block, results_[r][i], accumulators[i]);
  }
}

/// Teams of a sub-group have what all of them have afterwards.
void DecodeAttention::join_teams(BlockId block) {
  for (uint32_t with = p_.team; with < p_.sub_group; with *= 2)
    for (size_t r = 0; r < rows(); ++r) {
      ValueId shift = kNone, factor = kNone;
      const ValueId other = b_.shuffle(block, b_.read(block, row_max_[r]), with);
      rescale_to(r, other, &shift, &factor, block);
      const auto join = [&](uint32_t reg) {
        const Expr own = expr(b_.read(block, reg)) * expr(factor);
        const Expr both = own + expr(b_.shuffle(block, own, with));
        b_.assign(block, reg, both);
      };
      join(row_sum_[r]);
      for (const uint32_t reg : results_[r]) join(reg);
    }
}

/// Sub-groups by way of shared memory: [sub-group][query][result], then row max and row sum.
void DecodeAttention::store_results(BlockId block) {
  const auto groups = static_cast<int64_t>(p_.sub_groups());
  const int64_t columns = p_.columns(), items = DecodeAttentionPlan::chunk_items(p_.values);
  const uint32_t accumulators =
      b_.add_local(DType::kF32, static_cast<uint64_t>(groups * p_.rows * columns));
  const uint32_t row_max = b_.add_local(DType::kF32, static_cast<uint64_t>(groups * p_.rows));
  const uint32_t row_sum = b_.add_local(DType::kF32, static_cast<uint64_t>(groups * p_.rows));
  const Expr item = expr(b_.item());
  const Expr own = item >> std::countr_zero(p_.sub_group);
  const Expr lane = item & int64_t{p_.sub_group - 1};
  const std::vector<Expr> chunks = chunks_of(p_.values, a_.column, p_.value_chunks);
  e_.branch(b_.lt(lane, b_.index(p_.team)), block, [&](BlockId body) {
    for (size_t r = 0; r < rows(); ++r) {
      const Expr row = own * p_.rows + static_cast<int64_t>(r);
      // All lanes have the same.
      e_.branch(b_.lt(lane, b_.index(1)), body, [&](BlockId first) {
        b_.local_store(first, row_max, row, b_.read(first, row_max_[r]));
        b_.local_store(first, row_sum, row, b_.read(first, row_sum_[r]));
      });
      for (uint32_t p = 0; p < p_.value_chunks; ++p) {
        const Expr first = row * columns + chunks[p] * items;
        for (int64_t i = 0; i < items; i += kStoredWords) {
          std::vector<ValueId> four;
          for (int64_t w = i; w < i + kStoredWords; ++w)
            four.push_back(b_.read(body, results_[r][static_cast<size_t>(int64_t{p} * items + w)]));
          const ValueId exists = is_chunk(p_.values, a_.column, p);
          const auto store = [&](BlockId to) {
            b_.local_store_together(to, accumulators, Expr(first + i), four);
          };
          if (exists == kNone)
            store(body);
          else
            e_.branch(exists, body, store);
        }
      }
    }
  });
  b_.barrier(block);
  for (size_t r = 0; r < rows(); ++r) {
    std::vector<ValueId> maxima;
    for (int64_t s = 0; s < groups; ++s)
      maxima.push_back(
          b_.local_load(block, row_max, b_.index(s * p_.rows + static_cast<int64_t>(r))));
    Expr all = expr(maxima[0]);
    for (size_t s = 1; s < maxima.size(); ++s) all = larger(all, expr(maxima[s]));
    const Expr shift = finite(all);
    std::vector<ValueId> weights;
    ValueId sum = kNone;
    for (int64_t s = 0; s < groups; ++s) {
      const ValueId distance = b_.sub(maxima[static_cast<size_t>(s)], shift);
      weights.push_back(b_.exp2_of_distance(distance, p_.scale));
      const ValueId part =
          b_.local_load(block, row_sum, b_.index(s * p_.rows + static_cast<int64_t>(r)));
      const ValueId weighted = b_.mul(part, weights.back());
      sum = sum == kNone ? weighted : b_.add(sum, weighted);
    }
    const Env env = a_.row ? e_.bound(env_, a_.row, row_[r]) : env_;
    for (int64_t c = 0; c < columns; c += p_.block) {
      const Expr column = item + c;
      const auto store = [&](BlockId body) {
        ValueId pv = kNone;
        for (int64_t s = 0; s < groups; ++s) {
          const Expr at = column + (s * p_.rows + static_cast<int64_t>(r)) * columns;
          const Expr part =
              expr(b_.local_load(body, accumulators, at)) * expr(weights[static_cast<size_t>(s)]);
          pv = pv == kNone ? ValueId{part} : b_.add(pv, part);
        }
        const Env at = e_.bound_at(env, a_.column, column, body);
        e_.set_known(a_.row_max, at, all);
        e_.set_known(a_.row_sum, at, sum);
        Epilogue out(e_, a_.pv);
        out.add(at, pv);
        out.store(body);
      };
      if (c + p_.block <= columns) {
        const Confined confined(e_, block);
        store(block);
      } else {
        e_.branch(b_.lt(column, b_.index(columns)), block, store);
      }
    }
  }
}

/// Loads of 16 bytes want params that start at multiples of them, which memory handed in from
/// elsewhere need not.
void DecodeAttention::run_keys(BlockId block) {
  const auto run = [&](BlockId body) {
    const Builder::Loop keys = b_.open_loop(body);
    attend(keys.index, keys.body);
    b_.close_loop(keys, b_.index(0), keys_, int64_t{p_.teams()} * p_.unroll);
  };
  if (b_.target().has_unaligned_words) return run(block);
  const ValueId has_keys = b_.is_aligned(static_cast<int>(p_.keys->imm));
  const ValueId has_values = b_.is_aligned(static_cast<int>(p_.values->imm));
  const ValueId is_aligned = b_.bit_and(has_keys, has_values);
  const ValueId is_not = b_.negated(is_aligned);
  is_aligned_ = true;
  e_.branch(is_aligned, block, run);
  is_aligned_ = false;
  e_.branch(is_not, block, run);
}

void DecodeAttention::run() {
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  const BlockId body = groups.body;
  bind_group(groups.index, body);
  read_queries(body);
  const Type type{DType::kF32, 1};
  const auto clear = [&](double start) {
    const uint32_t reg = b_.add_register(type);
    b_.assign(body, reg, b_.constant_f(type, start));
    return reg;
  };
  const auto elements = p_.value_chunks * DecodeAttentionPlan::chunk_items(p_.values);
  for (size_t r = 0; r < rows(); ++r) {
    row_max_.push_back(clear(-HUGE_VAL));
    row_sum_.push_back(clear(0));
    results_.emplace_back();
    for (int64_t i = 0; i < elements; ++i) results_.back().push_back(clear(0));
  }
  run_keys(body);
  join_teams(body);
  store_results(body);
  b_.close_groups(groups, 0, kNone);
}

}  // namespace

void lower_decode_attention(Emitter& e) { DecodeAttention(e).run(); }

}  // namespace bm::compiler
