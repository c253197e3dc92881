#include "compiler/ir/evaluate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>

#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;
using ir::Scalar;

template <class T>
T raw(const std::byte* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

Scalar read_scalar(DType t, const std::byte* at) {
  switch (t) {
    case DType::kBool: return {t, raw<uint8_t>(at) != 0, 0};
    case DType::kI8: return {t, raw<int8_t>(at), 0};
    case DType::kU8: return {t, raw<uint8_t>(at), 0};
    case DType::kI16: return {t, raw<int16_t>(at), 0};
    case DType::kU16: return {t, raw<uint16_t>(at), 0};
    case DType::kI32: return {t, raw<int32_t>(at), 0};
    case DType::kU32: return {t, raw<uint32_t>(at), 0};
    case DType::kI64:
    case DType::kU64: return {t, raw<int64_t>(at), 0};
    case DType::kF16: return {t, 0, static_cast<double>(f16_to_f32(raw<uint16_t>(at)))};
    case DType::kBF16: return {t, 0, static_cast<double>(bf16_to_f32(raw<uint16_t>(at)))};
    case DType::kF32: return {t, 0, static_cast<double>(raw<float>(at))};
    case DType::kF64: return {t, 0, raw<double>(at)};
  }
  return {};
}

void write_scalar(const Scalar& s, std::byte* at) {
  const auto put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (s.dtype) {
    case DType::kF16: return put(f32_to_f16(static_cast<float>(s.f)));
    case DType::kBF16: return put(f32_to_bf16(static_cast<float>(s.f)));
    case DType::kF32: return put(static_cast<float>(s.f));
    case DType::kF64: return put(s.f);
    default: std::memcpy(at, &s.i, static_cast<size_t>(item_size(s.dtype)));
  }
}

class Evaluator {
 public:
  Evaluator(const ir::KernelIr& k, std::span<const std::span<std::byte>> buffers,
            std::span<const int64_t> vars)
      : k_(k), buffers_(buffers), vars_(vars) {
    std::vector<const Node*> roots(k.ranges);
    for (const ir::Store& s : k.stores) {
      roots.push_back(s.index);
      roots.push_back(s.value);
      if (s.gate) roots.push_back(s.gate);
    }
    uint32_t last = 0;
    const std::vector<const Node*> order = ir::topological(roots);
    for (const Node* n : order) last = std::max(last, n->id);
    values_.resize(last + 1);
    is_known_.resize(last + 1);
    index_.resize(last + 1);
    users_.resize(last + 1);
    std::unordered_map<const Node*, std::vector<const Node*>> depends;
    for (const Node* n : order) {
      auto& d = depends[n];
      if (n->op == Op::kRange) d.push_back(n);
      for (const Node* s : n->src) d.insert(d.end(), depends[s].begin(), depends[s].end());
      std::sort(d.begin(), d.end());
      d.erase(std::unique(d.begin(), d.end()), d.end());
      for (const Node* r : d) users_[r->id].push_back(n->id);
    }
  }

  Status run() {
    loop(0);
    return problem_ ? fail(Code::kInternal, "kernel {}: {}", k_.name, *problem_) : Status{};
  }

 private:
  void set(const Node* range, int64_t value) {
    index_[range->id] = value;
    for (uint32_t user : users_[range->id]) is_known_[user] = 0;
  }

  void loop(size_t depth) {
    if (problem_) return;
    if (depth == k_.ranges.size()) return stores();
    const int64_t extent = eval(k_.ranges[depth]->src[0]).i;
    for (int64_t i = 0; i < extent; ++i) {
      set(k_.ranges[depth], i);
      loop(depth + 1);
    }
  }

  void stores() {
    struct Pending {
      const ir::Store* store;
      int64_t index;
      Scalar value;
    };
    std::vector<Pending> pending;
    for (const ir::Store& s : k_.stores) {
      if (s.gate && !eval(s.gate).i) continue;
      pending.push_back({&s, eval(s.index).i, eval(s.value)});
    }
    for (const Pending& p : pending)
      if (std::byte* at = address(p.store->param, p.index)) write_scalar(p.value, at);
  }

  std::byte* address(int param, int64_t index) {
    const auto p = static_cast<size_t>(param);
    const int64_t size = item_size(k_.params[p].dtype);
    if (index < 0 || (index + 1) * size > static_cast<int64_t>(buffers_[p].size())) {
      problem_ = fmt::format("element {} is outside param {}", index, param);
      return nullptr;
    }
    return buffers_[p].data() + index * size;
  }

  const Scalar& eval(const Node* n) {
    if (is_known_[n->id]) return values_[n->id];
    values_[n->id] = compute(n);
    is_known_[n->id] = 1;
    return values_[n->id];
  }

  Scalar compute(const Node* n) {
    switch (n->op) {
      case Op::kConst:
        return is_float(n->dtype) ? Scalar{n->dtype, 0, n->fimm()} : Scalar{n->dtype, n->imm, 0};
      case Op::kVar: return {DType::kI64, vars_[static_cast<size_t>(n->imm)], 0};
      case Op::kRange: return {DType::kI64, index_[n->id], 0};
      case Op::kLoad: {
        if (n->src.size() > 1 && !eval(n->src[1]).i) return {n->dtype, 0, 0};
        const std::byte* at = address(static_cast<int>(n->imm), eval(n->src[0]).i);
        return at ? read_scalar(n->dtype, at) : Scalar{n->dtype, 0, 0};
      }
      case Op::kReduce:
      case Op::kScan: return reduce(n);
      case Op::kTopK: return top_k(n);
      default: {
        std::array<Scalar, 3> args{};
        for (size_t i = 0; i < n->src.size(); ++i) args[i] = eval(n->src[i]);
        return ir::fold(n->op, n->dtype, std::span<const Scalar>(args).first(n->src.size()));
      }
    }
  }

  Scalar reduce(const Node* n) {
    // Float sums in double: the exact answer within rounding, whatever the order.
    const DType t = is_float(n->dtype) ? DType::kF64 : n->dtype;
    constexpr double kInf = std::numeric_limits<double>::infinity();
    Scalar acc{t, 0, 0};
    switch (n->reduce_op()) {
      case ir::ReduceOp::kSum: break;
      case ir::ReduceOp::kProd: acc = {t, 1, 1}; break;
      case ir::ReduceOp::kMax: acc = {t, int_min(n->dtype), -kInf}; break;
      case ir::ReduceOp::kMin: acc = {t, t == DType::kU64 ? -1 : int_max(n->dtype), kInf}; break;
    }
    if (n->op == Op::kReduce)
      accumulate(n, 1, acc);
    else
      accumulate_so_far(n, acc);
    return ir::fold(Op::kCast, n->dtype, std::array{acc});
  }

  void accumulate(const Node* n, size_t depth, Scalar& acc) {
    if (depth < n->src.size()) {
      const int64_t extent = eval(n->src[depth]->src[0]).i;
      for (int64_t i = 0; i < extent && !problem_; ++i) {
        set(n->src[depth], i);
        accumulate(n, depth + 1, acc);
      }
      return;
    }
    accumulate_one(n, acc);
  }

  void accumulate_so_far(const Node* n, Scalar& acc) {
    const int64_t last = index_[n->src[1]->id];
    for (int64_t i = 0; i <= last && !problem_; ++i) {
      set(n->src[1], i);
      accumulate_one(n, acc);
    }
  }

  void accumulate_one(const Node* n, Scalar& acc) {
    static constexpr std::array kOps = {Op::kAdd, Op::kMul, Op::kMax, Op::kMin};
    const Scalar v = ir::fold(Op::kCast, acc.dtype, std::array{eval(n->src[0])});
    acc = ir::fold(kOps[static_cast<size_t>(n->imm)], acc.dtype, std::array{acc, v});
  }

  Scalar top_k(const Node* n) {
    const auto number = static_cast<size_t>(eval(n->src[2]).i);
    const int64_t extent = eval(n->src[1]->src[0]).i;
    std::vector<int64_t> all;
    for (int64_t i = 0; i < extent && !problem_; ++i) {
      set(n->src[1], i);
      all.push_back(eval(n->src[0]).i);
    }
    std::sort(all.begin(), all.end());
    return {DType::kI64, number < all.size() ? all[number] : INT64_MAX, 0};
  }

  const ir::KernelIr& k_;
  std::span<const std::span<std::byte>> buffers_;
  std::span<const int64_t> vars_;
  // By node id.
  std::vector<Scalar> values_;
  std::vector<uint8_t> is_known_;
  std::vector<int64_t> index_;
  std::vector<std::vector<uint32_t>> users_;
  std::optional<std::string> problem_;
};

}  // namespace

Status evaluate(const ir::KernelIr& kernel, std::span<const std::span<std::byte>> buffers,
                std::span<const int64_t> vars) {
  if (buffers.size() != kernel.params.size() || vars.size() != kernel.vars.size())
    return fail(Code::kInvalidArgument,
                "kernel {} takes {} buffers and {} variables, got {} and {}", kernel.name,
                kernel.params.size(), kernel.vars.size(), buffers.size(), vars.size());
  return Evaluator(kernel, buffers, vars).run();
}

}  // namespace bm::compiler
