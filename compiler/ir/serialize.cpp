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

/// Whether the graph's makers may be handed this node: what they assume holds.
bool is_well_formed(const KernelIr& k, const Node& n) {
  const auto& s = n.src;
  const bool is_reduce_op = n.imm >= 0 && n.imm <= static_cast<int64_t>(ReduceOp::kMin);
  const auto is_index = [](int64_t i, size_t count) {
    return i >= 0 && i < static_cast<int64_t>(count);
  };
  if (is_binary(n.op))
    return s.size() == 2 && s[0]->dtype == s[1]->dtype &&
           !(n.op >= Op::kAnd && n.op <= Op::kShr && is_float(s[0]->dtype));
  switch (n.op) {
    case Op::kConst: return s.empty();
    case Op::kVar: return s.empty() && is_index(n.imm, k.vars.size());
    case Op::kRange: return s.size() == 1 && is_index(n.imm, kMaxCount + 1);
    case Op::kLoad: return !s.empty() && s.size() <= 2 && is_index(n.imm, k.params.size());
    case Op::kReduce: return s.size() >= 2 && is_reduce_op;
    case Op::kScan: return s.size() == 2 && is_reduce_op;
    case Op::kTopK:
      return s.size() == 3 && s[0]->dtype == DType::kI64 && s[2]->dtype == DType::kI64;
    case Op::kSelect:
      return s.size() == 3 && s[0]->dtype == DType::kBool && s[1]->dtype == s[2]->dtype;
    case Op::kFma: return s.size() == 3 && s[0]->dtype == s[1]->dtype && s[0]->dtype == s[2]->dtype;
    case Op::kCast: return s.size() == 1;
    case Op::kBitcast: return s.size() == 1 && item_size(s[0]->dtype) == item_size(n.dtype);
    case Op::kNeg:
    case Op::kTrunc: return s.size() == 1;
    case Op::kNot: return s.size() == 1 && !is_float(s[0]->dtype);
    case Op::kRecip:
    case Op::kSqrt:
    case Op::kExp2:
    case Op::kLog2:
    case Op::kSin: return s.size() == 1 && is_float(s[0]->dtype);
    default: return false;  // The binary ones are done; a new one is refused until it is listed.
  }
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
  std::vector<const Node*> nodes, src;
  const uint32_t num_nodes = BM_TRY(r.count());
  for (uint32_t i = 0; i < num_nodes; ++i) {
    const Op op = BM_TRY(r.get<Op>());
    const DType dtype = BM_TRY(r.get<DType>());
    const int64_t imm = BM_TRY(r.get<int64_t>());
    const uint32_t arity = BM_TRY(r.count());
    if (static_cast<int>(op) >= kNumOps || static_cast<int>(dtype) >= kNumDTypes)
      return fail(Code::kCorrupt, "kernel blob: node {} has an unknown operation or dtype", i);
    src.clear();
    for (uint32_t j = 0; j < arity; ++j) {
      const uint32_t s = BM_TRY(r.get<uint32_t>());
      if (s >= nodes.size()) return fail(Code::kCorrupt, "kernel blob: node {} uses node {}", i, s);
      src.push_back(nodes[s]);
    }
    Node node{.op = op, .dtype = dtype, .imm = imm, .src = src};
    if (!is_well_formed(k, node))
      return fail(Code::kCorrupt, "kernel blob: malformed {} node", op_name(op));
    if (op == Op::kVar) {
      const VarDecl& v = k.vars[static_cast<size_t>(imm)];
      node.lo = v.min;
      node.hi = v.max;
    }
    nodes.push_back(k.graph->remake(node, src));
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
