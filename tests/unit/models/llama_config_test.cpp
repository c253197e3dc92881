// Hyper-parameters that are missing, absurd or inconsistent are refused before anything is
// allocated.
#include <gtest/gtest.h>

#include <functional>

#include "models/llama.h"
#include "tests/unit/formats/gguf_builder.h"

namespace bm::models {
namespace {

struct Values {
  std::string architecture = "llama";
  uint32_t context = 64, width = 8, blocks = 1, hidden = 16, heads = 2, kv_heads = 1;
  uint32_t rope = 4, experts = 0, used = 0, gating = 0;
  float epsilon = 1e-5F, base = 10000.0F;
  std::string scaling;
  bool has_width = true;
  std::vector<uint64_t> query_dims = {8, 8};
};

std::vector<std::byte> file(const Values& v) {
  test::GgufBuilder b;
  const std::string p = v.architecture + ".";
  b.text("general.architecture", v.architecture)
      .u32(p + "context_length", v.context)
      .u32(p + "block_count", v.blocks);
  if (v.has_width) b.u32(p + "embedding_length", v.width);
  b.u32(p + "feed_forward_length", v.hidden)
      .u32(p + "attention.head_count", v.heads)
      .u32(p + "attention.head_count_kv", v.kv_heads);
  b.u32(p + "rope.dimension_count", v.rope)
      .f32(p + "attention.layer_norm_rms_epsilon", v.epsilon)
      .f32(p + "rope.freq_base", v.base);
  if (v.experts) b.u32(p + "expert_count", v.experts);
  if (v.used) b.u32(p + "expert_used_count", v.used);
  if (v.gating) b.u32(p + "expert_gating_func", v.gating);
  if (!v.scaling.empty()) b.text(p + "rope.scaling.type", v.scaling);
  const auto matrix = [&](const std::string& name, std::vector<uint64_t> dims) {
    uint64_t n = 1;
    for (uint64_t d : dims) n *= d;
    b.tensor(name, dims, 0, test::zeros(n * 4));
  };
  matrix("token_embd.weight", {8, 32});
  matrix("output_norm.weight", {8});
  matrix("blk.0.attn_norm.weight", {8});
  matrix("blk.0.attn_q.weight", v.query_dims);
  matrix("blk.0.attn_k.weight", {8, 4});
  matrix("blk.0.attn_v.weight", {8, 4});
  matrix("blk.0.attn_output.weight", {8, 8});
  matrix("blk.0.ffn_norm.weight", {8});
  matrix("blk.0.ffn_gate.weight", {8, 16});
  matrix("blk.0.ffn_up.weight", {8, 16});
  matrix("blk.0.ffn_down.weight", {16, 8});
  return b.build();
}

Result<std::shared_ptr<const Llama>> load(const Values& v) {
  const auto bytes = file(v);
  auto parsed = GgufFile::from_bytes(bytes);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  auto shared = std::make_shared<const GgufFile>(std::move(*parsed));
  return Llama::load(shared, {.device = "CPU", .context = 0, .progress = {}});
}

TEST(LlamaConfig, ASmallCompleteModelLoads) {
  const auto model = load({});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->config().head_length, 4u);
  EXPECT_EQ((*model)->config().vocab_size, 32u);
  EXPECT_TRUE((*model)->config().has_tied_output);
}

struct Bad {
  const char* name;
  std::function<void(Values&)> change;
  Code code;
  const char* mentions;
};

class LlamaConfigRefuses : public ::testing::TestWithParam<Bad> {};

TEST_P(LlamaConfigRefuses, AndNamesTheCause) {
  Values v;
  GetParam().change(v);
  const auto model = load(v);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, GetParam().code) << model.error().message;
  EXPECT_NE(model.error().message.find(GetParam().mentions), std::string::npos)
      << model.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Values, LlamaConfigRefuses,
    ::testing::Values(
        Bad{"architecture", [](Values& v) { v.architecture = "mumba"; }, Code::kUnsupported,
            "mumba"},
        Bad{"experts_of_a_dense_architecture",
            [](Values& v) { v.architecture = "qwen2", v.experts = 8, v.used = 2; },
            Code::kUnsupported, "expert_count"},
        Bad{"no_number_of_experts_used", [](Values& v) { v.experts = 8; }, Code::kNotFound,
            "expert_used_count"},
        Bad{"more_experts_used_than_there_are", [](Values& v) { v.experts = 2, v.used = 3; },
            Code::kCorrupt, "expert_used_count"},
        Bad{"experts_without_tensors", [](Values& v) { v.experts = 8, v.used = 2; },
            Code::kNotFound, "ffn_gate_inp"},
        Bad{"unknown_gating", [](Values& v) { v.experts = 8, v.used = 2, v.gating = 4; },
            Code::kUnsupported, "expert_gating_func"},
        Bad{"no_width", [](Values& v) { v.has_width = false; }, Code::kNotFound,
            "embedding_length"},
        Bad{"zero_heads", [](Values& v) { v.heads = 0; }, Code::kCorrupt, "head_count"},
        Bad{"zero_kv_heads", [](Values& v) { v.kv_heads = 0; }, Code::kCorrupt, "head_count_kv"},
        Bad{"kv_heads_do_not_divide", [](Values& v) { v.kv_heads = 3; }, Code::kCorrupt,
            "multiple"},
        Bad{"heads_do_not_divide", [](Values& v) { v.heads = 3; }, Code::kCorrupt, "multiple"},
        Bad{"too_many_blocks", [](Values& v) { v.blocks = 4000000000U; }, Code::kCorrupt,
            "block_count"},
        Bad{"missing_block", [](Values& v) { v.blocks = 2; }, Code::kNotFound, "blk.1."},
        Bad{"context", [](Values& v) { v.context = 0; }, Code::kCorrupt, "context_length"},
        Bad{"rope_too_long", [](Values& v) { v.rope = 6; }, Code::kCorrupt, "rope.dimension_count"},
        Bad{"scaling", [](Values& v) { v.scaling = "dynamic"; }, Code::kUnsupported, "dynamic"},
        Bad{"epsilon", [](Values& v) { v.epsilon = 0; }, Code::kCorrupt, "epsilon"},
        Bad{"base", [](Values& v) { v.base = -1; }, Code::kCorrupt, "freq_base"},
        Bad{"hidden_differs_from_tensors", [](Values& v) { v.hidden = 32; }, Code::kCorrupt,
            "ffn_gate"},
        Bad{"query_shape", [](Values& v) { v.query_dims = {8, 4}; }, Code::kCorrupt, "attn_q"},
        Bad{"width_differs_from_tensors", [](Values& v) { v.width = 16; }, Code::kCorrupt,
            "token_embd"}),
    [](const ::testing::TestParamInfo<Bad>& one) { return one.param.name; });

}  // namespace
}  // namespace bm::models
