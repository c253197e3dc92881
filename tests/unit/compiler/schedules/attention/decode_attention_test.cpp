// Decode attention split over keys, as models ask for it, on the interpreters of PTX and of AMD's
// instructions, against sums in float64 with fresh random input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "compiler/compile.h"
#include "compiler/schedules/attention/split.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

using compiler::SplitAttention;

struct Step {
  DType type = DType::kF32;  ///< of keys and values; kI8: codes, with a scale for each block
  int64_t heads = 4, shared_heads = 2, width = 64, capacity = 512, length = 1;
  int64_t window = 0;  ///< not 0: so many keys are seen
  double cap = 0;      ///< not 0: scores stay within
  bool is_paged = false;
  const char* card = "sm_80";
  const char* renderer = "PTX";
  uint32_t units = 4;
  uint64_t shift = 0;  ///< bytes between multiples of 256 and every buffer
  double spread = 1;   ///< of queries
  int64_t block = 32;  ///< of int8 codes
};

constexpr int64_t kPage = 16;

std::string text_of(const Step& s) {
  return fmt::format(
      "{} heads ({}), width {}, {} of {} keys of {}, window {}, cap {}, paged {}, {} {}, {} units",
      s.heads, s.shared_heads, s.width, s.length, s.capacity, dtype_name(s.type), s.window, s.cap,
      s.is_paged, s.card, s.renderer, s.units);
}

bool is_amd_step(const Step& s) { return std::string_view(s.card).starts_with("gfx"); }

hal::Arch arch_of(const Step& s) {
  hal::Arch arch = is_amd_step(s) ? amd_arch(s.card) : ptx_arch();
  arch.name = s.card;
  arch.units = s.units;
  return arch;
}

/// The graph of one step, and its inputs in numbers.
class Decoding {
 public:
  explicit Decoding(const Step& s) : s_(s), length_("length", 1, s.capacity) {
    const std::string device = fmt::format("NULL:{}::{}", s.renderer, s.card);
    length_.set(s.length);
    const int64_t group = s.heads / s.shared_heads;
    const SymInt end(length_);
    q_ = Tensor::empty({1, s.heads, s.width}, DType::kF32, device);
    Tensor keys, values;
    if (s.is_paged) {
      slots_ = Tensor::empty({s.capacity + kPage, 2, s.shared_heads, s.width}, s.type, device);
      if (is_int8())
        slot_scales_ = Tensor::empty({s.capacity + kPage, 2, s.shared_heads, s.width / s.block},
                                     DType::kF16, device);
      pages_ = Tensor::empty({s.capacity / kPage}, DType::kI32, device);
      const Tensor at = Tensor::arange(end, DType::kI64, device);
      const Tensor page = pages_.take(at >> 4).cast(DType::kI64);
      const Tensor slot = (page << 4) + (at & (kPage - 1));
      const Tensor past =
          restored(slots_.take(slot), is_int8() ? slot_scales_.take(slot) : Tensor());
      const auto part = [&](int64_t which) {
        return past.slice(1, {which, which + 1})
            .reshape({end, s.shared_heads, s.width})
            .permute({1, 0, 2});
      };
      keys = part(0);
      values = part(1);
    } else {
      k_ = Tensor::empty({s.shared_heads, s.capacity, s.width}, s.type, device);
      v_ = Tensor::empty({s.shared_heads, s.capacity, s.width}, s.type, device);
      if (is_int8())
        for (Tensor* t : {&k_scales_, &v_scales_})
          *t = Tensor::empty({s.shared_heads, s.capacity, s.width / s.block}, DType::kF16, device);
      const auto shrunk = [&](const Tensor& t) {
        return t.is_valid() ? t.shrink({{0, s.shared_heads}, {0, end}, {0, t.size(2)}}) : t;
      };
      keys = restored(shrunk(k_), shrunk(k_scales_));
      values = restored(shrunk(v_), shrunk(v_scales_));
    }
    Tensor scores = q_.reshape({1, s.shared_heads, group, s.width})
                        .permute({1, 2, 0, 3})
                        .matmul(keys.unsqueeze(1).transpose()) *
                    scale();
    if (s.cap > 0) scores = (scores * (1 / s.cap)).tanh() * s.cap;
    if (s.window > 0) {
      const Tensor key = Tensor::arange(end, DType::kI64, device).unsqueeze(0);
      const Tensor query = Tensor::value_of(end - 1, device).reshape({1, 1});
      scores = ((key <= query) & (key > query - s.window)).where(scores, -HUGE_VAL);
    }
    result_ = scores.softmax(-1).matmul(values.unsqueeze(1)).permute({2, 0, 1, 3});
  }

  bool is_int8() const { return s_.type == DType::kI8; }

  /// As caches of models give their numbers: float32, of int8 codes by their scales.
  Tensor restored(const Tensor& numbers, const Tensor& scales) const {
    const Tensor wide = numbers.cast(DType::kF32);
    if (!is_int8()) return wide;
    Shape blocks = numbers.shape();
    blocks.back() = s_.width / s_.block;
    blocks.push_back(s_.block);
    const auto last = static_cast<int64_t>(blocks.size()) - 1;
    return (wide.reshape(blocks) * scales.cast(DType::kF32).unsqueeze(last))
        .reshape(numbers.shape());
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(s_.width)); }

  /// Stored nodes of the plan.
  size_t kernels() const {
    const NodePtr root = result_.node();
    return plan_fusion({&root, 1}).stored.size();
  }

  LoweredKernel kernel() const {
    const NodePtr root = result_.node();
    const FusionPlan plan = plan_fusion({&root, 1});
    // What only changes the order of axes reads the stored node below.
    const Node* at = root.get();
    while (at->kind != NodeKind::kReduce) at = at->src[0].get();
    return *lower(*at, nullptr, [&](const Node* n) { return n != at && plan.stored.contains(n); });
  }

  static double get(DType t, const std::byte* from) {
    if (t == DType::kI8) return static_cast<double>(static_cast<int8_t>(*from));
    float single = 0;
    uint16_t half = 0;
    std::memcpy(&single, from, t == DType::kF32 ? 4 : 2);
    std::memcpy(&half, from, 2);
    return t == DType::kF32   ? static_cast<double>(single)
           : t == DType::kF16 ? static_cast<double>(f16_to_f32(half))
                              : static_cast<double>(bf16_to_f32(half));
  }

  /// Buffers of all params but the first. Behind the keys that are there lie NaN.
  Buffers fill(const LoweredKernel& kernel, std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    for (int64_t p = 0; p < s_.capacity / kPage; ++p)
      page_of_.push_back(static_cast<int32_t>(p + 1));
    std::shuffle(page_of_.begin(), page_of_.end(), random);
    Buffers out(kernel.params.size());
    for (size_t i = 1; i < out.size(); ++i) {
      const DType t = kernel.ir.params[i].dtype;
      const auto size = static_cast<size_t>(item_size(t));
      std::vector<std::byte> bytes(static_cast<size_t>(kernel.ir.params[i].elements) * size);
      const bool is_query = kernel.params[i] == q_.node().get();
      if (pages_.is_valid() && kernel.params[i] == pages_.node().get()) {
        bytes.resize(page_of_.size() * 4);
        std::memcpy(bytes.data(), page_of_.data(), bytes.size());
      } else {
        // Scales are below 1/64, codes anything.
        const double spread = is_query ? s_.spread : is_int8() && t == DType::kF16 ? 0x1p-8 : 1;
        for (size_t j = 0; j < bytes.size(); j += size)
          if (t == DType::kI8)
            bytes[j] = static_cast<std::byte>(random());
          else
            put(t, normal(random) * spread, &bytes[j]);
      }
      if (is_query) query_ = bytes;
      const auto is = [&](const Tensor& tensor) {
        return tensor.is_valid() && kernel.params[i] == tensor.node().get();
      };
      if (is(k_scales_)) hide(&bytes), key_scales_ = bytes;
      if (is(v_scales_)) hide(&bytes), value_scales_ = bytes;
      if (is(slot_scales_)) key_scales_ = bytes;
      if (is(k_) && !is_int8()) hide(&bytes);
      if (is(v_) && !is_int8()) hide(&bytes);
      if (is(k_)) keys_ = bytes;
      if (is(v_)) values_ = bytes;
      if (slots_.is_valid() && kernel.params[i] == slots_.node().get()) keys_ = bytes;
      out[i] = std::move(bytes);
    }
    return out;
  }

  /// Largest difference from float64 beyond what float32 may lose.
  double worst_excess(const std::vector<std::byte>& got) const {
    double worst = -HUGE_VAL;
    for (int64_t h = 0; h < s_.heads; ++h) {
      const int64_t shared = h * s_.shared_heads / s_.heads;
      std::vector<double> w;
      double most = -HUGE_VAL, total = 0;
      for (int64_t p = 0; p < s_.length; ++p) {
        double score = 0;
        for (int64_t d = 0; d < s_.width; ++d)
          score += get(DType::kF32, &query_[static_cast<size_t>(h * s_.width + d) * 4]) *
                   stored(0, shared, p, d);
        score *= scale();
        if (s_.cap > 0) score = std::tanh(score / s_.cap) * s_.cap;
        if (s_.window > 0 && p <= s_.length - 1 - s_.window) score = -HUGE_VAL;
        w.push_back(score);
        most = std::max(most, score);
      }
      for (double& x : w) total += x = std::exp(x - most);
      for (int64_t d = 0; d < s_.width; ++d) {
        double want = 0, size = 0;
        for (int64_t p = 0; p < s_.length; ++p) {
          const double x = w[static_cast<size_t>(p)] * stored(1, shared, p, d) / total;
          want += x;
          size += std::fabs(x);
        }
        const double have = get(DType::kF32, &got[static_cast<size_t>(h * s_.width + d) * 4]);
        const double error = std::fabs(have - want);
        worst = std::max(
            worst, std::isnan(error) ? HUGE_VAL : error - (0x1p-17 * s_.spread * size + 1e-7));
      }
    }
    return worst;
  }

  std::vector<int64_t> vars(const LoweredKernel& kernel) const {
    return std::vector<int64_t>(kernel.vars.size(), s_.length);
  }

 private:
  /// Numbers, or scales of codes.
  void hide(std::vector<std::byte>* bytes) const {
    const DType type = is_int8() ? DType::kF16 : s_.type;
    const auto size = static_cast<size_t>(item_size(type));
    const int64_t width = is_int8() ? s_.width / s_.block : s_.width;
    for (int64_t h = 0; h < s_.shared_heads; ++h)
      for (int64_t i = (h * s_.capacity + s_.length) * width; i < (h + 1) * s_.capacity * width;
           ++i)
        put(type, NAN, &(*bytes)[static_cast<size_t>(i) * size]);
  }

  /// Element `d` of a line of a key or value, or of its scales.
  static double of_line(const std::vector<std::byte>& of, DType type, int64_t line, int64_t width,
                        int64_t d) {
    return get(type, &of[static_cast<size_t>((line * width + d) * item_size(type))]);
  }

  double stored(int64_t which, int64_t head, int64_t p, int64_t d) const {
    const int64_t slot =
        s_.is_paged ? page_of_[static_cast<size_t>(p / kPage)] * kPage + p % kPage : 0;
    const int64_t line =
        s_.is_paged ? (slot * 2 + which) * s_.shared_heads + head : head * s_.capacity + p;
    const bool is_first = s_.is_paged || which == 0;
    const double number = of_line(is_first ? keys_ : values_, s_.type, line, s_.width, d);
    if (!is_int8()) return number;
    return number * of_line(is_first ? key_scales_ : value_scales_, DType::kF16, line,
                            s_.width / s_.block, d / s_.block);
  }

  Step s_;
  Var length_;
  Tensor q_, k_, v_, k_scales_, v_scales_, slots_, slot_scales_, pages_, result_;
  std::vector<int32_t> page_of_;
  std::vector<std::byte> query_, keys_, values_, key_scales_, value_scales_;
};

bool run_one(const Step& s, const ir::KernelIr& ir, Buffers* buffers,
             std::span<const int64_t> vars) {
  const auto code = compiler::compile(ir, arch_of(s), s.renderer, {.use_cache = false});
  EXPECT_TRUE(code) << (code ? "" : code.error().message);
  if (!code) return false;
  if (is_amd_step(s)) {
    const auto done = run_on_amd(*code, *buffers, vars, s.shift);
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    return done.has_value();
  }
  const auto done = run_on_ptx(*code, *buffers, vars, s.shift);
  EXPECT_TRUE(done) << (done ? "" : done.error().message);
  return done.has_value();
}

/// The result of a step by both kernels; nothing: it was not split, or did not run.
std::optional<double> excess_of(const Step& s) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  static std::mt19937_64 random(std::random_device{}());
  Decoding problem(s);
  const LoweredKernel kernel = problem.kernel();
  const auto split = compiler::split_attention(kernel.ir, arch_of(s), s.renderer);
  EXPECT_TRUE(split) << ir::to_string(kernel.ir);
  if (!split) return std::nullopt;
  Buffers buffers = problem.fill(kernel, random);
  buffers[0].assign(static_cast<size_t>(split->elements) * 4, std::byte{0xff});
  if (!run_one(s, split->parts, &buffers, problem.vars(kernel))) return std::nullopt;
  Buffers merged{std::vector<std::byte>(static_cast<size_t>(s.heads * s.width) * 4), buffers[0]};
  if (!run_one(s, split->merge, &merged, problem.vars(kernel))) return std::nullopt;
  return problem.worst_excess(merged[0]);
}

void expect_right(const Step& s) {
  SCOPED_TRACE(text_of(s));
  const auto excess = excess_of(s);
  ASSERT_TRUE(excess);
  EXPECT_LE(*excess, 0);
}

/// Lengths around the borders of parts of 16 keys: eight parts of a capacity of 512.
constexpr int64_t kLengths[] = {1, 2, 15, 16, 17, 127, 128, 129, 257, 511, 512};

/// Neither scores nor what is looked up in pages are in memory.
TEST(DecodeAttention, IsOneNodeOfThePlan) {
  for (const Step& s : {Step{}, Step{.type = DType::kF16, .is_paged = true}}) {
    EXPECT_LE(Decoding(s).kernels(), 2u);  // the result, and its order of axes
    EXPECT_TRUE(compiler::split_attention(Decoding(s).kernel().ir, arch_of(s), s.renderer));
  }
}

/// Loads of keys and values are of 16 bytes.
TEST(DecodeAttention, LoadsOf16Bytes) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  for (const DType type : {DType::kF32, DType::kF16}) {
    const Step s{.type = type, .width = 128};
    const auto split = compiler::split_attention(Decoding(s).kernel().ir, arch_of(s), "PTX");
    ASSERT_TRUE(split);
    const auto code = compiler::compile(split->parts, arch_of(s), "PTX", {.use_cache = false});
    ASSERT_TRUE(code);
    const std::string_view ptx(reinterpret_cast<const char*>(code->image.data()));
    size_t wide = 0;
    for (size_t at = ptx.find("ld.global"); at != std::string_view::npos;
         at = ptx.find("ld.global", at + 1))
      wide += ptx.substr(at, 40).find(".v4.") != std::string_view::npos;
    EXPECT_EQ(wide, 8u) << "four keys and their values";
  }
}

TEST(DecodeAttention, AnyLengthOnPtx) {
  for (const int64_t n : kLengths) expect_right({.length = n});
}

TEST(DecodeAttention, AnyLengthOnAmd) {
  for (const int64_t n : {1, 17, 129, 512})
    expect_right({.length = n, .card = "gfx1100", .renderer = "LLVM"});
}

/// Every generation whose text or code differs: what is in registers, how lanes exchange it.
TEST(DecodeAttention, OnEveryCard) {
  struct Card {
    const char* name;
    const char* renderer;
  };
  for (const Card& c : {Card{"sm_75", "PTX"}, Card{"sm_90", "PTX"}, Card{"sm_120", "PTX"},
                        Card{"gfx942", "LLVM"}, Card{"gfx1201", "LLVM"}}) {
    expect_right({.length = 300, .card = c.name, .renderer = c.renderer});
    expect_right({.type = DType::kF16,
                  .heads = 8,
                  .width = 128,
                  .length = 129,
                  .card = c.name,
                  .renderer = c.renderer});
    expect_right({.type = DType::kBF16,
                  .length = 17,
                  .is_paged = true,
                  .card = c.name,
                  .renderer = c.renderer});
  }
}

TEST(DecodeAttention, HalfPrecisionKeys) {
  for (const int64_t n : {1, 33, 300}) {
    expect_right({.type = DType::kF16, .width = 128, .length = n});
    expect_right(
        {.type = DType::kF16, .width = 128, .length = n, .card = "gfx1100", .renderer = "LLVM"});
  }
  expect_right({.type = DType::kBF16, .width = 128, .length = 77});
}

/// Codes of int8 with a scale for each block, as an int8 cache has them.
TEST(DecodeAttention, Int8Keys) {
  for (const bool is_paged : {false, true})
    for (const int64_t n : {1, 33, 300}) {
      const Step s{.type = DType::kI8, .width = 128, .length = n, .is_paged = is_paged};
      expect_right(s);
      for (const char* card : {"gfx942", "gfx1100", "gfx1201"}) {
        Step amd = s;
        amd.card = card;
        amd.renderer = "LLVM";
        expect_right(amd);
      }
    }
}

TEST(DecodeAttention, WidthsAndGroups) {
  expect_right({.heads = 3, .shared_heads = 3, .width = 80, .length = 100});
  expect_right({.heads = 8, .shared_heads = 1, .width = 96, .length = 100});
  expect_right({.type = DType::kF16, .heads = 6, .shared_heads = 2, .width = 256, .length = 100});
  expect_right({.heads = 2, .shared_heads = 1, .width = 256, .length = 300});
}

TEST(DecodeAttention, WindowsAndCaps) {
  expect_right({.length = 300, .window = 40});
  expect_right({.length = 200, .cap = 20, .spread = 8});
}

TEST(DecodeAttention, PagesOfAPool) {
  for (const int64_t n : {1, 16, 17, 129, 400}) {
    expect_right({.type = DType::kF16, .width = 128, .length = n, .is_paged = true});
    expect_right({.length = n, .is_paged = true});
  }
  expect_right({.type = DType::kF16,
                .width = 128,
                .length = 129,
                .is_paged = true,
                .card = "gfx1100",
                .renderer = "LLVM"});
}

TEST(DecodeAttention, ParamsStartAtAnyAddress) {
  expect_right({.length = 129, .shift = 4});
  expect_right({.type = DType::kF16, .length = 129, .shift = 8});
}

}  // namespace
}  // namespace bm::test
