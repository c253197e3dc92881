// Vector loads and stores of GPUs: contiguous elements of one work-item, 16 bytes at a time.
#include "compiler/lowering/contiguous.h"

#include <algorithm>

#include "compiler/program/expr.h"

namespace bm::compiler {
namespace {

/// Accesses of 16 bytes that one load or store may become.
constexpr int64_t kMostAccesses = 2;

bool is_aligned_row(CostModel& model, const Node* index, DType dtype, const Node* range,
                    uint32_t count) {
  Strides& along = model.strides(range, count);
  return along.stride(index) == 1 && along.align(index) % access_width(dtype, count) == 0;
}

bool is_even(CostModel& model, const Node* gate, const Node* range, uint32_t count) {
  return gate == nullptr || model.strides(range, count).is_uniform(gate);
}

}  // namespace

bool is_contiguous_load(CostModel& model, const Node* load, const Node* range, uint32_t count) {
  return is_aligned_row(model, load->src[0], load->dtype, range, count) &&
         is_even(model, load->src.size() > 1 ? load->src[1] : nullptr, range, count);
}

bool is_contiguous_store(CostModel& model, const ir::Store& store, const Node* range,
                         uint32_t count) {
  return is_aligned_row(model, store.index, store.value->dtype, range, count) &&
         is_even(model, store.gate, range, count);
}

bool add_contiguous(CostModel& model, const std::vector<const Node*>& loads,
                    const std::vector<ir::Store>& stores, const Node* range, ContiguousPlan* plan) {
  const auto fits = [&](DType t) {
    const int64_t bytes = item_size(t) * plan->count;
    return bytes >= 4 && bytes <= kMostAccesses * 16;
  };
  for (const Node* load : loads) {
    if (model.strides(range, 0).is_uniform(load)) continue;
    if (!fits(load->dtype) || !is_contiguous_load(model, load, range, plan->count)) return false;
    plan->loads[load] = range;
    plan->params.insert(static_cast<int>(load->imm));
  }
  for (const ir::Store& s : stores) {
    if (!fits(s.value->dtype) || !is_contiguous_store(model, s, range, plan->count)) return false;
    plan->params.insert(s.param);
  }
  return true;
}

void ContiguousAccess::set(uint32_t count) {
  count_ = count;
  firsts_.clear();
  words_.clear();
}

ValueId ContiguousAccess::is_aligned() {
  ValueId all = kNone;
  for (const int param : e_.schedule().contiguous.params) {
    const ValueId own = b_.is_aligned(param);
    all = all == kNone ? own : b_.bit_and(all, own);
  }
  return all;
}

std::optional<ValueId> ContiguousAccess::replace(const Node* n, const Env& env) {
  if (count_ < 2 || n->op != Op::kLoad) return std::nullopt;
  const auto& loads = e_.schedule().contiguous.loads;
  const auto found = loads.find(n);
  if (found == loads.end()) return std::nullopt;
  const Node* range = found->second;
  const Binding own = e_.binding(env, range);
  const auto width = static_cast<int64_t>(access_width(n->dtype, count_));
  const int64_t number = own.offset % width;
  const auto [first, is_new] = firsts_.try_emplace({own.origin, own.offset - number}, 0);
  if (is_new)
    first->second = own.offset == number
                        ? own.origin
                        : e_.make_bindings(own.base, own.block, own.offset - number, 1, own.origin);
  const Env start = e_.bound(env, range, first->second);
  const std::vector<uint32_t> key = e_.key(n, start);
  std::vector<ValueId>& words = words_[key];
  if (words.empty()) {
    ValueId gate = n->src.size() > 1 ? e_.emit(n->src[1], start) : kNone;
    gate = e_.inside(e_.dependencies(n), env, gate);
    ValueId at = e_.emit(n->src[0], start);
    // Whatever is there: who asks for an element that is not uses none of it.
    if (gate != kNone) at = b_.select(gate, at, b_.index(0));
    const auto bytes = static_cast<uint32_t>(width * item_size(n->dtype));
    const ValueId all = b_.words(static_cast<int>(n->imm), std::max(bytes / 4, 1u), at, true);
    for (uint32_t w = 0; w < bytes / 4; ++w) {
      ValueId word = bytes == 4 ? all : b_.extract(all, w);
      if (gate != kNone) word = b_.select(gate, word, b_.like_int(word, 0));
      words.push_back(word);
    }
  }
  const auto per_word = static_cast<uint32_t>(std::max<int64_t>(4 / item_size(n->dtype), 1));
  const auto at = static_cast<uint32_t>(number);
  if (item_size(n->dtype) < 8) return element(n, words[at / per_word], at % per_word);
  const Expr low = convert(Expr(b_, words[2 * at]), DType::kU64);
  const Expr high = convert(Expr(b_, words[2 * at + 1]), DType::kU64) << 32;
  return Expr(bitcast(low | high, n->dtype));
}

/// Number `number` of those in a word, the lowest first.
ValueId ContiguousAccess::element(const Node* load, ValueId word, uint32_t number) {
  const DType t = load->dtype;
  const int64_t size = item_size(t);
  if (size == 4) return t == DType::kU32 ? word : b_.bitcast(word, t);
  const int64_t bits = 8 * size, shift = bits * number;
  if (shift > 0) word = b_.shr(word, shift);
  if (shift + bits < 32) word = b_.bit_and(word, b_.like_int(word, (int64_t{1} << bits) - 1));
  if (is_bool(t)) return b_.ne(word, b_.like_int(word, 0));
  const DType plain = size == 1 ? DType::kU8 : DType::kU16;
  const ValueId narrow = b_.convert(word, plain);
  return t == plain ? narrow : b_.bitcast(narrow, t);
}

void ContiguousAccess::emit_stores(BlockId block, const Instances& instances) {
  const std::vector<ir::Store>& stores = e_.kernel().stores;
  e_.set_instances(&instances);
  // All values before any store, as the emitter does.
  for (const Env& env : instances)
    for (const ir::Store& s : stores) {
      e_.emit(s.value, env);
      if (s.gate) e_.emit(s.gate, env);
    }
  for (const ir::Store& s : stores) {
    const uint32_t width = access_width(s.value->dtype, count_);
    for (size_t i = 0; i < instances.size(); i += width) {
      const Env& first = instances[i];
      const ValueId at = e_.emit(s.index, first);
      const ValueId own = s.gate ? e_.emit(s.gate, first) : kNone;
      const ValueId gate = e_.inside(~uint64_t{0}, first, own);
      std::vector<ValueId> values;
      for (size_t j = i; j < i + width; ++j) values.push_back(e_.emit(s.value, instances[j]));
      if (width == 1)
        b_.store(block, s.param, at, values[0], gate);
      else
        b_.store_together(block, s.param, at, std::move(values), gate);
    }
  }
  e_.set_instances(nullptr);
}

}  // namespace bm::compiler
