// Attention with any heads, groups, masks, lengths, layouts and types, written in the ways that it
// is written in.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/base/half.h"
#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::ReduceOp;

class AttentionMaker {
 public:
  /// `is_tiled`: of 16-bit floats, all weights rounded, sizes and pitches as tiles of matrix
  /// instructions want them.
  AttentionMaker(uint64_t seed, bool is_tiled) : random_(seed), is_tiled_(is_tiled) {}

  RandomKernel run() {
    c_.kernel.name = "attention";
    c_.tolerance = 1e-5;
    c_.kernel.graph = std::make_unique<Graph>();
    g_ = c_.kernel.graph.get();
    type_ = !is_tiled_ && one_in(8) ? DType::kF64 : DType::kF32;
    const bool is_half = is_tiled_ || (type_ == DType::kF32 && one_in(3));
    const DType in = is_half ? pick({DType::kF16, DType::kBF16}) : type_;
    if (is_half_like(in)) c_.tolerance = in == DType::kF16 ? 2e-3 : 2e-2;
    c_.kernel.params.push_back({type_, 0, true, false});
    const auto row = [&](const char* what, std::initializer_list<int64_t> sizes) {
      return loop(what, sizes, one_in(3));
    };
    const Node* head = one_in(2) ? loop("heads", {2, 3, 4}, false) : nullptr;
    const Node* shared = head && one_in(2) ? g_->div(head, 2) : head;
    const Node* group = one_in(3) ? loop("group", {2, 3, 4}, false) : nullptr;
    const Node* query = is_tiled_ ? row("queries", {16, 17, 31, 33, 61, 70})
                                  : row("queries", {8, 9, 16, 17, 31, 32, 33, 61});
    key_ = row("keys", {1, 2, 7, 16, 17, 37, 61, 150, 260});
    depth_ = is_tiled_ ? loop("depth", {16, 32, 48}, false)
                       : loop("depth", {2, 3, 8, 16, 17, 19}, false);
    const Node* column = is_tiled_ ? loop("width", {16, 32, 80}, false)
                                   : loop("width", {2, 3, 7, 8, 16, 19, 33}, false);
    const Node* product = g_->binary(Op::kMul, element(in, {head, query, group, depth_}),
                                     element(in, {shared, key_, depth_}));
    const Node* score = g_->reduce(ReduceOp::kSum, product, std::array{depth_});
    if (!one_in(4)) score = g_->binary(Op::kMul, score, g_->constant_f(type_, 0.37));
    score = masked(score, query);
    const Node* v = element(in, {shared, key_, column});
    const Node* weight = softmax(score, in);
    const Node* product2 =
        one_in(2) ? g_->binary(Op::kMul, weight, v) : g_->binary(Op::kMul, v, weight);
    const Node* result = g_->reduce(ReduceOp::kSum, product2, std::array{key_});
    for (const Node* r : {head, query, group, column})
      if (r) c_.kernel.ranges.push_back(r);
    const Node* at = index_of(0, c_.kernel.ranges);
    if (one_in(4)) std::shuffle(c_.kernel.ranges.begin(), c_.kernel.ranges.end(), random_);
    if (one_in(4)) result = g_->binary(Op::kAdd, result, g_->constant_f(type_, 1));
    c_.kernel.stores.push_back({0, at, result, nullptr});
    for (size_t i = 0; i < c_.kernel.params.size(); ++i)
      fill(c_.kernel.params[i], static_cast<int>(i) == mask_);
    return std::move(c_);
  }

 private:
  bool one_in(int n) { return random_() % static_cast<uint64_t>(n) == 0; }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[random_() % list.size()];
  }

  const Node* var(const char* what, int64_t most, int64_t least = 1) {
    const int64_t now =
        least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
    c_.text += " (now " + std::to_string(now) + ")";
    c_.kernel.vars.push_back({what, least, most});
    c_.vars.push_back(now);
    return g_->var(static_cast<int>(c_.vars.size()) - 1, least, most);
  }

  const Node* loop(const char* what, std::initializer_list<int64_t> sizes, bool is_symbolic) {
    int64_t size = pick(sizes);
    while (size > 1 && size * work_ > (is_tiled_ ? kMostTiledWork : kMostWork)) --size;
    work_ *= size;
    c_.text += std::string(" ") + what + " " + std::to_string(size);
    return g_->range(is_symbolic && size > 1 ? var(what, size) : g_->index(size));
  }

  /// Index of element [ranges…]; makes room in the param.
  const Node* index_of(size_t param, std::vector<const Node*> nodes) {
    const Node* at = g_->index(0);
    int64_t stride = 1;
    for (size_t i = nodes.size(); i-- > 0;) {
      at = g_->add(at, g_->mul(nodes[i], stride));
      stride *= nodes[i]->hi + 1;
      if (one_in(6)) stride += is_tiled_ ? 8 : 3;
    }
    c_.kernel.params[param].elements = stride;
    return at;
  }

  const Node* element(DType t, std::initializer_list<const Node*> loops) {
    std::vector<const Node*> nodes;
    for (const Node* n : loops)
      if (n) nodes.push_back(n);
    if (one_in(4)) std::shuffle(nodes.begin(), nodes.end() - (is_tiled_ ? 1 : 0), random_);
    c_.kernel.params.push_back({t, 1, false, true});
    const size_t param = c_.kernel.params.size() - 1;
    return g_->cast(g_->load(static_cast<int>(param), t, index_of(param, nodes)), type_);
  }

  const Node* masked(const Node* score, const Node* query) {
    const Node* minus_inf = g_->constant_f(type_, -HUGE_VAL);
    if (one_in(2)) {
      c_.text += " causal";
      const Node* last = one_in(2) ? g_->add(query, var("position", 40, 0)) : query;
      if (one_in(4)) last = g_->add(last, -int64_t{5});
      score = one_in(2) ? g_->select(g_->less(last, key_), minus_inf, score)
                        : g_->select(g_->unary(Op::kNot, g_->less(last, key_)), score, minus_inf);
    }
    if (one_in(3)) {
      c_.text += " mask";
      const Node* mask = element(type_, {query, key_});
      mask_ = static_cast<int>(c_.kernel.params.size()) - 1;
      score = g_->binary(Op::kAdd, score, mask);
    }
    return score;
  }

  const Node* softmax(const Node* score, DType in) {
    const auto c = [&](double v) { return g_->constant_f(type_, v); };
    // The interpreter has one index per loop: reductions inside others have loops of their own.
    const auto over_keys = [&](ReduceOp op, const Node* value) {
      const std::array own{key_, depth_};
      const std::array other{g_->range(key_->src[0]), g_->range(depth_->src[0])};
      return g_->reduce(op, g_->substitute(value, own, other), std::array{other[0]});
    };
    const Node* most = over_keys(ReduceOp::kMax, score);
    if (!one_in(4))
      most = g_->select(g_->binary(Op::kEq, most, c(-HUGE_VAL)), c(0), most);
    else
      c_.text += " bare";
    const bool is_bare = most->op == Op::kReduce;
    const Node* distance = g_->binary(Op::kSub, score, most);
    if (!one_in(4)) distance = g_->binary(Op::kMul, distance, c(1.4426950408889634));
    const Node* power = g_->unary(Op::kExp2, distance);
    const Node* total = over_keys(ReduceOp::kSum, power);
    if (!is_bare && !one_in(3)) total = g_->select(g_->binary(Op::kEq, total, c(0)), c(1), total);
    const Node* weight = one_in(2) ? g_->binary(Op::kDiv, power, total)
                                   : g_->binary(Op::kMul, power, g_->unary(Op::kRecip, total));
    if (is_half_like(in) && (is_tiled_ || one_in(2)))
      weight = g_->cast(g_->cast(weight, in), type_);
    return weight;
  }

  void fill(const ir::Param& p, bool is_mask) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements) * size);
    std::normal_distribution<double> normal;
    const auto rows = static_cast<size_t>(std::max<int64_t>(key_->src[0]->hi, 1));
    for (size_t i = 0; i < bytes.size() / size; ++i) {
      double value = normal(random_);
      if (is_mask && (one_in(4) || i < 2 * rows)) value = -HUGE_VAL;
      const auto put = [&](auto x) { std::memcpy(&bytes[i * size], &x, size); };
      if (p.dtype == DType::kF64) put(value);
      if (p.dtype == DType::kF32) put(static_cast<float>(value));
      if (p.dtype == DType::kF16) put(f32_to_f16(static_cast<float>(value)));
      if (p.dtype == DType::kBF16) put(f32_to_bf16(static_cast<float>(value)));
    }
    c_.buffers.push_back(std::move(bytes));
  }

  std::mt19937_64 random_;
  const bool is_tiled_;
  RandomKernel c_;
  static constexpr int64_t kMostWork = 60'000, kMostTiledWork = 3'000'000;
  int64_t work_ = 1;
  Graph* g_ = nullptr;
  const Node *key_ = nullptr, *depth_ = nullptr;
  DType type_ = DType::kF32;
  int mask_ = -1;
};

}  // namespace

RandomKernel random_attention(uint64_t seed) { return AttentionMaker(seed, false).run(); }
RandomKernel random_tiled_attention(uint64_t seed) { return AttentionMaker(seed, true).run(); }

}  // namespace bm::test
