// A file that asks for more than is done here is refused by name; what it asks for and is done
// changes the numbers as it should.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "models/llama_session.h"
#include "tests/unit/formats/gguf_builder.h"

namespace bm::models {
namespace {

using test::GgufBuilder;
using Floats = std::vector<float>;

constexpr int kWidth = 8, kHidden = 16, kHeads = 2, kHead = 4, kVocabulary = 32;

/// Values between −1 and 1 that differ from tensor to tensor.
Floats random(size_t count, uint64_t seed) {
  Floats out(count);
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (float& v : out) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's multiplier
    v = static_cast<float>(state >> 40) * 0x1p-23F - 1;
  }
  return out;
}

/// A model of one block and one pair of heads that share keys and values, as a list to be added to.
struct Model {
  std::map<std::string, Floats> tensors;
  std::map<std::string, std::vector<uint64_t>> dims;
  std::function<void(GgufBuilder&)> keys = [](GgufBuilder&) {};
  std::string architecture = "llama";
  uint32_t blocks = 1;
  std::function<void(GgufBuilder&, const std::string&)> kv_heads =
      [](GgufBuilder& b, const std::string& key) { b.u32(key, 1); };

  Model() {
    matrix("token_embd.weight", kWidth, kVocabulary);
    matrix("output.weight", kWidth, kVocabulary);
    vector("output_norm.weight", kWidth);
    vector("blk.0.attn_norm.weight", kWidth);
    matrix("blk.0.attn_q.weight", kWidth, kHeads * kHead);
    matrix("blk.0.attn_k.weight", kWidth, kHead);
    matrix("blk.0.attn_v.weight", kWidth, kHead);
    matrix("blk.0.attn_output.weight", kHeads * kHead, kWidth);
    vector("blk.0.ffn_norm.weight", kWidth);
    matrix("blk.0.ffn_gate.weight", kWidth, kHidden);
    matrix("blk.0.ffn_up.weight", kWidth, kHidden);
    matrix("blk.0.ffn_down.weight", kHidden, kWidth);
  }

  void matrix(const std::string& name, uint64_t columns, uint64_t rows) {
    dims[name] = {columns, rows};
    tensors[name] = random(columns * rows, tensors.size());
  }
  void vector(const std::string& name, uint64_t count) {
    dims[name] = {count};
    tensors[name] = random(count, tensors.size());
  }

  Result<std::shared_ptr<const Llama>> load(uint32_t context = 0) const {
    GgufBuilder b;
    const std::string p = architecture + ".";
    b.text("general.architecture", architecture)
        .u32(p + "context_length", 64)
        .u32(p + "block_count", blocks)
        .u32(p + "embedding_length", kWidth)
        .u32(p + "feed_forward_length", kHidden)
        .u32(p + "attention.head_count", kHeads)
        .f32(p + "attention.layer_norm_rms_epsilon", 1e-5F);
    kv_heads(b, p + "attention.head_count_kv");
    keys(b);
    for (const auto& [name, values] : tensors) {
      const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
      b.tensor(name, dims.at(name), 0, {bytes.begin(), bytes.end()});
    }
    // Weights in place refer to the bytes.
    const auto bytes = std::make_shared<std::vector<std::byte>>(b.build());
    auto parsed = GgufFile::from_bytes(*bytes);
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    const std::shared_ptr<const GgufFile> file(new GgufFile(std::move(*parsed)),
                                               [bytes](const GgufFile* f) { delete f; });
    return Llama::load(file, {.device = "CPU", .context = context, .progress = {}});
  }

  std::string refusal() const {
    const auto model = load();
    return model ? "it was loaded" : model.error().message;
  }
};

struct Key {
  const char* name;
  std::function<void(GgufBuilder&)> add;
  const char* mentions;
};

class LlamaRefusesKeys : public ::testing::TestWithParam<Key> {};

TEST_P(LlamaRefusesKeys, ByName) {
  Model m;
  m.keys = GetParam().add;
  const auto model = m.load();
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find(GetParam().mentions), std::string::npos)
      << model.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Keys, LlamaRefusesKeys,
    ::testing::Values(
        Key{"attention_factor",
            [](GgufBuilder& b) { b.f32("llama.rope.scaling.attn_factor", -1.19F); },
            "llama.rope.scaling.attn_factor"},
        Key{"windows_of_some_blocks",
            [](GgufBuilder& b) { b.u32("llama.attention.sliding_window_pattern", 2); },
            "llama.attention.sliding_window_pattern"},
        Key{"yarn",
            [](GgufBuilder& b) {
              b.text("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 0.5F);
            },
            "yarn"},
        Key{"two_factors",
            [](GgufBuilder& b) {
              b.f32("llama.rope.scaling.factor", 4).f32("llama.rope.scale_linear", 2);
            },
            "llama.rope.scale_linear"},
        Key{"negative_factor", [](GgufBuilder& b) { b.f32("llama.rope.scale_linear", -2); },
            "not positive"},
        Key{"attention_scale", [](GgufBuilder& b) { b.f32("llama.attention.scale", 0.1F); },
            "llama.attention.scale"},
        Key{"rotated_weights", [](GgufBuilder& b) { b.u32("prism.hadamard.version", 1); },
            "prism.hadamard.version"},
        Key{"not_yet_invented", [](GgufBuilder& b) { b.u32("llama.tea.cups", 2); },
            "llama.tea.cups"}),
    [](const ::testing::TestParamInfo<Key>& one) { return one.param.name; });

TEST(LlamaKeys, ThatChangeNothingAreAccepted) {
  Model m;
  m.keys = [](GgufBuilder& b) {
    b.u32("llama.vocab_size", kVocabulary).boolean("llama.attention.causal", true);
    b.u32("llama.rope.scaling.original_context_length", 32).u32("llama.expert_count", 0);
    b.u32("llama.attention.sliding_window", 64).f32("llama.rope.scaling.attn_factor", 1);
    b.text("llama.tensor_data_layout", "Meta AI original pth").u32("general.file_type", 0);
    b.u32("clip.patch_size", 14);  // of another part of a model with pictures
  };
  const auto model = m.load();
  EXPECT_TRUE(model) << model.error().message;
}

TEST(LlamaLogits, OfSuppressedTokensAreTheLeast) {
  Model m;
  const std::vector<int32_t> tokens{3, 1, 4};
  const auto logits = [&] {
    LlamaSession session(*m.load());
    EXPECT_TRUE(session.feed(tokens));
    return Floats(session.logits().begin(), session.logits().end());
  };
  const Floats all = logits();
  m.keys = [](GgufBuilder& b) { b.i32s("tokenizer.ggml.suppress_tokens", {7, 1000, 31, -1}); };
  const Floats some = logits();
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(some[i], i == 7 || i == 31 ? -1e30F : all[i]) << i;
}

TEST(LlamaArchitectures, ThatAreNoneOfTheseAreRefusedWithTheReason) {
  for (const auto& [name, why] : {std::pair("dream", "diffusion"),
                                  {"dflash", "guesses"},
                                  {"deepseek4", "hyper-connections"},
                                  {"clip", "mmproj"},
                                  {"tea", "known: "}})
    EXPECT_NE(find_architecture(name).error().message.find(why), std::string::npos) << name;
}

/// Blocks without experts, of an architecture whose indexer chooses 8 blocks of 4 positions.
Model indexed_model() {
  Model m;
  m.architecture = "minimax-m3";
  m.keys = [](GgufBuilder& b) {
    const std::string p = "minimax-m3.attention.indexer.";
    b.u32(p + "head_count", 1).u32(p + "key_length", 4).u32(p + "top_k", 8);
    b.u32(p + "block_size", 4).u32(p + "local_blocks", 1);
  };
  m.matrix("blk.0.indexer.q_proj.weight", kWidth, kHead);
  return m;
}

TEST(LlamaIndexer, OfTextsThatItTakesWholeNothingIsLoaded) {
  const Model m = indexed_model();
  const auto whole = m.load(32);
  ASSERT_TRUE(whole) << whole.error().message;
  const auto longer = m.load(33);
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("indexer.k_proj.weight"), std::string::npos)
      << longer.error().message;
}

TEST(LlamaIndexer, WithoutWhatItChoosesIsRefusedByName) {
  Model m = indexed_model();
  m.keys = [](GgufBuilder& b) { b.u32("minimax-m3.attention.indexer.top_k", 8); };
  EXPECT_NE(m.refusal().find("minimax-m3.attention.indexer.block_size"), std::string::npos)
      << m.refusal();
  m.keys = [](GgufBuilder&) {};
  EXPECT_NE(m.refusal().find("minimax-m3.attention.indexer.top_k"), std::string::npos)
      << m.refusal();
}

TEST(LlamaDistances, WithoutWhatHeadsLearnedAreRefusedByName) {
  Model m;
  m.architecture = "t5encoder";
  EXPECT_NE(m.refusal().find("t5encoder.attention.relative_buckets_count"), std::string::npos)
      << m.refusal();
  m.keys = [](GgufBuilder& b) { b.u32("t5encoder.attention.relative_buckets_count", 6); };
  EXPECT_NE(m.refusal().find("multiple of 4"), std::string::npos) << m.refusal();
}

class LlamaRefusesTensors : public ::testing::TestWithParam<const char*> {};

TEST_P(LlamaRefusesTensors, WithoutAUse) {
  Model m;
  m.vector(GetParam(), 2);
  const std::string message = m.refusal();
  EXPECT_NE(message.find(std::string("tensor \"") + GetParam()), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Tensors, LlamaRefusesTensors,
                         ::testing::Values("blk.0.attn_norm.bias", "blk.0.attn_norm.scale",
                                           "blk.0.post_attention_norm.weight",
                                           "blk.1.attn_q.weight", "token_embd.scale",
                                           "token_types.weight"));

TEST(LlamaTensors, ThatSayWhatIsKnownAreAccepted) {
  Model m;
  m.vector("blk.0.attn_rot_embd.weight", 2);
  const auto model = m.load();
  EXPECT_TRUE(model) << model.error().message;
}

/// Converters of Phi do not say that the file has two sets of factors.
TEST(LlamaRope, FactorsOfLongTextsNeedNoType) {
  Model m;
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    m.vector(name, kHead / 2);
    for (float& factor : m.tensors.at(name)) factor = 2 + std::abs(factor);
  }
  const auto model = m.load();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE((*model)->config().rope.is_longrope);
}

/// What converters write beside what a model without pictures, or of another kind, would need.
TEST(LlamaKeys, OfPicturesAndOtherKindsOfBlocksAreAccepted) {
  for (const auto& [architecture, keys] : std::map<std::string, std::vector<std::string>>{
           {"granite",
            {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size",
             "ssm.time_step_rank", "deepstack_mapping"}},
           {"olmo2", {"rope.freq_base_swa"}}}) {
    Model m;
    m.architecture = architecture;
    if (architecture == "olmo2")
      for (const char* name : {"blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"})
        m.vector(name, kWidth);
    if (architecture == "olmo2")
      for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"})
        m.tensors.erase(name);
    m.keys = [&](GgufBuilder& b) {
      for (const std::string& key : keys)
        if (key == "rope.freq_base_swa")
          b.f32(architecture + "." + key, 1e4F);
        else
          b.u32(architecture + "." + key, 4);
    };
    const auto model = m.load();
    EXPECT_TRUE(model) << architecture << ": " << model.error().message;
  }
}

TEST(LlamaKeys, OfTextsReadBothWaysByStatesAreRefused) {
  Model m;
  m.architecture = "lfm2";
  m.keys = [](GgufBuilder& b) {
    b.boolean("lfm2.attention.causal", false).u32("lfm2.shortconv.l_cache", 3);
  };
  m.kv_heads = [](GgufBuilder& b, const std::string& key) { b.i32s(key, {0, 1}); };
  m.blocks = 2;
  EXPECT_NE(m.refusal().find("lfm2.attention.causal"), std::string::npos) << m.refusal();
}

/// Blocks behind those that write guess the token after the next, whatever the architecture.
TEST(LlamaKeys, BlocksThatGuessAreLeftOut) {
  Model m;
  m.vector("blk.1.nextn.eh_proj.weight", 2);
  m.keys = [](GgufBuilder& b) { b.u32("llama.nextn_predict_layers", 1); };
  EXPECT_NE(m.refusal().find("nextn_predict_layers"), std::string::npos) << m.refusal();
  m.blocks = 2;
  const auto model = m.load();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->config().block_count, 1u);
}

float rope_scale(const std::function<void(GgufBuilder&)>& keys) {
  Model m;
  m.keys = keys;
  const auto model = m.load();
  if (!model) ADD_FAILURE() << model.error().message;
  return model ? (*model)->config().rope.scale : 0;
}

TEST(LlamaRope, AFactorWithoutATypeIsLinear) {
  EXPECT_EQ(rope_scale([](GgufBuilder& b) { b.f32("llama.rope.scaling.factor", 4); }), 4);
}
TEST(LlamaRope, TheOldNameOfTheFactorIsLinear) {
  EXPECT_EQ(rope_scale([](GgufBuilder& b) { b.f32("llama.rope.scale_linear", 2); }), 2);
}
TEST(LlamaRope, NoneAndZeroAreNone) {
  EXPECT_EQ(rope_scale([](GgufBuilder& b) {
              b.text("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4);
            }),
            1);
  EXPECT_EQ(rope_scale([](GgufBuilder& b) { b.f32("llama.rope.scaling.factor", 0); }), 1);
}

using Doubles = std::vector<double>;

Doubles normalized(const Doubles& x, const Floats& gain) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  Doubles out;
  for (size_t i = 0; i < x.size(); ++i)
    out.push_back(x[i] / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5) *
                  static_cast<double>(gain[i]));
  return out;
}

/// Logits of a text of one token: it sees itself alone, so attention gives its value, unrotated.
Doubles reference(const Model& m, size_t token) {
  const auto at = [&](const std::string& name) -> const Floats& { return m.tensors.at(name); };
  const auto linear = [&](const std::string& name, const Doubles& x) {
    const Floats& w = at(name + ".weight");
    Doubles out(w.size() / x.size(), 0.0);
    for (size_t r = 0; r < out.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c)
        out[r] += static_cast<double>(w[r * x.size() + c]) * x[c];
      if (m.tensors.contains(name + ".bias")) out[r] += static_cast<double>(at(name + ".bias")[r]);
    }
    return out;
  };
  const Floats& table = at("token_embd.weight");
  Doubles x(table.begin() + static_cast<long>(token * kWidth),
            table.begin() + static_cast<long>((token + 1) * kWidth));
  const auto add = [&](const Doubles& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  const Doubles value = linear("blk.0.attn_v", normalized(x, at("blk.0.attn_norm.weight")));
  Doubles joined;
  for (int h = 0; h < kHeads; ++h) joined.insert(joined.end(), value.begin(), value.end());
  add(linear("blk.0.attn_output", joined));
  const Doubles in = normalized(x, at("blk.0.ffn_norm.weight"));
  Doubles hidden = linear("blk.0.ffn_gate", in);
  const Doubles up = linear("blk.0.ffn_up", in);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] *= up[i] / (1 + std::exp(-hidden[i]));
  add(linear("blk.0.ffn_down", hidden));
  return linear("output", normalized(x, at("output_norm.weight")));
}

void expect_reference(const Model& m, const std::string& what) {
  const auto model = m.load();
  ASSERT_TRUE(model) << what << ": " << model.error().message;
  LlamaSession session(*model, {.cache_type = DType::kF32});
  const int32_t token = 5;
  ASSERT_TRUE(session.feed({&token, 1}));
  const Doubles want = reference(m, static_cast<size_t>(token));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(static_cast<double>(session.logits()[i]), want[i], 1e-4) << what << " " << i;
}

TEST(LlamaBiases, AreAddedWhereverAFileHasThem) {
  const std::map<std::string, uint64_t> biases = {
      {"blk.0.attn_v.bias", kHead},     {"blk.0.attn_output.bias", kWidth},
      {"blk.0.ffn_gate.bias", kHidden}, {"blk.0.ffn_up.bias", kHidden},
      {"blk.0.ffn_down.bias", kWidth},  {"output.bias", kVocabulary}};
  Model all;
  expect_reference(all, "no bias");
  for (const auto& [name, count] : biases) {
    Model one;
    one.vector(name, count);
    expect_reference(one, name);
    all.vector(name, count);
  }
  expect_reference(all, "all biases");
}

/// As files of NVFP4 have them.
TEST(LlamaScales, OfMatricesAreThoseOfTheirProducts) {
  for (const char* name : {"blk.0.attn_q", "blk.0.attn_v", "blk.0.attn_output", "blk.0.ffn_gate",
                           "blk.0.ffn_up", "blk.0.ffn_down", "output"}) {
    Model scaled;
    scaled.vector(std::string(name) + ".bias", scaled.dims.at(std::string(name) + ".weight")[1]);
    Model multiplied = scaled;
    scaled.vector(std::string(name) + ".scale", 1);
    const float scale = scaled.tensors.at(std::string(name) + ".scale")[0];
    scaled.vector(std::string(name) + ".input_scale", 1);
    for (float& v : multiplied.tensors.at(std::string(name) + ".weight")) v *= scale;
    const std::vector<int32_t> tokens{3, 1, 4, 1, 5};
    const auto logits = [&](const Model& m) {
      const auto model = m.load();
      if (!model) ADD_FAILURE() << model.error().message;
      LlamaSession session(*model, {.cache_type = DType::kF32});
      EXPECT_TRUE(session.feed(tokens));
      return Floats(session.logits().begin(), session.logits().end());
    };
    const Floats got = logits(scaled), want = logits(multiplied);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4F) << name << i;
  }
}

TEST(LlamaScales, OfAnotherShapeAreRefusedByName) {
  for (const char* name : {"blk.0.attn_q.scale", "output.scale"}) {
    Model m;
    m.vector(name, 2);
    EXPECT_NE(m.refusal().find(name), std::string::npos) << m.refusal();
  }
}

TEST(LlamaBiases, OfAnotherShapeAreRefusedByName) {
  for (const char* name : {"blk.0.attn_output.bias", "blk.0.ffn_up.bias", "output.bias"}) {
    Model m;
    m.vector(name, 3);
    EXPECT_NE(m.refusal().find(name), std::string::npos) << m.refusal();
  }
}

}  // namespace
}  // namespace bm::models
