// Attention of prompts as models ask for it: a piece of a prompt behind keys in a float16 or int8
// cache, on the interpreters of PTX and of AMD's instructions, against sums in float64 with fresh
// random input. All kernels of the plan are run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <regex>

#include "compiler/backends.h"
#include "compiler/compile.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/rounded_activations.h"
#include "tensor/tensor.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

struct Piece {
  int64_t heads = 4, shared_heads = 2, width = 64, most = 48, capacity = 256;
  int64_t count = 48, position = 0;
  bool is_count_known = false;  ///< when the kernels are compiled
  int64_t window = 0;           ///< not 0: so many keys are seen
  double cap = 0;               ///< not 0: scores stay within
  bool is_paged = false;
  double spread = 1;  ///< of queries
  int64_t block = 0;  ///< not 0: keys and values are int8 codes, so many have one scale
};

struct PromptWay {
  const char *card, *renderer, *instruction;  ///< "": no matrix instruction
};
constexpr PromptWay kPromptWays[] = {{"sm_75", "PTX", "mma.sync"},  {"sm_80", "PTX", "mma.sync"},
                                     {"sm_90", "PTX", "wgmma"},     {"gfx1100", "LLVM", "v_wmma"},
                                     {"gfx1201", "LLVM", "v_wmma"}, {"gfx942", "LLVM", "v_mfma"}};

constexpr int64_t kPageKeys = 16;

bool is_amd_prompt(const PromptWay& w) { return std::string_view(w.card).starts_with("gfx"); }

hal::Arch arch_of(const PromptWay& w) {
  hal::Arch arch = is_amd_prompt(w) ? amd_arch(w.card) : ptx_arch();
  arch.name = w.card;
  return arch;
}

/// Changes a kernel's PTX or LLVM IR before it is run.
using TextChange = std::function<void(std::string*)>;

class Prompt {
 public:
  Prompt(const Piece& p, const PromptWay& way)
      : p_(p),
        way_(way),
        count_("count", 1, p.most),
        position_("position", 0, p.capacity - p.most) {
    const std::string device = fmt::format("NULL:{}::{}", way.renderer, way.card);
    count_.set(p.count);
    position_.set(p.position);
    const SymInt count = p.is_count_known ? SymInt(p.count) : SymInt(count_);
    const SymInt end = count + SymInt(position_);
    const int64_t group = p.heads / p.shared_heads;
    q_ = Tensor::empty({p.most, p.heads, p.width}, DType::kF32, device);
    Tensor keys, values;
    const DType type = p.block > 0 ? DType::kI8 : DType::kF16;
    const auto scales = [&](const Tensor& t) {
      if (p.block == 0) return Tensor();
      Shape shape = t.shape();
      shape.back() = p.width / p.block;
      return Tensor::empty(shape, DType::kF16, device);
    };
    if (p.is_paged) {
      k_ = Tensor::empty({p.capacity + kPageKeys, 2, p.shared_heads, p.width}, type, device);
      k_scales_ = scales(k_);
      pages_ = Tensor::empty({p.capacity / kPageKeys}, DType::kI32, device);
      const Tensor at = Tensor::arange(end, DType::kI64, device);
      const Tensor page = pages_.take(at >> 4).cast(DType::kI64);
      const Tensor slot = (page << 4) + (at & (kPageKeys - 1));
      const Tensor past = p.block > 0 ? restored(k_.take(slot), k_scales_.take(slot))
                                      : k_.take(slot).contiguous().cast(DType::kF32);
      const auto part = [&](int64_t which) {
        return past.slice(1, {which, which + 1})
            .reshape({end, p.shared_heads, p.width})
            .permute({1, 0, 2});
      };
      keys = part(0);
      values = part(1);
    } else {
      k_ = Tensor::empty({p.capacity, p.shared_heads, p.width}, type, device);
      v_ = Tensor::empty({p.capacity, p.shared_heads, p.width}, type, device);
      k_scales_ = scales(k_);
      v_scales_ = scales(v_);
      const auto rows = [&](const Tensor& t, const Tensor& scale) {
        const auto past = [&](const Tensor& of) {
          return of.shrink({{0, end}, {0, p.shared_heads}, {0, of.size(2)}});
        };
        return restored(past(t), scale.is_valid() ? past(scale) : Tensor()).permute({1, 0, 2});
      };
      keys = rows(k_, k_scales_);
      values = rows(v_, v_scales_);
    }
    // As models ask for it.
    if (p.block > 0) {
      keys = keys.cast(DType::kF16).cast(DType::kF32);
      values = values.cast(DType::kF16).cast(DType::kF32);
    }
    const Tensor queries = q_.shrink({{0, count}, {0, p.heads}, {0, p.width}});
    Tensor scores = rounded_activations(queries, DType::kF16)
                        .reshape({count, p.shared_heads, group, p.width})
                        .permute({1, 2, 0, 3})
                        .matmul(keys.unsqueeze(1).transpose()) *
                    scale();
    if (p.cap > 0) scores = (scores * (1 / p.cap)).tanh() * p.cap;
    const Tensor query_at =
        (Tensor::arange(count, DType::kI64, device) + Tensor::value_of(position_, device))
            .unsqueeze(1);
    const Tensor key_at = Tensor::arange(end, DType::kI64, device).unsqueeze(0);
    Tensor is_visible = key_at <= query_at;
    if (p.window > 0) is_visible = is_visible & (key_at > query_at - p.window);
    scores = is_visible.where(scores, -HUGE_VAL);
    result_ = scores.softmax(-1).cast(DType::kF16).matmul(values.unsqueeze(1));
    plan_ = plan_fusion(std::array{result_.node()});
  }

  /// As caches of models give their numbers.
  Tensor restored(const Tensor& numbers, const Tensor& scales) const {
    const Tensor wide = numbers.cast(DType::kF32);
    if (!scales.is_valid()) return wide;
    Shape blocks = scales.shape();
    blocks.push_back(p_.block);
    const auto last = static_cast<int64_t>(blocks.size()) - 1;
    return (wide.reshape(blocks) * scales.cast(DType::kF32).unsqueeze(last))
        .reshape(numbers.shape());
  }

  size_t kernels() const { return plan_.stored.size(); }

  /// Kernels in order; failures are the test's.
  bool run(std::mt19937_64& random, const TextChange& change = {}) {
    const ScopedSetting text("BM_NV_CODE", "ptx");
    for (const NodePtr& n : plan_.order) {
      if (!plan_.stored.contains(n.get())) continue;
      const LoweredKernel kernel = *lower(
          *n, nullptr, [&](const Node* s) { return s != n.get() && plan_.stored.contains(s); });
      auto code = compiler::compile(kernel.ir, arch_of(way_), way_.renderer, {.use_cache = false});
      EXPECT_TRUE(code) << (code ? "" : code.error().message);
      if (!code) return false;
      if (change && !plant(change, kernel, &*code)) return false;
      if (!run_one(kernel, *code, random, change != nullptr)) return false;
    }
    return true;
  }

  bool has_instruction() const { return has_instruction_; }
  /// Of accesses to shared memory, of all kernels.
  uint64_t bank_conflicts() const { return bank_conflicts_; }

  /// Largest difference from float64 beyond what rounded weights may lose; queries are rounded
  /// here.
  double worst_excess() const {
    const int64_t group = p_.heads / p_.shared_heads;
    const std::vector<std::byte>& got = memory_.at(result_.node().get());
    double worst = -HUGE_VAL;
    for (int64_t h = 0; h < p_.heads; ++h)
      for (int64_t i = 0; i < p_.count; ++i) {
        std::vector<double> w;
        double most = -HUGE_VAL, total = 0;
        for (int64_t key = 0; key <= i + p_.position; ++key) {
          double score = 0;
          for (int64_t d = 0; d < p_.width; ++d)
            score += query(i, h, d) * stored(0, h / group, key, d);
          score *= scale();
          if (p_.cap > 0) score = std::tanh(score / p_.cap) * p_.cap;
          if (p_.window > 0 && key <= i + p_.position - p_.window) score = -HUGE_VAL;
          w.push_back(score);
          most = std::max(most, score);
        }
        for (double& x : w) total += x = std::exp(x - most);
        for (int64_t d = 0; d < p_.width; ++d) {
          double want = 0, size = 0, small = 0;
          for (size_t key = 0; key < w.size(); ++key) {
            const double v = stored(1, h / group, static_cast<int64_t>(key), d);
            want += w[key] * v / total;
            size += w[key] * std::fabs(v) / total;
            small += std::fabs(v) / total;
          }
          float have = 0;
          const int64_t line = h * (p_.is_count_known ? p_.count : p_.most) + i;
          std::memcpy(&have, &got[static_cast<size_t>((line * p_.width + d) * 4)], 4);
          const double error = std::fabs(static_cast<double>(have) - want);
          const double room = (0x1p-11 + 0x1p-16 * p_.spread) * size + 0x1p-25 * small + 1e-6;
          worst = std::max(worst, std::isnan(error) ? HUGE_VAL : error - room);
        }
      }
    return worst;
  }

 private:
  double scale() const { return 1 / std::sqrt(static_cast<double>(p_.width)); }

  /// Changes the text that the code is made of, if it is that of the attention.
  bool plant(const TextChange& change, const LoweredKernel& kernel, hal::CodeObject* code) const {
    const bool is_amd = is_amd_prompt(way_);
    const auto explained = compiler::explain(kernel.ir, arch_of(way_), way_.renderer);
    EXPECT_TRUE(explained) << (explained ? "" : explained.error().message);
    if (!explained) return false;
    std::string text = explained->source;
    // v_mfma is llvm.amdgcn.mfma.
    const std::string name =
        is_amd ? fmt::format("amdgcn.{}", way_.instruction + 2) : way_.instruction;
    if (text.find(name) == std::string::npos) return true;
    change(&text);
    const auto backend = compiler::find_backend(arch_of(way_), way_.renderer);
    auto image = (*backend)->assemble({text, ""}, arch_of(way_));
    EXPECT_TRUE(image) << (image ? "" : image.error().message);
    if (image) code->image = *std::move(image);
    return image.has_value();
  }

  /// `is_wrong`: a fault is no failure of the test.
  bool run_one(const LoweredKernel& kernel, const hal::CodeObject& code, std::mt19937_64& random,
               bool is_wrong) {
    Buffers buffers;
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      std::vector<std::byte>& known = memory_[kernel.params[i]];
      const DType t = kernel.ir.params[i].dtype;
      const auto bytes = static_cast<size_t>(kernel.ir.params[i].elements * item_size(t));
      if (i == 0) known.assign(bytes, std::byte{0xff});
      if (known.empty()) known = fresh(kernel.params[i], t, bytes, random);
      buffers.push_back(known);
    }
    std::vector<int64_t> vars;
    for (const Var& var : kernel.vars) vars.push_back(var.value());
    if (is_amd_prompt(way_)) {
      const auto done = run_on_amd(code, buffers, vars);
      if (!done && is_wrong) return false;
      EXPECT_TRUE(done) << (done ? "" : done.error().message);
      if (!done) return false;
      bank_conflicts_ += done->lds_conflicts;
      for (const auto& [name, times] : done->opcodes)
        has_instruction_ |= times > 0 && name.starts_with(way_.instruction);
    } else {
      const char* image = reinterpret_cast<const char*>(code.image.data());
      has_instruction_ |= std::string_view(image).find(way_.instruction) != std::string_view::npos;
      const auto done = run_on_ptx(code, buffers, vars);
      if (!done && is_wrong) return false;
      EXPECT_TRUE(done) << (done ? "" : done.error().message);
      if (!done) return false;
      bank_conflicts_ += done->traffic.shared_conflicts;
    }
    memory_[kernel.params[0]] = buffers[0];
    return true;
  }

  /// Behind the keys that are there lie NaN.
  std::vector<std::byte> fresh(const Node* n, DType t, size_t bytes, std::mt19937_64& random) {
    std::vector<std::byte> out(bytes);
    if (pages_.is_valid() && n == pages_.node().get()) {
      for (int64_t p = 0; p < p_.capacity / kPageKeys; ++p)
        page_of_.push_back(static_cast<int32_t>(p + 1));
      std::shuffle(page_of_.begin(), page_of_.end(), random);
      std::memcpy(out.data(), page_of_.data(), bytes);
      return out;
    }
    std::normal_distribution<double> normal;
    const auto size = static_cast<size_t>(item_size(t));
    const auto is = [&](const Tensor& tensor) {
      return tensor.is_valid() && n == tensor.node().get();
    };
    const bool is_query = is(q_), is_scale = is(k_scales_) || is(v_scales_);
    const int64_t line = p_.shared_heads * (is_scale ? p_.width / p_.block : p_.width);
    for (size_t j = 0; j < bytes; j += size) {
      const bool is_hidden = !p_.is_paged && !is_query &&
                             static_cast<int64_t>(j / size) >= (p_.position + p_.count) * line;
      const double spread = is_query ? p_.spread : is_scale ? 0x1p-6 : 1;
      if (t == DType::kI8)
        out[j] = static_cast<std::byte>(random());
      else
        put(t, is_hidden ? NAN : normal(random) * spread, &out[j]);
    }
    return out;
  }

  double query(int64_t i, int64_t head, int64_t d) const {
    float x = 0;
    const int64_t at = (i * p_.heads + head) * p_.width + d;
    std::memcpy(&x, &memory_.at(q_.node().get())[static_cast<size_t>(at * 4)], 4);
    return static_cast<double>(f16_to_f32(f32_to_f16(x)));
  }

  double stored(int64_t which, int64_t head, int64_t key, int64_t d) const {
    const Tensor& of = which == 0 || p_.is_paged ? k_ : v_;
    int64_t line = key;
    if (p_.is_paged) {
      const int64_t slot =
          page_of_[static_cast<size_t>(key / kPageKeys)] * kPageKeys + key % kPageKeys;
      line = slot * 2 + which;
    }
    const int64_t at = (line * p_.shared_heads + head) * p_.width + d;
    if (p_.block == 0) return half_of(of, at);
    // Rounded to float16, the product of the two being exact.
    const auto code = static_cast<int8_t>(memory_.at(of.node().get())[static_cast<size_t>(at)]);
    const Tensor& scales = which == 0 || p_.is_paged ? k_scales_ : v_scales_;
    const double exact = half_of(scales, at / p_.block) * static_cast<double>(code);
    return static_cast<double>(f16_to_f32(f32_to_f16(static_cast<float>(exact))));
  }

  double half_of(const Tensor& of, int64_t at) const {
    uint16_t half = 0;
    std::memcpy(&half, &memory_.at(of.node().get())[static_cast<size_t>(at * 2)], 2);
    return static_cast<double>(f16_to_f32(half));
  }

  Piece p_;
  PromptWay way_;
  Var count_, position_;
  Tensor q_, k_, v_, k_scales_, v_scales_, pages_, result_;
  FusionPlan plan_;
  std::map<const Node*, std::vector<std::byte>> memory_;
  std::vector<int32_t> page_of_;
  bool has_instruction_ = false;
  uint64_t bank_conflicts_ = 0;
};

void expect_right(const Piece& p, const PromptWay& way) {
  SCOPED_TRACE(
      fmt::format("{} tokens behind {}, {} heads ({}) of {}, known {}, window {}, cap {}, paged "
                  "{}, blocks of {}, {}",
                  p.count, p.position, p.heads, p.shared_heads, p.width, p.is_count_known, p.window,
                  p.cap, p.is_paged, p.block, way.card));
  static std::mt19937_64 random(std::random_device{}());
  Prompt prompt(p, way);
  ASSERT_TRUE(prompt.run(random));
  // MFMA takes 32 elements of a head at a time.
  const bool is_whole = std::string_view(way.card) != "gfx942" || p.width % 32 == 0;
  EXPECT_EQ(prompt.has_instruction(), is_whole);
  EXPECT_LE(prompt.worst_excess(), 0);
  if (p.width % 64 == 0) EXPECT_EQ(prompt.bank_conflicts(), 0u);
}

void expect_right_on_all(const Piece& p) {
  for (const PromptWay& way : kPromptWays) expect_right(p, way);
}

/// Queries as float16, attention; and of page tables, the slots and what they hold in order.
TEST(PromptAttention, IsOneKernelBesideItsOperands) {
  for (const PromptWay& way : kPromptWays) {
    EXPECT_EQ(Prompt({}, way).kernels(), 2u) << way.card;
    EXPECT_EQ(Prompt({.is_count_known = true}, way).kernels(), 2u) << way.card;
    EXPECT_EQ(Prompt({.window = 20, .cap = 30}, way).kernels(), 2u) << way.card;
    EXPECT_LE(Prompt({.is_paged = true}, way).kernels(), 4u) << way.card;
  }
}

TEST(PromptAttention, FirstPiece) {
  expect_right_on_all({});
  expect_right_on_all({.count = 33});
  expect_right_on_all({.heads = 8, .width = 128, .most = 40, .count = 40, .is_count_known = true});
}

TEST(PromptAttention, LaterPieces) {
  expect_right_on_all({.count = 37, .position = 131});
  expect_right_on_all(
      {.heads = 6, .width = 32, .most = 41, .count = 41, .position = 77, .is_count_known = true});
  expect_right_on_all({.count = 1, .position = 200});
}

TEST(PromptAttention, WindowsAndCaps) {
  expect_right_on_all({.count = 45, .position = 67, .window = 40});
  expect_right_on_all({.count = 29, .position = 100, .window = 9, .cap = 20, .spread = 8});
}

TEST(PromptAttention, PagesOfAPool) {
  expect_right_on_all({.count = 37, .position = 131, .is_paged = true});
  expect_right_on_all({.width = 128, .count = 48, .position = 0, .is_paged = true});
}

/// Codes and scales are read where they are.
TEST(PromptAttention, OfInt8KeysIsOneKernel) {
  for (const PromptWay& way : kPromptWays) {
    EXPECT_EQ(Prompt({.block = 32}, way).kernels(), 2u) << way.card;
    EXPECT_EQ(Prompt({.window = 20, .cap = 30, .block = 32}, way).kernels(), 2u) << way.card;
    EXPECT_EQ(Prompt({.width = 128, .is_paged = true, .block = 32}, way).kernels(), 2u) << way.card;
  }
}

TEST(PromptAttention, Int8Keys) {
  expect_right_on_all({.count = 37, .position = 131, .block = 32});
  expect_right_on_all({.heads = 8, .width = 128, .most = 40, .count = 40, .block = 32});
  expect_right_on_all({.heads = 6,
                       .width = 80,
                       .most = 41,
                       .count = 41,
                       .position = 77,
                       .is_count_known = true,
                       .block = 16});
  expect_right_on_all({.count = 1, .position = 200, .block = 32});
}

/// Heads of more than 128 elements have no wgmma.
TEST(PromptAttention, LongHeads) {
  for (const int64_t block : {0, 32})
    for (PromptWay way : kPromptWays) {
      if (!is_amd_prompt(way)) way.instruction = "mma.sync";
      expect_right({.heads = 2, .shared_heads = 1, .width = 256, .count = 33, .block = block}, way);
    }
}

TEST(PromptAttention, Int8KeysWithWindowsAndCaps) {
  expect_right_on_all({.width = 96, .count = 45, .position = 67, .window = 40, .block = 32});
  expect_right_on_all(
      {.count = 29, .position = 100, .window = 9, .cap = 20, .spread = 8, .block = 32});
}

TEST(PromptAttention, Int8PagesOfAPool) {
  expect_right_on_all({.count = 37, .position = 131, .is_paged = true, .block = 32});
  expect_right_on_all(
      {.heads = 8, .width = 128, .count = 47, .position = 1, .is_paged = true, .block = 32});
}

/// NVRTC makes the same kernels of CUDA C.
TEST(PromptAttention, Int8KeysByNvrtc) {
  if (const std::string reason = why_not({"NVRTC"}); !reason.empty()) GTEST_SKIP() << reason;
  for (const PromptWay& way :
       {PromptWay{"sm_80", "NVRTC", "mma.sync"}, PromptWay{"sm_90", "NVRTC", "wgmma"}}) {
    expect_right({.count = 37, .position = 131, .block = 32}, way);
    expect_right({.width = 128, .count = 41, .position = 3, .is_paged = true, .block = 32}, way);
  }
}

/// By LLVM's NVPTX, which has no tiles in shared memory, several kernels without matrix
/// instructions.
TEST(PromptAttention, Int8KeysByNvptx) {
  if (const std::string reason = why_not({"NVPTX"}); !reason.empty()) GTEST_SKIP() << reason;
  const PromptWay way{"sm_80", "LLVM", ""};
  EXPECT_GT(Prompt({.block = 32}, way).kernels(), 2u);
  expect_right({.count = 37, .position = 131, .block = 32}, way);
  expect_right({.width = 128, .count = 41, .position = 3, .is_paged = true, .block = 32}, way);
}

/// A causal bound or a position that is one off, and weights of another type; of int8 keys, codes
/// in another order, not less 128, without their scale or with that of others.
TEST(PromptAttention, MistakesAreNoticed) {
  struct Mistake {
    const char *from, *to;  ///< from: a regular expression
    int64_t block = 0;
  };
  constexpr Mistake kNone{"", ""}, kNoneOfCodes{"", "", 32};
  const std::vector<Mistake> of_ptx{
      kNone,
      {"cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"},
      {"setp.lt.s64", "setp.le.s64"},
      {"bar.sync 0;", ""},
      kNoneOfCodes,
      {"0x4140", "0x4041", 32},
      {"0x64806480", "0x64006400", 32},
      {"mul.rn.f16x2", "add.rn.f16x2", 32},
      {"bar.sync 0;", "", 32},
  };
  // Selectors of v_perm_b32 are 0x04010400 and 0x04030402.
  const std::vector<Mistake> of_amd{
      kNone,
      {"icmp slt", "icmp sle"},
      kNoneOfCodes,
      {"i32 67175424", "i32 67109889", 32},
      {"i32 67306498", "i32 67175424", 32},
      {"half 1152.0", "half 1024.0", 32},
      {"fmul <2 x half>", "fadd <2 x half>", 32},
      {"(%v([0-9]+) = load i16, ptr addrspace.1. )(%at[0-9]+)",
       "%next$2 = getelementptr i16, ptr addrspace(1) $3, i64 1\n$1%next$2", 32},
      {"addrspace.1. %p5,", "addrspace(1) %p3,", 32},
  };
  for (const PromptWay& way : kPromptWays) {
    const std::string_view card = way.card;
    if (card != "sm_80" && !is_amd_prompt(way)) continue;
    for (const auto& [from, to, block] : is_amd_prompt(way) ? of_amd : of_ptx) {
      std::mt19937_64 random(5);
      Prompt prompt({.count = 37, .position = 131, .block = block}, way);
      bool is_planted = false;
      const TextChange change = [&](std::string* text) {
        is_planted = true;
        if (!*from) return;
        const std::string wrong = std::regex_replace(*text, std::regex(from), to);
        EXPECT_NE(wrong, *text) << from;
        *text = wrong;
      };
      const bool is_noticed = !prompt.run(random, change) || prompt.worst_excess() > 0;
      EXPECT_TRUE(is_planted) << card;
      EXPECT_EQ(is_noticed, *from != 0) << card << ": " << from << " → " << to;
    }
  }
}

}  // namespace
}  // namespace bm::test
