// Quantised GEMV on CPUs: int8 dot products (VNNI, packed int8x4).
// int8 dot products, written out as dot products of words.
#include <algorithm>

#include "compiler/program/expr.h"
#include "compiler/schedules/int8_dot/lowering.h"
#include "compiler/schedules/loops/lowering.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

/// Prefetch distance of a stream of words.
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kCacheLine = 64;
/// Dot products that are unrolled step by step, and instructions of work-items, whose compilers do
/// not fetch all words first.
constexpr size_t kMaxWrittenOut = 4, kMaxWrittenWords = 256;

int64_t in_all_bytes(int64_t byte) { return (byte & 0xff) * 0x01010101; }

}  // namespace

void lower_int8_dot(Emitter& e) {
  LoopLowering loops(e);
  Int8Dot dots(e);
  e.add_rule(dots);
  loops.run();
}

std::optional<ValueId> Int8Dot::compute(const Node* n, const Env& env) {
  if (!schedule_.dots.contains(n)) return std::nullopt;
  bool is_instance = false;
  if (b_.target().has_groups && !is_guarded_)
    emit_guarded_dot(n, e_.instances_of(n, env, &is_instance));
  else
    emit_dots(n, {env}, nullptr);
  return e_.known(n, env);
}

/// Integer expressions with an inner dot product in the body of `reduce`: each as large as it gets.
const std::vector<const Node*>& Int8Dot::dot_roots(const Node* reduce) {
  const auto [it, is_new] = dot_roots_.try_emplace(reduce);
  std::vector<const Node*>& roots = it->second;
  if (!is_new || schedule_.dots.empty()) return roots;
  const auto is_sum = [&](const Node* n) { return n->op == Op::kAdd && n->dtype == DType::kI32; };
  const auto has_dot = [&](auto&& self, const Node* n) -> bool {
    return schedule_.dots.contains(n) ||
           (is_sum(n) && (self(self, n->src[0]) || self(self, n->src[1])));
  };
  std::vector<const Node*> stack{reduce->src[0]};
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (has_dot(has_dot, n)) {
      if (std::find(roots.begin(), roots.end(), n) == roots.end()) roots.push_back(n);
    } else if (n->op != Op::kReduce) {
      stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
  }
  return roots;
}

/// Dot products of one iteration for all members of a reduction at once: words are used while in
/// registers.
void Int8Dot::begin_step(const ReduceState& s, const Node* range, uint32_t binding) {
  for (const Node* reduce : s.group)
    for (const Node* sum : dot_roots(reduce)) {
      std::vector<Env> envs;
      std::vector<std::vector<uint32_t>> keys;
      for (const Env& env : s.envs) {
        Env inner = e_.bound(env, range, binding);
        std::vector<uint32_t> k = e_.key(sum, inner);
        if (e_.is_known(k) || std::find(keys.begin(), keys.end(), k) != keys.end()) continue;
        keys.push_back(std::move(k));
        envs.push_back(std::move(inner));
      }
      if (!envs.empty()) emit_dots(sum, envs, range);
    }
}

/// Terms of `sum` that are dot products, in order, and the others, unless that is nullptr.
void Int8Dot::split_terms(const Node* sum, std::vector<const Node*>* dots,
                          std::vector<const Node*>* others) const {
  std::vector<const Node*> stack{sum};
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (schedule_.dots.contains(n))
      dots->push_back(n);
    else if (n->op == Op::kAdd)
      stack.insert(stack.end(), {n->src[1], n->src[0]});
    else if (others)
      others->push_back(n);
  }
}

/// `sum`: a dot product or a sum of such and others. Other terms are what the additions start from.
void Int8Dot::emit_dots(const Node* sum, const std::vector<Env>& envs, const Node* stream) {
  std::vector<const Node*> dots, others;
  split_terms(sum, &dots, &others);
  std::vector<ValueId> accumulators;
  for (const Env& env : envs) {
    const uint32_t vr = e_.vector_range(e_.dependencies(sum), env);
    const uint32_t lanes = vr == kNone ? 1 : e_.binding(env[vr]).lanes;
    ValueId start = b_.constant({DType::kI32, 1}, 0);
    for (size_t i = 0; i < others.size(); ++i) {
      const ValueId v = e_.emit(others[i], env);
      const uint32_t wide = std::max(b_.type(start).lanes, b_.type(v).lanes);
      const Expr left(b_, e_.splat(start, wide)), right(b_, e_.splat(v, wide));
      start = i == 0 ? v : ValueId{Expr(left + right)};
    }
    accumulators.push_back(e_.splat(start, lanes));
  }
  size_t steps = 0, words = 0;
  for (const Node* dot : dots) {
    steps = std::max(steps, dot_steps(dot));
    words += envs.size() * dot_steps(dot);
  }
  const bool is_long =
      b_.target().has_groups ? words > kMaxWrittenWords : envs.size() > kMaxWrittenOut;
  if (is_long && loop_dots(sum, dots, envs, stream, accumulators)) return;
  for (size_t step = 0; step < steps; ++step)
    for (const Node* dot : dots) {
      if (step >= dot_steps(dot)) continue;
      for (size_t e = 0; e < envs.size(); ++e)
        accumulators[e] = emit_dot(dot, bind_step(dot, step, envs[e]), accumulators[e], stream);
    }
  for (size_t e = 0; e < envs.size(); ++e) e_.set_known(sum, envs[e], accumulators[e]);
}

/// The same with a loop over the steps of the dot products, if they all have one and equally many:
/// in a loop, code generators keep the accumulators of a tile in registers instead of fetching all
/// words of the tile first.
bool Int8Dot::loop_dots(const Node* sum, const std::vector<const Node*>& dots,
                        const std::vector<Env>& envs, const Node* stream,
                        const std::vector<ValueId>& starts) {
  struct Step {
    const Node* range;
    int64_t width;
  };
  const auto steps_of = [&](const Node* dot) {
    std::vector<Step> steps;
    for (size_t i = 1; i < dot->src.size(); ++i) {
      const int64_t width = dot->src[i] == schedule_.dots.at(dot).along ? 4 : 1;
      if (dot->src[i]->src[0]->imm > width) steps.push_back({dot->src[i], width});
    }
    return steps;
  };
  for (const Node* dot : dots)
    if (steps_of(dot).size() != 1 || dot_steps(dot) != dot_steps(dots[0])) return false;
  const BlockId block = e_.block_for(e_.dependencies(sum), envs[0]);
  std::vector<uint32_t> registers;
  for (const ValueId start : starts) {
    registers.push_back(b_.add_register(b_.type(start)));
    b_.assign(block, registers.back(), start);
  }
  const Builder::Loop loop = b_.open_loop(block);
  std::vector<ValueId> accumulators;
  for (const uint32_t r : registers) accumulators.push_back(b_.read(loop.body, r));
  for (const Node* dot : dots) {
    const Step step = steps_of(dot)[0];
    const ValueId at = b_.mul(loop.index, b_.index(step.width));
    const uint32_t binding = e_.make_bindings(at, loop.body, 0, 1, 0);
    for (size_t e = 0; e < envs.size(); ++e) {
      const Env inner = e_.bound(bind_step(dot, 0, envs[e]), step.range, binding);
      accumulators[e] = emit_dot(dot, inner, accumulators[e], stream);
    }
  }
  for (size_t e = 0; e < envs.size(); ++e) b_.assign(loop.body, registers[e], accumulators[e]);
  b_.close_loop(loop, b_.index(0), b_.index(static_cast<int64_t>(dot_steps(dots[0]))), 1);
  for (size_t e = 0; e < envs.size(); ++e) e_.set_known(sum, envs[e], b_.read(block, registers[e]));
  return true;
}

/// One step: `sum` and four products per lane.
ValueId Int8Dot::emit_dot(const Node* dot, const Env& env, ValueId sum, const Node* stream) {
  const DotPlan& plan = schedule_.dots.at(dot);
  dot_ = dot;
  const ValueId a = emit_word(plan.left, env, stream), b = emit_word(plan.right, env, nullptr);
  const uint32_t lanes = b_.type(sum).lanes;
  const ValueId wide_a = e_.splat(a, lanes), wide_b = e_.splat(b, lanes);
  return b_.dot(plan.kind, sum, wide_a, wide_b);
}

size_t Int8Dot::dot_steps(const Node* dot) const {
  int64_t steps = 1;
  for (size_t i = 1; i < dot->src.size(); ++i) steps *= dot->src[i]->src[0]->imm;
  return static_cast<size_t>(steps / 4);
}

/// Loops of the inner sum as constants; the last one fastest.
Env Int8Dot::bind_step(const Node* dot, size_t step, const Env& env) {
  const Node* along = schedule_.dots.at(dot).along;
  Env out = env;
  auto rest = static_cast<int64_t>(step);
  for (size_t i = dot->src.size(); i-- > 1;) {
    const Node* range = dot->src[i];
    const int64_t count = range->src[0]->imm / (range == along ? 4 : 1);
    const int64_t at = rest % count * (range == along ? 4 : 1);
    rest /= count;
    out[e_.number_of(range)] = step_binding(range, at);
  }
  return out;
}

uint32_t Int8Dot::step_binding(const Node* range, int64_t at) {
  const auto [origin, is_new] = step_origins_.try_emplace(range, 0);
  if (is_new) origin->second = e_.make_bindings(b_.index(0), e_.program().root, 0, 1, 0);
  const auto [it, is_first] = step_bindings_.try_emplace({range, at}, origin->second);
  if (is_first && at != 0)
    it->second = e_.make_bindings(b_.index(0), e_.program().root, at, 1, origin->second);
  return it->second;
}

/// Four contiguous elements as a word, per lane. `stream`: loop along which what is loaded is asked
/// for in advance, or null.
ValueId Int8Dot::emit_word(const Node* n, const Env& env, const Node* stream) {
  std::vector<uint32_t> k = e_.key(n, env);
  if (const auto it = words_.find(k); it != words_.end()) return it->second;
  ValueId v = look_up(n, env, stream);
  if (v != kNone) {
  } else if (n->op == Op::kConst) {
    v = b_.constant({DType::kU32, 1}, in_all_bytes(n->imm));
  } else if (n->op == Op::kLoad) {
    v = load_word(n, env, stream);
  } else if (n->op == Op::kShl || n->op == Op::kShr) {
    const ValueId word = emit_word(n->src[0], env, stream);
    const int64_t amount = n->src[1]->imm;
    const bool is_left = n->op == Op::kShl;
    const ValueId moved = is_left ? b_.shl(word, amount) : b_.shr(word, amount);
    const int64_t kept = is_left ? 0xff << amount : 0xff >> amount;
    v = b_.bit_and(moved, b_.like_int(moved, in_all_bytes(kept)));
  } else if (n->op == Op::kMul) {  // 1 becomes 255, and no byte carries into another
    const Expr bit(b_, emit_word(n->src[0], env, stream));
    v = Expr((bit << 8) - bit);
  } else {
    const ValueId x = emit_word(n->src[0], env, stream), y = emit_word(n->src[1], env, stream);
    const uint32_t lanes = std::max(b_.type(x).lanes, b_.type(y).lanes);
    const ValueId wide_x = e_.splat(x, lanes), wide_y = e_.splat(y, lanes);
    v = b_.raw(n->op, DType::kU32, {wide_x, wide_y});
  }
  words_.emplace(std::move(k), v);
  return v;
}

/// A lookup in place of what may be dozens of operations, or kNone.
ValueId Int8Dot::look_up(const Node* n, const Env& env, const Node* stream) {
  if (b_.target().byte_lookup_bits == 0 || !ir::is_binary(n->op)) return kNone;
  const auto [it, is_new] = lookups_.try_emplace(n);
  if (is_new) it->second = find_byte_lookup(n);
  if (!it->second) return kNone;
  const ByteLookup& lookup = *it->second;
  ValueId index = kNone;
  uint32_t at = 0;
  for (const ByteLookup::Field& f : lookup.fields) {
    ValueId word = emit_word(f.load, env, stream);
    if (!b_.can_look_up(b_.type(word))) return kNone;
    if (f.from != at) word = f.from > at ? b_.shr(word, f.from - at) : b_.shl(word, at - f.from);
    word = b_.bit_and(word, b_.like_int(word, in_all_bytes(((1 << f.bits) - 1) << at)));
    index = index == kNone ? word : b_.bit_or(index, word);
    at += f.bits;
  }
  return b_.lookup(index, lookup.table);
}

ValueId Int8Dot::load_word(const Node* n, const Env& env, const Node* stream) {
  const auto param = static_cast<int>(n->imm);
  const Node* at = n->src[0];
  const uint32_t vr = e_.vector_range(e_.dependencies(n), env);
  if (vr == kNone && has_aligned_words_) return load_aligned_word(n, env);
  if (vr == kNone) return b_.words(param, 1, e_.emit(at, env), false);
  const Binding binding = e_.binding(env[vr]);
  Env first = env;
  first[vr] = binding.first_lane;
  Strides& along = e_.strides(vr, binding.lanes);
  if (along.is_uniform(at)) return b_.words(param, 1, e_.emit(at, first), false);
  const std::optional<int64_t> stride = along.stride(at);
  if (stride == 4) {
    const ValueId index = e_.emit(at, first);
    if (stream && binding.lanes * 4 % kCacheLine == 0) prefetch_words(n, index, stream);
    return b_.words(param, binding.lanes, index, false);
  }
  const ValueId base = stride ? e_.emit(at, first) : e_.emit(at, env);
  std::vector<ValueId> words;
  for (uint32_t lane = 0; lane < binding.lanes; ++lane) {
    const ValueId from = stride ? b_.add(base, b_.index(*stride * lane)) : b_.extract(base, lane);
    words.push_back(b_.words(param, 1, from, false));
  }
  return b_.build(words);
}

void Int8Dot::prefetch_words(const Node* load, ValueId index, const Node* stream) {
  const std::optional<int64_t> stride = e_.strides(e_.number_of(stream), 0).stride(load->src[0]);
  if (!stride || *stride <= 0 || *stride > kPrefetchBytes) return;
  const BlockId block = b_.block_of(index);
  b_.prefetch(block, static_cast<int>(load->imm), b_.add(index, b_.index(kPrefetchBytes)));
}

}  // namespace bm::compiler
