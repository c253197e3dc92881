// Canonical bytes of a kernel: cache key, file format, and the way to compare kernels.
#include <unordered_map>

#include "compiler/ir/kernel.h"

namespace bm::ir {
namespace {

constexpr uint32_t kMagic = 0x314b4d42;  // "BMK1"
constexpr uint32_t kMaxCount = 1u << 20;

class Writer {
 public:
  template <class T>
  void put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  Result<T> get() {
    if (bytes_.size() - at_ < sizeof(T))
      return fail(Code::kCorrupt, "kernel blob ends at byte {}", at_);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Result<uint32_t> count() {
    const uint32_t n = BM_TRY(get<uint32_t>());
    if (n > kMaxCount || n > bytes_.size())
      return fail(Code::kCorrupt, "kernel blob: count {} at byte {}", n, at_);
    return n;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace

std::string serialize(const KernelIr& k) {
  std::vector<const Node*> roots(k.ranges);
  for (const Store& s : k.stores) {
    roots.push_back(s.index);
    roots.push_back(s.value);
    if (s.gate) roots.push_back(s.gate);
  }
  const std::vector<const Node*> order = topological(roots);
  std::unordered_map<const Node*, uint32_t> number;
  std::unordered_map<int64_t, int64_t> range_number;
  Writer w;
  w.put(kMagic);
  w.put(static_cast<uint32_t>(k.params.size()));
  for (const Param& p : k.params) {
    w.put(p.dtype);
    w.put(p.elements);
    w.put(static_cast<uint8_t>((p.is_read ? 1 : 0) | (p.is_written ? 2 : 0)));
  }
  w.put(static_cast<uint32_t>(k.vars.size()));
  for (const VarDecl& v : k.vars) {
    w.put(v.min);
    w.put(v.max);
  }
  w.put(static_cast<uint32_t>(order.size()));
  for (const Node* n : order) {
    number.emplace(n, static_cast<uint32_t>(number.size()));
    int64_t imm = n->imm;
    if (n->op == Op::kRange)
      imm = range_number.emplace(imm, static_cast<int64_t>(range_number.size())).first->second;
    w.put(n->op);
    w.put(n->dtype);
    w.put(imm);
    w.put(static_cast<uint32_t>(n->src.size()));
    for (const Node* s : n->src) w.put(number.at(s));
  }
  w.put(static_cast<uint32_t>(k.ranges.size()));
  for (const Node* r : k.ranges) w.put(number.at(r));
  w.put(static_cast<uint32_t>(k.stores.size()));
  for (const Store& s : k.stores) {
    w.put(static_cast<int32_t>(s.param));
    w.put(number.at(s.index));
    w.put(number.at(s.value));
    w.put(s.gate ? number.at(s.gate) : UINT32_MAX);
  }
  return w.take();
}

namespace {

/// Rebuilds one node through the graph's makers after checking what they assume.
Result<const Node*> rebuild(const KernelIr& k, Op op, DType dtype, int64_t imm,
                            std::span<const Node* const> s) {
  Graph& g = *k.graph;
  const auto bad = [&] {
    return fail(Code::kCorrupt, "kernel blob: malformed {} node", op_name(op));
  };
  switch (op) {
    case Op::kConst:
      return is_float(dtype) ? g.constant_f(dtype, std::bit_cast<double>(imm))
                             : g.constant(dtype, imm);
    case Op::kVar:
      if (imm < 0 || imm >= static_cast<int64_t>(k.vars.size())) return bad();
      return g.var(static_cast<int>(imm), k.vars[static_cast<size_t>(imm)].min,
                   k.vars[static_cast<size_t>(imm)].max);
    case Op::kRange:
      if (s.size() != 1 || imm < 0 || imm > kMaxCount) return bad();
      return g.range_with_id(imm, s[0]);
    case Op::kLoad:
      if (s.empty() || s.size() > 2 || imm < 0 || imm >= static_cast<int64_t>(k.params.size()))
        return bad();
      return g.load(static_cast<int>(imm), dtype, s[0], s.size() == 2 ? s[1] : nullptr);
    case Op::kReduce:
      if (s.size() < 2 || imm < 0 || imm > static_cast<int64_t>(ReduceOp::kMin)) return bad();
      return g.reduce(static_cast<ReduceOp>(imm), s[0], s.subspan(1));
    case Op::kScan:
      if (s.size() != 2 || imm < 0 || imm > static_cast<int64_t>(ReduceOp::kMin)) return bad();
      return g.scan(static_cast<ReduceOp>(imm), s[0], s[1]);
    case Op::kLeast:
      if (s.size() != 3 || s[0]->dtype != DType::kI64 || s[2]->dtype != DType::kI64) return bad();
      return g.least(s[0], s[1], s[2]);
    case Op::kSelect:
      if (s.size() != 3 || s[0]->dtype != DType::kBool || s[1]->dtype != s[2]->dtype) return bad();
      return g.select(s[0], s[1], s[2]);
    case Op::kFma:
      if (s.size() != 3 || s[0]->dtype != s[1]->dtype || s[0]->dtype != s[2]->dtype) return bad();
      return g.fma(s[0], s[1], s[2]);
    case Op::kCast: return s.size() == 1 ? Result<const Node*>(g.cast(s[0], dtype)) : bad();
    case Op::kBitcast:
      if (s.size() != 1 || item_size(s[0]->dtype) != item_size(dtype)) return bad();
      return g.bitcast(s[0], dtype);
    default: break;
  }
  if (is_unary(op)) {
    const bool needs_float =
        op == Op::kRecip || op == Op::kSqrt || op == Op::kExp2 || op == Op::kLog2 || op == Op::kSin;
    if (s.size() != 1 || (needs_float && !is_float(s[0]->dtype)) ||
        (op == Op::kNot && is_float(s[0]->dtype)))
      return bad();
    return g.unary(op, s[0]);
  }
  const bool needs_int =
      op == Op::kAnd || op == Op::kOr || op == Op::kXor || op == Op::kShl || op == Op::kShr;
  if (s.size() != 2 || s[0]->dtype != s[1]->dtype || (needs_int && is_float(s[0]->dtype)))
    return bad();
  return g.binary(op, s[0], s[1]);
}

}  // namespace

Result<KernelIr> deserialize(std::string_view bytes) {
  Reader r(bytes);
  KernelIr k;
  k.name = "k";
  k.graph = std::make_unique<Graph>();
  if (BM_TRY(r.get<uint32_t>()) != kMagic) return fail(Code::kCorrupt, "kernel blob: wrong magic");
  const uint32_t num_params = BM_TRY(r.count());
  for (uint32_t i = 0; i < num_params; ++i) {
    Param p;
    p.dtype = BM_TRY(r.get<DType>());
    p.elements = BM_TRY(r.get<int64_t>());
    const uint8_t flags = BM_TRY(r.get<uint8_t>());
    if (static_cast<int>(p.dtype) >= kNumDTypes)
      return fail(Code::kCorrupt, "kernel blob: dtype of param {}", i);
    p.is_read = flags & 1;
    p.is_written = flags & 2;
    k.params.push_back(p);
  }
  const uint32_t num_vars = BM_TRY(r.count());
  for (uint32_t i = 0; i < num_vars; ++i) {
    VarDecl v{fmt::format("v{}", i), 0, 0};
    v.min = BM_TRY(r.get<int64_t>());
    v.max = BM_TRY(r.get<int64_t>());
    k.vars.push_back(std::move(v));
  }
  std::vector<const Node*> nodes;
  const uint32_t num_nodes = BM_TRY(r.count());
  for (uint32_t i = 0; i < num_nodes; ++i) {
    const Op op = BM_TRY(r.get<Op>());
    const DType dtype = BM_TRY(r.get<DType>());
    const int64_t imm = BM_TRY(r.get<int64_t>());
    const uint32_t arity = BM_TRY(r.count());
    if (static_cast<int>(op) >= kNumOps || static_cast<int>(dtype) >= kNumDTypes)
      return fail(Code::kCorrupt, "kernel blob: node {} has an unknown operation or dtype", i);
    std::vector<const Node*> src;
    for (uint32_t j = 0; j < arity; ++j) {
      const uint32_t s = BM_TRY(r.get<uint32_t>());
      if (s >= nodes.size()) return fail(Code::kCorrupt, "kernel blob: node {} uses node {}", i, s);
      src.push_back(nodes[s]);
    }
    nodes.push_back(BM_TRY(rebuild(k, op, dtype, imm, src)));
  }
  const uint32_t num_ranges = BM_TRY(r.count());
  const auto node = [&](uint32_t i) { return i < nodes.size() ? nodes[i] : nullptr; };
  for (uint32_t i = 0; i < num_ranges; ++i) {
    const Node* n = node(BM_TRY(r.get<uint32_t>()));
    if (!n || n->op != Op::kRange) return fail(Code::kCorrupt, "kernel blob: output range {}", i);
    k.ranges.push_back(n);
  }
  const uint32_t num_stores = BM_TRY(r.count());
  for (uint32_t i = 0; i < num_stores; ++i) {
    Store s;
    s.param = BM_TRY(r.get<int32_t>());
    s.index = node(BM_TRY(r.get<uint32_t>()));
    s.value = node(BM_TRY(r.get<uint32_t>()));
    const uint32_t gate = BM_TRY(r.get<uint32_t>());
    s.gate = gate == UINT32_MAX ? nullptr : node(gate);
    if (!s.index || !s.value || (gate != UINT32_MAX && !s.gate))
      return fail(Code::kCorrupt, "kernel blob: store {}", i);
    k.stores.push_back(s);
  }
  if (!r.at_end()) return fail(Code::kCorrupt, "kernel blob: bytes after the end");
  if (auto ok = verify(k); !ok) return fail(Code::kCorrupt, "kernel blob: {}", ok.error().message);
  return k;
}

}  // namespace bm::ir
