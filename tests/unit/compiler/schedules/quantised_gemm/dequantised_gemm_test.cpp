// Quantised blocks that become float16 in registers, as prompts of models have them: on the
// interpreters of PTX and of RDNA, against sums in float64 of fresh random blocks and vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "compiler/compile.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "models/llama_blocks.h"
#include "models/llama_matrix.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using models::GgmlType;

struct Blocks {
  GgmlType type = GgmlType::kQ4_K;
  int64_t rows = 128, columns = 256, vectors = 64;
  int64_t most = 0;  ///< not 0: so many vectors at most, known at launch only
  bool has_residual = false;
  const char* card = "sm_80";
  uint32_t units = 4;
  uint64_t shift = 0;              ///< bytes between multiples of 256 and every buffer
  int64_t tile_m = 0, tile_n = 0;  ///< not 0: as the tuner asks for them
};

bool is_amd(const Blocks& c) { return std::string_view(c.card).starts_with("gfx"); }

hal::Arch arch_of(const Blocks& c) {
  hal::Arch arch = is_amd(c) ? amd_arch(c.card) : ptx_arch();
  arch.name = c.card;
  arch.units = c.units;
  return arch;
}

/// Any bits are codes; scales are small numbers.
std::vector<std::byte> blocks_of(const Blocks& c, std::mt19937_64& random) {
  const models::GgmlTypeInfo& info = models::ggml_type_info(c.type);
  std::vector<std::byte> out(static_cast<size_t>(c.rows * c.columns) / info.block_values *
                             info.block_bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> uniform(-0.02F, 0.02F);
  for (size_t i = 0; i < out.size(); i += info.block_bytes)
    for (size_t half = 0; half < (c.type == GgmlType::kQ4_K || c.type == GgmlType::kQ4_1 ? 2 : 1);
         ++half) {
      const uint16_t bits = f32_to_f16(uniform(random));
      std::memcpy(&out[i + 2 * half], &bits, 2);
    }
  return out;
}

/// Of results, relative to Σ |weight·vector|: what differs beyond rounded weights, and the mean
/// squares of what is off by rounding to float16 and of what int8 codes of the vectors are off by.
struct Errors {
  double excess = -HUGE_VAL, square = 0, square_of_codes = 0;
  bool is_run = false, has_instruction = false;
};

using Change = std::function<void(hal::CodeObject*)>;

Errors errors_of(const Blocks& c, const Change& change = {}, uint64_t seed = 0) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  static std::mt19937_64 fresh(std::random_device{}());
  std::mt19937_64 random(seed != 0 ? seed : fresh());
  Errors out;
  const char* renderer = is_amd(c) ? "LLVM" : "PTX";
  const std::string device = fmt::format("NULL:{}::{}", renderer, c.card);
  const std::vector<std::byte> data = blocks_of(c, random);
  std::vector<float> weights(static_cast<size_t>(c.rows * c.columns));
  EXPECT_TRUE(models::dequantize_row(c.type, data, weights));
  const auto matrix = models::Matrix::pack(c.type, data, c.rows, c.columns, device);
  Var count("count", 1, std::max(c.most, int64_t{1}));
  count.set(std::min(c.vectors, count.max()));
  const int64_t most = c.most != 0 ? c.most : c.vectors;
  const SymInt m = c.most != 0 ? SymInt(count) : SymInt(c.vectors);
  const Tensor in = Tensor::empty({most, c.columns}, DType::kF32, device),
               residual = Tensor::empty({most, c.rows}, DType::kF32, device);
  const auto part = [&](const Tensor& t) { return t.shrink({{0, m}, {0, t.size(1)}}); };
  Tensor result = matrix.linear(models::QuantisedActivations(part(in)));
  if (c.has_residual) result = result + part(residual);
  const NodePtr root = result.node();
  const FusionPlan plan = plan_fusion(std::array{root});
  EXPECT_EQ(plan.stored.size(), 2u) << "vectors as float16, and the product";
  const LoweredKernel kernel = *lower(
      *root, nullptr, [&](const Node* n) { return n != root.get() && plan.stored.contains(n); });
  const hal::Arch arch = arch_of(c);
  compiler::Knobs knobs;
  if (c.tile_m != 0) knobs.values = {{"tile_m", c.tile_m}, {"tile_n", c.tile_n}};
  const auto schedule = compiler::make_schedule(kernel.ir, compiler::target_info(arch), arch.units,
                                                {.knobs = &knobs});
  EXPECT_TRUE(schedule.quantised() && schedule.quantised()->dequantised)
      << compiler::to_string(schedule) << ir::to_string(kernel.ir);
  if (c.tile_m != 0 && schedule.quantised()) {
    EXPECT_EQ(schedule.quantised()->dequantised->block_m(), c.tile_m);
    EXPECT_EQ(schedule.quantised()->dequantised->block_n(), c.tile_n);
  }
  auto code = compiler::compile(kernel.ir, arch, renderer, {.use_cache = false, .knobs = &knobs});
  EXPECT_TRUE(code) << (code ? "" : code.error().message);
  if (!code) return out;

  // Params in the order in which the product asks for them.
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(most * c.columns)),
      r(static_cast<size_t>(most * c.rows));
  for (float& v : x) v = normal(random);
  for (float& v : r) v = normal(random);
  const auto rows = static_cast<size_t>(c.rows), columns = static_cast<size_t>(c.columns);
  std::vector<std::vector<uint8_t>> parts;
  models::PackedParts packed;
  const auto add = [&](uint8_t** to, size_t bytes) {
    parts.emplace_back(bytes);
    *to = parts.back().data();
  };
  parts.reserve(8);
  const bool is_q4_k = c.type == GgmlType::kQ4_K, is_q8 = c.type == GgmlType::kQ8_0;
  const size_t blocks = rows * columns / 32;
  add(&packed.codes, rows * columns / (is_q8 ? 1 : 2));
  add(&packed.scales, blocks * (is_q4_k ? 1 : 2));
  if (is_q4_k) add(&packed.factors, rows * columns / 256 * 2);
  if (is_q4_k || c.type == GgmlType::kQ4_1) add(&packed.minima, blocks * (is_q4_k ? 1 : 2));
  if (is_q4_k) add(&packed.minimum_factors, rows * columns / 256 * 2);
  models::pack_blocks(c.type, data, c.rows, c.columns, packed);
  Buffers buffers;
  buffers.emplace_back(r.size() * 4, std::byte{0xff});
  size_t next = 0;
  for (size_t i = 1; i < kernel.params.size(); ++i) {
    std::vector<std::byte>& to = buffers.emplace_back();
    if (kernel.params[i] == residual.node().get()) {
      to.resize(r.size() * 4);
      std::memcpy(to.data(), r.data(), to.size());
    } else if (plan.stored.contains(kernel.params[i])) {
      to.resize(x.size() * 2);
      for (size_t k = 0; k < x.size(); ++k) {
        // Element 4t + 2h + e of sixteen lies at 8h + 2t + e.
        const size_t own = k % 16, at = own / 2 % 2 * 8 + own / 4 * 2 + own % 2;
        const uint16_t half = f32_to_f16(x[k]);
        std::memcpy(&to[(k - own + at) * 2], &half, 2);
      }
    } else {
      const auto bytes = std::as_bytes(std::span(parts.at(next++)));
      to.assign(bytes.begin(), bytes.end());
    }
    EXPECT_EQ(to.size(), static_cast<size_t>(kernel.ir.params[i].elements *
                                             item_size(kernel.ir.params[i].dtype)));
  }
  EXPECT_EQ(next, parts.size());
  if (change) change(&*code);
  std::vector<int64_t> vars;
  for (const Var& v : kernel.vars) vars.push_back(v.value());
  if (is_amd(c)) {
    const auto done = run_on_amd(*code, buffers, vars, c.shift);
    EXPECT_TRUE(done || change) << (done ? "" : done.error().message);
    if (!done) return out;
    out.has_instruction = std::ranges::any_of(done->opcodes, [](const auto& opcode) {
      return opcode.first == "v_wmma_f32_16x16x16_f16" || opcode.first == "v_mfma_f32_16x16x16_f16";
    });
    EXPECT_TRUE(change || done->lds_conflicts == 0u) << done->lds_conflicts;
  } else {
    out.has_instruction = std::string_view(reinterpret_cast<const char*>(code->image.data()))
                              .find(std::string_view(c.card) == "sm_90"
                                        ? "wgmma.mma_async.sync.aligned.m64"
                                        : "mma.sync.aligned.m16n8k16") != std::string_view::npos;
    const auto done = run_on_ptx(*code, buffers, vars, c.shift);
    EXPECT_TRUE(done || change) << (done ? "" : done.error().message);
    if (!done) return out;
    EXPECT_TRUE(change || done->traffic.shared_conflicts == 0u);
  }
  out.is_run = true;

  for (size_t v = 0; v < static_cast<size_t>(c.vectors); ++v)
    for (size_t row = 0; row < rows; ++row) {
      double exact = 0, rounded = 0, of_codes = 0, size = 0;
      for (size_t first = 0; first < columns; first += 32) {
        float largest = 0;
        for (size_t k = first; k < first + 32; ++k)
          largest = std::max(largest, std::fabs(x[v * columns + k]));
        const float scale = largest * (1.0F / 127);
        for (size_t k = first; k < first + 32; ++k) {
          const auto w = static_cast<double>(weights[row * columns + k]);
          const float value = x[v * columns + k];
          exact += w * static_cast<double>(value);
          rounded += w * static_cast<double>(f16_to_f32(f32_to_f16(value)));
          of_codes += w * static_cast<double>(std::nearbyint(value / scale) * scale);
          size += std::fabs(w * static_cast<double>(value));
        }
      }
      float have = 0;
      std::memcpy(&have, &buffers[0][(v * rows + row) * 4], 4);
      const double got = static_cast<double>(have) -
                         (c.has_residual ? static_cast<double>(r[v * rows + row]) : 0.0);
      const double error = std::fabs(got - rounded);
      // Weights are rounded to 11 bits, results to 24.
      const double room = 0x1p-11 * size + 0x1p-20 * size + 1e-6;
      out.excess = std::max(out.excess, std::isnan(error) ? HUGE_VAL : error - room);
      out.square += (got - exact) * (got - exact);
      out.square_of_codes += (of_codes - exact) * (of_codes - exact);
    }
  return out;
}

void expect_right(const Blocks& c) {
  SCOPED_TRACE(fmt::format("{} {}x{} by {} of {}, residual {}, {}, {} units, shift {}",
                           models::ggml_type_info(c.type).name, c.rows, c.columns, c.vectors,
                           c.most, c.has_residual, c.card, c.units, c.shift));
  const Errors e = errors_of(c);
  EXPECT_TRUE(e.is_run && e.has_instruction);
  EXPECT_LE(e.excess, 0);
  EXPECT_LT(e.square, e.square_of_codes) << "no further from float64 than int8 codes are";
}

void expect_right_on_all(Blocks c) {
  for (const char* card : {"sm_80", "sm_90", "gfx942", "gfx1100", "gfx1201"}) {
    c.card = card;
    if (is_amd(c) && !why_not({"GFX1100"}).empty()) continue;
    expect_right(c);
  }
}

TEST(DequantisedGemm, EveryFormatOfWholeWords) {
  for (const GgmlType type :
       {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ4_K, GgmlType::kIQ4_NL})
    expect_right_on_all({.type = type});
}

TEST(DequantisedGemm, AnyNumberOfVectors) {
  for (const int64_t n : {17, 63, 65, 130, 300})
    expect_right_on_all({.type = n % 2 ? GgmlType::kQ4_K : GgmlType::kQ8_0, .vectors = n});
}

TEST(DequantisedGemm, VectorsKnownAtLaunchOnly) {
  for (const int64_t n : {1, 31, 64, 127})
    expect_right_on_all({.columns = 512, .vectors = n, .most = 130, .has_residual = n == 31});
  expect_right_on_all(
      {.type = GgmlType::kQ8_0, .rows = 192, .vectors = 500, .most = 512, .units = 2});
}

TEST(DequantisedGemm, TilesOfEverySize) {
  for (const uint32_t units : {1u, 3u, 16u, 100u})
    for (const int64_t rows : {320, 256})
      expect_right_on_all({.rows = rows, .vectors = 200, .units = units});
}

/// What is known of results that lie side by side: the order of tiles, and shares of work-items.
TEST(DequantisedGemm, TilesThatAreAskedForOnAmd) {
  if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  for (const auto& [m, n] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {128, 256}, {128, 128}, {64, 256}, {64, 128}, {64, 64}, {64, 32}, {32, 64}, {32, 32}})
    for (const char* card : {"gfx942", "gfx1100", "gfx1201"}) {
      // Waves of 64 have tiles of 64.
      if (std::string_view(card) == "gfx942" && std::min(m, n) < 64) continue;
      expect_right({.type = m % 128 ? GgmlType::kQ4_K : GgmlType::kQ8_0,
                    .rows = 256,
                    .vectors = 150,
                    .card = card,
                    .tile_m = m,
                    .tile_n = n});
    }
}

TEST(DequantisedGemm, ParamsStartAtAnyAddress) {
  expect_right_on_all({.vectors = 40, .shift = 4});
  expect_right_on_all({.type = GgmlType::kQ8_0, .vectors = 40, .shift = 20});
  // Several tiles of rows in a sub-group, whose words are put together one tile after the other.
  expect_right_on_all({.rows = 256, .vectors = 200, .units = 1, .shift = 4});
}

/// Eight vectors and fewer, and cards whose instructions for int8 take no longer, have what they
/// had.
TEST(DequantisedGemm, OthersKeepTheirCodes) {
  for (const auto& [card, n] :
       {std::pair{"sm_80", 8}, {"sm_86", 512}, {"sm_120", 512}, {"sm_75", 64}}) {
    const std::string device = fmt::format("NULL:PTX::{}", card);
    const std::vector<std::byte> data(144 * 128);
    const auto matrix = models::Matrix::pack(GgmlType::kQ4_K, data, 128, 256, device);
    const models::QuantisedActivations x(Tensor::empty({n, 256}, DType::kF32, device));
    const NodePtr root = matrix.linear(x).node();
    EXPECT_GT(plan_fusion(std::array{root}).stored.size(), 2u) << card;
  }
}

TEST(DequantisedGemm, MistakesAreNoticed) {
  struct Mistake {
    const char *card, *from, *to;
  };
  for (const Mistake& m : {Mistake{"sm_80", "", ""},
                           {"sm_90", "", ""},
                           {"sm_80", "bar.sync 0;", ""},
                           {"sm_80", "cp.async.wait_group 1;", ""},
                           {"sm_90", "cp.async.wait_group 1;", ""},
                           {"sm_80", "cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"},
                           {"sm_90", "wgmma.fence.sync.aligned;", ""},
                           {"sm_90", "fence.proxy.async.shared::cta;", ""},
                           {"sm_90", "wgmma.wait_group.sync.aligned 0;", ""}}) {
    const Change change = [&](hal::CodeObject* code) {
      std::string text = reinterpret_cast<const char*>(code->image.data());
      if (*m.from == '\0') return;
      size_t places = 0;
      for (size_t at = text.find(m.from); at != std::string::npos;
           at = text.find(m.from, at + std::strlen(m.to)), ++places)
        text.replace(at, std::strlen(m.from), m.to);
      EXPECT_GT(places, 0u) << m.from;
      const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
      code->image.assign(bytes.begin(), bytes.end());
    };
    const Errors e = errors_of({.columns = 512, .vectors = 130, .card = m.card}, change, 7);
    EXPECT_EQ(!e.is_run || e.excess > 0, *m.from != '\0')
        << m.card << ": " << m.from << " → " << m.to;
  }
}

/// Four bytes of the code as others, wherever they are at a multiple of four.
Change replaced(uint32_t from, uint32_t to) {
  return [=](hal::CodeObject* code) {
    size_t places = 0;
    for (size_t at = 0; at + 4 <= code->image.size(); at += 4) {
      uint32_t word = 0;
      std::memcpy(&word, &code->image[at], 4);
      if (word != from) continue;
      std::memcpy(&code->image[at], &to, 4);
      ++places;
    }
    EXPECT_GT(places, 0u);
  };
}

/// Without the barriers sub-groups multiply by what is not there yet.
TEST(DequantisedGemm, MistakesOnAmdAreNoticed) {
  if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  constexpr uint32_t kBarrier = 0xbfbd0000, kNop = 0xbf800000;  // SOPP of gfx11
  const Blocks blocks{.columns = 512, .vectors = 130, .card = "gfx1100"};
  const Errors right = errors_of(blocks, replaced(kBarrier, kBarrier), 7);
  EXPECT_TRUE(right.is_run && right.excess <= 0);
  const Errors wrong = errors_of(blocks, replaced(kBarrier, kNop), 7);
  EXPECT_TRUE(!wrong.is_run || wrong.excess > 0);
}

}  // namespace
}  // namespace bm::test
