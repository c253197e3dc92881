#include "compiler/analysis/byte_lookup.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

constexpr size_t kMostLoads = 2, kMostBits = 4;
/// Operations from which on fields, masks and a lookup are fewer.
constexpr size_t kWorthIt = 8;

/// Which bits of the loads every bit of a byte depends on: bit b of load i is bit 8·i + b.
using Dependencies = std::array<uint16_t, 8>;

class LookupFinder {
 public:
  std::optional<ByteLookup> run(const Node* root) {
    if (!collect(root) || operations_ < kWorthIt) return std::nullopt;
    for (const Node* n : order_)
      if (!depend(n)) return std::nullopt;
    uint32_t all = 0;
    for (const uint16_t bits : dependencies_.at(root)) all |= bits;
    ByteLookup out;
    uint32_t total = 0;
    for (size_t i = 0; i < loads_.size(); ++i) {
      const uint32_t own = all >> 8 * i & 255;
      if (own == 0) continue;
      const auto from = static_cast<uint32_t>(std::countr_zero(own)),
                 bits = static_cast<uint32_t>(std::popcount(own));
      if (own != ((1U << bits) - 1) << from) return std::nullopt;
      out.fields.push_back({loads_[i], from, bits});
      total += bits;
    }
    if (out.fields.empty() || total > kMostBits) return std::nullopt;
    for (uint32_t i = 0; i < out.table.size(); ++i) out.table[i] = value_at(root, out, i);
    return out;
  }

 private:
  /// Sources first.
  bool collect(const Node* root) {
    std::vector<const Node*> stack{root};
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!dependencies_.try_emplace(n).second) continue;
      order_.push_back(n);
      if (n->op == Op::kLoad) {
        loads_.push_back(n);
        if (loads_.size() > kMostLoads) return false;
        continue;
      }
      if (n->op == Op::kConst) continue;
      ++operations_;
      stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
    std::ranges::sort(order_, {}, &Node::id);
    return true;
  }

  bool depend(const Node* n) {
    Dependencies& out = dependencies_.at(n);
    const auto of = [&](size_t i) -> const Dependencies& { return dependencies_.at(n->src[i]); };
    switch (n->op) {
      case Op::kConst: return true;
      case Op::kLoad: {
        const auto number = static_cast<size_t>(std::ranges::find(loads_, n) - loads_.begin());
        for (size_t b = 0; b < 8; ++b) out[b] = static_cast<uint16_t>(1 << (8 * number + b));
        return true;
      }
      case Op::kAnd:
      case Op::kOr:
      case Op::kXor: {
        const bool masks = n->op == Op::kAnd && n->src[1]->is_const();
        for (size_t b = 0; b < 8; ++b)
          out[b] = masks && (n->src[1]->imm >> b & 1) == 0
                       ? uint16_t{0}
                       : static_cast<uint16_t>(of(0)[b] | of(1)[b]);
        return true;
      }
      case Op::kShl:
      case Op::kShr: {
        if (!n->src[1]->is_const()) return false;
        const auto by = static_cast<size_t>(n->src[1]->imm);
        for (size_t b = 0; b < 8; ++b) {
          const size_t from = n->op == Op::kShr ? b + by : b - by;  // below 0: far above 8
          out[b] = from < 8 ? of(0)[from] : uint16_t{0};
        }
        return true;
      }
      case Op::kMul:  // of a single bit and 255
        out.fill(of(0)[0]);
        return true;
      default: return false;
    }
  }

  uint8_t value_at(const Node* root, const ByteLookup& lookup, uint32_t index) {
    std::unordered_map<const Node*, uint32_t> values;
    for (const ByteLookup::Field& f : lookup.fields) {
      values[f.load] = (index & ((1U << f.bits) - 1)) << f.from;
      index >>= f.bits;
    }
    for (const Node* n : order_) {
      if (n->op == Op::kLoad) continue;  // of no field: nothing depends on it
      const auto of = [&](size_t i) { return values[n->src[i]]; };
      uint32_t v = 0;
      switch (n->op) {
        case Op::kConst: v = static_cast<uint32_t>(n->imm); break;
        case Op::kAnd: v = of(0) & of(1); break;
        case Op::kOr: v = of(0) | of(1); break;
        case Op::kXor: v = of(0) ^ of(1); break;
        case Op::kShl: v = of(0) << n->src[1]->imm; break;
        case Op::kShr: v = of(0) >> n->src[1]->imm; break;
        default: v = of(0) * 255; break;
      }
      values[n] = v & 255;
    }
    return static_cast<uint8_t>(values[root]);
  }

  std::vector<const Node*> order_, loads_;
  std::unordered_map<const Node*, Dependencies> dependencies_;
  size_t operations_ = 0;
};

}  // namespace

std::optional<ByteLookup> find_byte_lookup(const Node* n) { return LookupFinder().run(n); }

}  // namespace bm::compiler
