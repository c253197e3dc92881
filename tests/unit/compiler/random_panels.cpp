// Sums of products over several rows, columns and depths each, in any layout, padded and gated.
// Numbers are small and whole: every order of additions gives the same sums.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "runtime/base/half.h"
#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

/// A tensor over some of the loops, in a random order of its axes, perhaps with padding between
/// rows.
class PanelMaker {
 public:
  PanelMaker(uint64_t seed, Factors factors, int64_t most_work)
      : random_(seed), factors_(factors), most_work_(most_work) {}

  RandomKernel run() {
    c_.kernel.name = "panels";
    c_.kernel.graph = std::make_unique<Graph>();
    g_ = c_.kernel.graph.get();
    is_symbolic_ = one_in(3);
    sum_ = factors_ == Factors::kBytes              ? DType::kI32
           : factors_ == Factors::kAny && one_in(6) ? DType::kF64
                                                    : DType::kF32;
    c_.kernel.params.push_back({sum_, 0, true, false});
    draw_sizes();
    const auto batch = loops(batch_, "batch"), rows = loops(rows_, "rows"),
               columns = loops(columns_, "columns"), depth = loops(depth_, "depth");
    std::vector<const Node*> outputs = batch;
    outputs.insert(outputs.end(), rows.begin(), rows.end());
    outputs.insert(outputs.end(), columns.begin(), columns.end());
    if (one_in(4)) std::shuffle(outputs.begin(), outputs.end(), random_);
    const int products = pick({1, 1, 1, 2});
    const Node* value = nullptr;
    for (int i = 0; i < products; ++i) {
      const Node* a = operand({batch, rows, depth});
      const Node* b = operand({batch, columns, depth});
      const Node* product = one_in(2) ? g_->binary(Op::kMul, a, b) : g_->binary(Op::kMul, b, a);
      const Node* sum = g_->reduce(ir::ReduceOp::kSum, product, depth);
      value = value ? g_->binary(Op::kAdd, value, sum) : sum;
    }
    const Node* at = tensor_index(0, outputs);
    if (one_in(2)) value = g_->binary(Op::kAdd, value, operand({columns}));
    if (one_in(3)) value = g_->binary(Op::kMax, value, g_->constant(sum_, 0));
    if (one_in(4)) {
      c_.kernel.params[0].is_read = true;
      value = g_->binary(Op::kSub, g_->load(0, sum_, at), value);
    }
    const Node* gate = one_in(8) ? g_->less(columns.back(), g_->index(11)) : nullptr;
    c_.kernel.ranges = outputs;
    if (one_in(4)) std::shuffle(c_.kernel.ranges.begin(), c_.kernel.ranges.end(), random_);
    c_.kernel.stores.push_back({0, at, value, gate});
    for (const ir::Param& p : c_.kernel.params) fill(p);
    return std::move(c_);
  }

 private:
  bool one_in(int n) { return random_() % static_cast<uint64_t>(n) == 0; }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[random_() % list.size()];
  }

  using Sizes = std::vector<int64_t>;

  /// Mostly sizes that tiles are worth it for.
  void draw_sizes() {
    const bool is_any = one_in(5);
    if (one_in(8)) {  // sums that are put aside between blocks of the depth
      rows_ = sizes(1, {4, 5});
      columns_ = sizes(1, {16, 17});
      depth_ = sizes(1, {770, 801, 1100, 3100});
      return;
    }
    for (int tries = 0; tries < 100; ++tries) {
      work_ = 1;
      batch_ = sizes(pick({0, 0, 1, 2}), {1, 2, 3});
      rows_ = sizes(pick({1, 1, 2}), {4, 5, 7, 13, 14, 17, 29, 31, 64});
      columns_ = sizes(pick({1, 1, 2}), {5, 16, 17, 31, 32, 33, 48, 64, 67, 128});
      depth_ = sizes(pick({1, 1, 2, 3}), {1, 3, 5, 8, 16, 19, 37});
      const auto product = [](const Sizes& all) {
        return std::accumulate(all.begin(), all.end(), int64_t{1}, std::multiplies<>());
      };
      if (is_any || (product(depth_) >= 8 && product(columns_) >= 16 && work_ >= kWorthIt)) return;
    }
  }

  Sizes sizes(int count, std::initializer_list<int64_t> all) {
    Sizes out;
    for (int i = 0; i < count; ++i) {
      // The reference takes its time.
      int64_t size = pick(all);
      while (size > 1 && size * work_ > most_work_) --size;
      work_ *= size;
      out.push_back(size);
    }
    return out;
  }

  std::vector<const Node*> loops(const Sizes& all, const char* what) {
    std::vector<const Node*> out;
    c_.text += std::string(" ") + what;
    for (const int64_t size : all) {
      c_.text += " " + std::to_string(size);
      if (is_symbolic_ && out.empty() && one_in(2)) {
        const int64_t now = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(size));
        c_.text += "(now " + std::to_string(now) + ")";
        c_.kernel.vars.push_back({what, 1, size});
        c_.vars.push_back(now);
        out.push_back(g_->range(g_->var(static_cast<int>(c_.vars.size()) - 1, 1, size)));
      } else {
        out.push_back(g_->range(g_->index(size)));
      }
    }
    return out;
  }

  /// Index of element [ranges…]; makes room in the param.
  const Node* tensor_index(int param, const std::vector<const Node*>& ranges) {
    const Node* at = g_->index(0);
    int64_t stride = param != 0 && one_in(6) ? 2 : 1;
    for (size_t i = ranges.size(); i-- > 0;) {
      at = g_->add(at, g_->mul(ranges[i], stride));
      stride *= ranges[i]->src[0]->hi;
      if (param != 0 && one_in(6)) stride += 3;
    }
    auto& elements = c_.kernel.params[static_cast<size_t>(param)].elements;
    elements = std::max(elements, stride);
    return at;
  }

  const Node* operand(std::initializer_list<std::vector<const Node*>> groups) {
    std::vector<const Node*> ranges;
    for (const auto& g : groups) ranges.insert(ranges.end(), g.begin(), g.end());
    if (one_in(2)) std::shuffle(ranges.begin(), ranges.end(), random_);
    const DType t = factors_ == Factors::kBytes ? pick({DType::kU8, DType::kI8})
                    : factors_ == Factors::kBF16
                        ? DType::kBF16
                        : pick({sum_, sum_, sum_, DType::kF16, DType::kBF16, DType::kI8});
    c_.kernel.params.push_back({t, 1, false, true});
    const int param = static_cast<int>(c_.kernel.params.size()) - 1;
    const Node* at = tensor_index(param, ranges);
    const Node* gate = nullptr;
    if (one_in(3) && ranges.size() > 1) {
      // Padding of one axis, and a window: the sum of two loops.
      const Node* sum = g_->add(ranges.back(), ranges[ranges.size() - 2]);
      gate = g_->both(g_->less(g_->index(1), sum), g_->less(sum, g_->index(30)));
      if (one_in(2)) at = g_->sub(at, g_->index(2));
      if (at->lo < 0) gate = g_->both(gate, g_->less(g_->index(-1), at));
      c_.text += " gate";
    }
    const Node* v = g_->cast(g_->load(param, t, at, gate), sum_);
    if (factors_ == Factors::kAny && one_in(5))
      v = g_->binary(Op::kAdd, v, g_->constant_f(sum_, 1));
    return v;
  }

  void fill(const ir::Param& p) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements) * size);
    for (size_t i = 0; i < bytes.size() / size; ++i) {
      const bool is_small = factors_ != Factors::kBytes;
      const int value = static_cast<int>(random_() % (is_small ? 7 : 256)) - (is_small ? 3 : 128);
      const auto put = [&](auto x) { std::memcpy(&bytes[i * size], &x, size); };
      if (p.dtype == DType::kF64) put(static_cast<double>(value));
      if (p.dtype == DType::kF32) put(static_cast<float>(value));
      if (p.dtype == DType::kF16) put(f32_to_f16(static_cast<float>(value)));
      if (p.dtype == DType::kBF16) put(f32_to_bf16(static_cast<float>(value)));
      if (p.dtype == DType::kI8) put(static_cast<int8_t>(value));
      if (p.dtype == DType::kU8) put(static_cast<uint8_t>(value + 128));
      if (p.dtype == DType::kI32) put(value);
    }
    c_.buffers.push_back(std::move(bytes));
  }

  std::mt19937_64 random_;
  Factors factors_;
  /// Products below it have no tiles.
  static constexpr int64_t kWorthIt = 34'000;
  int64_t most_work_;
  Sizes batch_, rows_, columns_, depth_;
  RandomKernel c_;
  int64_t work_ = 1;
  Graph* g_ = nullptr;
  DType sum_ = DType::kF32;
  bool is_symbolic_ = false;
};

}  // namespace

RandomKernel random_panels(uint64_t seed, Factors factors, int64_t most_work) {
  return PanelMaker(seed, factors, most_work).run();
}

}  // namespace bm::test
