// Packed int8x4 loads of GPUs at aligned and unaligned addresses.
// Words of work-items lie at multiples of 4 bytes: the schedule has shown that their elements do,
// and here the params' addresses are looked at. Memory that a program was given may begin anywhere;
// the same loops follow a second time for it, with words put together from elements.
#include <algorithm>
#include <set>

#include "compiler/schedules/int8_dot/lowering.h"
#include "compiler/ir/linear.h"

namespace bm::compiler {
namespace {

/// Words that one instruction loads.
constexpr int64_t kWide = 4;

}  // namespace

/// Dot products in the bodies of a group of reductions that no guard stands around yet.
std::vector<const Node*> Int8Dot::unguarded_dots(const ReduceState& s) {
  std::vector<const Node*> dots;
  if (!b_.target().has_groups || is_guarded_) return dots;
  for (const Node* reduce : s.group) {
    for (const Node* sum : dot_roots(reduce)) split_terms(sum, &dots, nullptr);
  }
  return dots;
}

void Int8Dot::reduce(ReduceState& s, BlockId block, const std::function<void(BlockId)>& inner) {
  const std::vector<const Node*> dots = unguarded_dots(s);
  if (dots.empty()) return inner(block);
  emit_invariants(s);
  const Instances envs = s.envs;
  guard_words(dots, block, [&](BlockId body) {
    s.envs = envs;
    inner(body);
  });
}

/// Reductions in the bodies that do not depend on their loops: behind the guard they would be done
/// twice, and those that a group shares have memory of their own.
void Int8Dot::emit_invariants(const ReduceState& s) {
  for (const Node* reduce : s.group) {
    std::vector<const Node*> stack{reduce->src[0]};
    std::set<const Node*> seen;
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!seen.insert(n).second) continue;
      bool is_known = n->op == Op::kReduce && !schedule_.dots.contains(n);
      for (uint32_t r = 0; is_known && r < e_.count_ranges(); ++r)
        is_known = (e_.dependencies(n) >> r & 1) == 0 || s.envs[0][r] != 0;
      if (is_known)
        for (const Env& env : s.envs) e_.emit(n, env);
      else
        stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
  }
}

/// `write` makes code in a block of its own for params that begin at multiples of 16 bytes, and in
/// another one for all others.
void Int8Dot::guard_words(const std::vector<const Node*>& dots, BlockId block,
                          const std::function<void(BlockId)>& write) {
  std::set<int64_t> params;
  for (const Node* dot : dots) {
    const DotPlan& plan = schedule_.dots.at(dot);
    for (const Node* n : ir::topological(std::vector{plan.left, plan.right}))
      if (n->op == Op::kLoad && item_size(n->dtype) == 1) params.insert(n->imm);
  }
  ValueId is_aligned = kNone;
  for (const int64_t p : params) {
    const ValueId one = b_.is_aligned(static_cast<int>(p));
    is_aligned = is_aligned == kNone ? one : b_.bit_and(is_aligned, one);
  }
  const ValueId is_not = b_.negated(is_aligned);
  // What is made in one block is not there in the other.
  is_guarded_ = true;
  for (const bool is_fast : {true, false}) {
    has_aligned_words_ = is_fast;
    const BlockId body = b_.open_block(block);
    {
      const Confined inside(e_, body);
      write(body);
    }
    b_.close_if(body, is_fast ? is_aligned : is_not);
    words_.clear();
  }
  has_aligned_words_ = is_guarded_ = false;
}

/// The loop of the dot product along which four words follow each other, the first one at a
/// multiple of 16 bytes, or null.
const Node* Int8Dot::wide_range(const Node* load) {
  const auto [it, is_new] = wide_ranges_.try_emplace({dot_, load}, nullptr);
  if (!is_new) return it->second;
  const Node *along = schedule_.dots.at(dot_).along, *index = load->src[0];
  const ir::Linear sum = ir::linear(index);
  for (size_t i = 1; i < dot_->src.size(); ++i) {
    const Node* range = dot_->src[i];
    // Words of one loop, or of a loop around one over the elements of a single word.
    const int64_t step = range == along ? 1 : 4, most = range == along ? kWide * 4 : kWide;
    if (range->src[0]->imm % most != 0 || (range != along && along->src[0]->imm != 4)) continue;
    bool is_wide = sum.constant % (kWide * 4) == 0;
    for (const ir::Linear::Term& t : sum.terms) {
      if (t.atom == range) {
        is_wide = is_wide && t.coefficient == step;
      } else if (t.atom == along) {
        continue;  // 0 at the start of the word
      } else {
        const int64_t unit = e_.strides(e_.number_of(range), 0).align(t.atom) % (kWide * 4);
        is_wide = is_wide && t.coefficient % (kWide * 4) * unit % (kWide * 4) == 0 &&
                  !ir::depends_on(t.atom, range) && !ir::depends_on(t.atom, along);
      }
    }
    if (is_wide && e_.strides(e_.number_of(range), 0).stride(index) == step)
      return it->second = range;
  }
  return nullptr;
}

/// A word of a work-item, as part of four where they lie together.
ValueId Int8Dot::load_aligned_word(const Node* load, const Env& env) {
  const auto param = static_cast<int>(load->imm);
  const Node* range = wide_range(load);
  const Value base = range ? e_.program().at(e_.binding(env[e_.number_of(range)]).base) : Value{};
  if (!range || base.op != ValueOp::kConst)
    return b_.words(param, 1, e_.emit(load->src[0], env), true);
  const int64_t at = base.imm + e_.binding(env[e_.number_of(range)]).offset;
  const int64_t step = range == schedule_.dots.at(dot_).along ? 4 : 1;
  const int64_t part = at / step % kWide;
  const Env first = e_.bound(env, range, step_binding(range, at - part * step));
  const ValueId four = b_.words(param, kWide, e_.emit(load->src[0], first), true);
  return b_.extract(four, static_cast<uint32_t>(part));
}

/// A dot product outside of reductions, for all unrolled instances of the surrounding loop bodies.
void Int8Dot::emit_guarded_dot(const Node* dot, const std::vector<Env>& envs) {
  const BlockId block = e_.block_for(e_.dependencies(dot), envs[0]);
  const std::vector<uint32_t> registers = clear_registers(b_, block, {DType::kI32, 1}, envs.size());
  guard_words({dot}, block, [&](BlockId body) {
    emit_dots(dot, envs, nullptr);
    for (size_t e = 0; e < envs.size(); ++e) b_.assign(body, registers[e], e_.known(dot, envs[e]));
  });
  for (size_t e = 0; e < envs.size(); ++e) e_.set_known(dot, envs[e], b_.read(block, registers[e]));
}

}  // namespace bm::compiler
