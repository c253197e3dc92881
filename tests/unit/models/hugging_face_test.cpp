// Folders of Hugging Face: the logits of a GGUF file with the same weights, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "models/embedding_head.h"
#include "models/hugging_face.h"
#include "models/llama_encoder.h"
#include "models/llama_session.h"
#include "models/safetensors.h"
#include "models/sampler_defaults.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

constexpr const char* kScript = "/usr/bin/python3 tests/oracle/hugging_face_folder.py";

std::vector<float> logits_of(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) throw std::runtime_error(path + ": " + file.error().message);
  const auto shared = std::make_shared<const GgufFile>(std::move(*file));
  auto model = Llama::load(shared, {.device = "CPU", .context = 0, .progress = {}});
  if (!model) throw std::runtime_error(path + ": " + model.error().message);
  const std::vector<int32_t> tokens = {5, 1, 33, 60, 2, 17, 40, 9, 9, 21, 3};
  if (!(*model)->config().is_causal) {
    const auto encoder = LlamaEncoder::create(*model);
    EXPECT_TRUE(encoder);
    EXPECT_TRUE((*encoder)->encode(tokens));
    const std::span<const float> hidden = (*encoder)->hidden();
    return {hidden.begin(), hidden.end()};
  }
  LlamaSession session(*model);
  EXPECT_TRUE(session.feed(std::span(tokens).first(7)));
  for (size_t i = 7; i < tokens.size(); ++i)
    EXPECT_TRUE(session.feed(std::span(tokens).subspan(i, 1)));
  const std::span<const float> out = session.logits();
  return {out.begin(), out.end()};
}

bool has_numpy() {
  static const bool found = std::system("/usr/bin/python3 -c 'import numpy' >/dev/null 2>&1") == 0;
  return found;
}

/// The GGUF files are judged by PyTorch in Llama.EveryArchitectureEqualsTheReference.
void expect_equal(const std::vector<std::string>& models) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  const test::TempFolder folder;
  std::string command = fmt::format("{} --random {}", kScript, folder.file(""));
  for (const std::string& model : models) command += fmt::format(" '{}'", model);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (size_t i = 0; i < models.size(); ++i) {
    SCOPED_TRACE(models[i]);
    const std::vector<float> want = logits_of(folder.file(fmt::format("{}.gguf", i))),
                             got = logits_of(folder.file(fmt::format("{}", i)));
    ASSERT_EQ(got.size(), want.size());
    float scale = 0;
    for (const float v : want) scale = std::max(scale, std::abs(v));
    // Gains less one round once more; sums over a head run in another order.
    for (size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], want[k], 2e-5F * scale) << k;
  }
}

TEST(HuggingFace, AFolderHasTheLogitsOfTheFile) { expect_equal({"llama", "qwen2"}); }

TEST(HuggingFace, AFolderOfAnEncoderHasTheHiddenStatesOfTheFile) {
  expect_equal({"bert", "roberta", "mpnet", "deberta-v2", "nomic-bert", "nomic-bert-moe",
                "jina-bert-v3", "modern-bert", "eurobert", "gemma-embedding"});
}

TEST(HuggingFace, FoldersOfEveryFamilyDo) {
  expect_equal({"llama",
                "mixtral",
                "qwen2",
                "qwen3",
                "qwen2moe",
                "qwen3moe",
                "gemma",
                "gemma2",
                "gemma3",
                "phi3",
                "olmo",
                "olmo2",
                "olmoe",
                "granite",
                "command-r",
                "cohere2",
                "starcoder2",
                "smollm3",
                "arcee",
                "stablelm",
                "seed_oss",
                "glm4",
                "nemotron",
                "gpt2",
                "gptneox",
                "falcon",
                "gpt-oss",
                "exaone4",
                "exaone4-letters --key attention.sliding_window=5 --key "
                "attention.sliding_window_pattern=3",
                "glm4moe",
                "qwen3next",
                "qwen3.5",
                "mistral3",
                "mistral3 --key rope.scaling.type=yarn --key rope.scaling.factor=4.0 --key "
                "rope.scaling.original_context_length=16 --key "
                "rope.scaling.yarn_log_multiplier=1.0 --key attention.temperature_scale=0.1",
                "lfm2",
                "lfm2-indices",
                "lfm2moe",
                "hunyuan-dense",
                "hunyuan-dense-alpha",
                "hunyuan-moe",
                "granitemoe",
                "granitehybrid --key ssm.group_count=1",
                "granitehybrid --key ssm.group_count=1 --key rope.scaling.finetuned=true",
                "gemma3n",
                "deepseek2",
                "deepseek2 --tensor plainq",
                "deepseek3 --tensor probsbias --key expert_gating_func=2",
                "llama-llama3 --tensor rope_freqs",
                "phi3-longrope --tensor rope_long --tensor rope_short --key "
                "rope.scaling.type=longrope --key "
                "rope.scaling.original_context_length=32",
                "llama --key rope.scaling.type=linear --key rope.scaling.factor=4.0",
                "qwen2 --key rope.scaling.type=yarn --key rope.scaling.factor=4.0 --key "
                "rope.scaling.original_context_length=32"});
}

TEST(HuggingFace, ExpertsInMxfp4KeepTheirNumbers) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  const test::TempFolder folder;
  const std::string command = fmt::format("{} --random {} gpt-oss-mxfp4", kScript, folder.file(""));
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto want = GgufFile::open(folder.file("0.gguf")), got = GgufFile::open(folder.file("0"));
  ASSERT_TRUE(want) << want.error().message;
  ASSERT_TRUE(got) << got.error().message;
  size_t compared = 0;
  for (const GgufTensor& t : want->tensors()) {
    if (!t.name.ends_with("_exps.weight")) continue;
    const GgufTensor* packed = got->find_tensor(t.name);
    ASSERT_NE(packed, nullptr) << t.name;
    EXPECT_EQ(packed->type, GgmlType::kMXFP4);
    ASSERT_EQ(packed->value_count, t.value_count);
    std::vector<float> expected(t.value_count), values(t.value_count);
    ASSERT_TRUE(dequantize_row(t.type, t.data, expected));
    ASSERT_TRUE(dequantize_row(packed->type, packed->data, values));
    EXPECT_EQ(values, expected) << t.name;
    ++compared;
  }
  EXPECT_GE(compared, 3u);
}

/// A folder with this config.json and nothing else.
Error refusal_of(const std::string& config) {
  const test::TempFolder folder;
  std::ofstream(folder.file("config.json")) << config;
  const auto file = GgufFile::open(folder.file(""));
  return file ? Error{} : file.error();
}

/// A small BERT in a folder, and what stands in it besides.
class EncoderFolder {
 public:
  explicit EncoderFolder(const char* name = "BertModel", const std::string& more = "") {
    const std::string command = fmt::format(
        "cd {0} && /usr/bin/python3 -c \"import sys; sys.path.insert(0, '{1}/tests/oracle'); "
        "import "
        "hugging_face_folder as h; h.random_models('{0}', ['bert --dim 12 --ffn 8 --heads 2 "
        "--layers 1'])\"",
        folder_.file(""), std::filesystem::current_path().string());
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream in(path("config.json"));
    std::string config((std::istreambuf_iterator<char>(in)), {});
    config.replace(config.find("BertModel"), 9, name);
    config.insert(config.rfind('}'), more);
    write("config.json", config);
  }
  std::string path(const std::string& name) const { return folder_.file("0/" + name); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
  }
  /// modules.json with a Pooling and these modules behind it.
  void write_modules(const std::string& pooling, const std::string& behind = "") const {
    write("modules.json",
          R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
              {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})" +
              behind + "]");
    write("1_Pooling/config.json", pooling);
  }
  /// [[1, 0, …], [0, 2, 0, …]] and a bias of 0.5 and 0, of texts' vectors of 12.
  void write_dense(const std::string& name, const std::string& config) const {
    write(name + "/config.json", config);
    std::vector<float> w(24), bias = {0.5F, 0.0F};
    w[0] = 1, w[13] = 2;
    const auto bytes = [](const std::vector<float>& v) { return std::as_bytes(std::span(v)); };
    ASSERT_TRUE(write_safetensors(
        path(name + "/model.safetensors"),
        std::vector<SafeTensor>{{"linear.weight", SafeDtype::kF32, {2, 12}, 0, bytes(w)},
                                {"linear.bias", SafeDtype::kF32, {2}, 0, bytes(bias)}}));
  }
  Result<GgufFile> open() const { return GgufFile::open(path("")); }
  std::string refusal() const {
    const auto file = open();
    return file ? "" : file.error().message;
  }

 private:
  test::TempFolder folder_;
};

constexpr const char* kDense =
    R"(, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
         {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"})";

TEST(HuggingFace, ModulesSayHowTokensBecomeAVector) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  const EncoderFolder folder;
  EXPECT_EQ(folder.open()->find("bert.pooling_type"), nullptr);
  for (const auto& [config, type] :
       {std::pair{R"({"pooling_mode_mean_tokens": true})", 1u},
        std::pair{R"({"pooling_mode_cls_token": true})", 2u},
        std::pair{R"({"pooling_mode": "lasttoken"})", 3u},
        std::pair{R"({"pooling_mode": ["cls"]})", 2u}, std::pair{"{}", 1u}}) {
    folder.write_modules(config);
    const auto file = folder.open();
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->get_u32("bert.pooling_type").value(), type) << config;
  }
  for (const auto& [activation, first, second] :
       {std::tuple{"linear.Identity", 3.5, 4.0},
        std::tuple{"activation.Tanh", std::tanh(3.5), std::tanh(4.0)}}) {
    folder.write_modules("{}", kDense);
    folder.write_dense(
        "2_Dense", fmt::format(R"({{"activation_function": "torch.nn.modules.{}"}})", activation));
    const auto file = folder.open();
    ASSERT_TRUE(file) << file.error().message;
    const auto head = EmbeddingHead::from_gguf(*file);
    ASSERT_TRUE(head) << head.error().message;
    std::vector<double> pooled(12);
    pooled[0] = 3, pooled[1] = 2;
    const auto made = head->apply(pooled);
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_EQ(made->size(), 2u);
    EXPECT_NEAR((*made)[0], first, 1e-12);
    EXPECT_NEAR((*made)[1], second, 1e-12);
  }
}

TEST(HuggingFace, PromptsHaveNamesAndOneMayBeTheDefault) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  const EncoderFolder folder;
  const auto head_of = [&](const char* prompts, const char* pooling = "{}") {
    folder.write_modules(pooling);
    folder.write("config_sentence_transformers.json", prompts);
    const auto file = folder.open();
    if (!file) throw std::runtime_error(file.error().message);
    return EmbeddingHead::from_gguf(*file).value();
  };
  const EmbeddingHead plain = head_of(R"({"prompts": {"query": "q: ", "document": ""}})");
  EXPECT_EQ(plain.prompt_of(std::nullopt), "");
  EXPECT_EQ(plain.prompt_of("query"), "q: ");
  EXPECT_EQ(plain.prompt_of("document"), "");
  EXPECT_EQ(plain.prompt_of("title"), std::nullopt);
  EXPECT_EQ(plain.prompt_names(), "\"document\", \"query\"");
  const EmbeddingHead chosen =
      head_of(R"({"prompts": {"query": "q: "}, "default_prompt_name": "query"})");
  EXPECT_EQ(chosen.prompt_of(std::nullopt), "q: ");
  EXPECT_EQ(chosen.prompt_of(""), "") << "none is asked for";
  EXPECT_EQ(head_of(R"({"prompts": null})").prompt_of("query"), std::nullopt);
  for (const auto& [prompts, pooling, text] :
       {std::tuple{R"({"prompts": ["a"]})", "{}", "no object"},
        std::tuple{R"({"prompts": {"a": 1}})", "{}", "no text"},
        std::tuple{R"({"prompts": {"a": "b"}, "default_prompt_name": "c"})", "{}", "none of"},
        std::tuple{R"({"prompts": {"a": "b"}})", R"({"include_prompt": false})",
                   "include_prompt"}}) {
    folder.write_modules(pooling);
    folder.write("config_sentence_transformers.json", prompts);
    EXPECT_NE(folder.refusal().find(text), std::string::npos) << folder.refusal();
  }
}

TEST(HuggingFace, HeadsOfClassifiersDiffer) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  for (const auto& [name, more, activation] :
       {std::tuple{"DistilBertForSequenceClassification", "", "relu"},
        std::tuple{"ElectraForSequenceClassification", R"(, "embedding_size": 12)", "gelu"},
        std::tuple{"BertForSequenceClassification", "", "tanh"}}) {
    const auto file =
        EncoderFolder(name, std::string(R"(, "id2label": {"0": "LABEL_0"})") + more).open();
    ASSERT_TRUE(file) << name << ": " << file.error().message;
    EXPECT_EQ(file->get_string("bellmetal.cls.activation", "tanh").value(), activation) << name;
  }
  const std::string refusal = EncoderFolder("ElectraModel").refusal();
  EXPECT_NE(refusal.find("embedding_size"), std::string::npos) << refusal;
  const std::string rotary =
      EncoderFolder("XLMRobertaModel", R"(, "position_embedding_type": "rotary")").refusal();
  EXPECT_NE(rotary.find("JinaEmbeddingsV3Model"), std::string::npos) << rotary;
}

TEST(HuggingFace, SaysWhichModuleItDoesNotDo) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  const EncoderFolder folder;
  const auto expect = [&](const char* text) {
    EXPECT_NE(folder.refusal().find(text), std::string::npos) << folder.refusal();
  };
  folder.write("modules.json", "{}");
  expect("not a list of modules");
  folder.write("modules.json",
               R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
                   {"path": "9_Pooling", "type": "sentence_transformers.models.Pooling"}])");
  expect("9_Pooling/config.json is missing");
  folder.write_modules(R"({"pooling_mode_max_tokens": true})");
  expect("\"max\"");
  folder.write_modules(R"({"pooling_mode_max_tokens": true, "pooling_mode_cls_token": true})");
  expect("\"cls\" and \"max\"");
  folder.write_modules("{}", R"(, {"path": "../x", "type": "a.Normalize"})");
  expect("outside of the folder");
  folder.write_modules("{}", R"(, {"path": "", "type": "sentence_transformers.models.LSTM"})");
  expect("\"LSTM\"");
  folder.write_modules("{}", kDense);
  expect("2_Dense/config.json is missing");
  folder.write("2_Dense/config.json", R"({"activation_function": "torch.nn.ReLU"})");
  expect("torch.nn.ReLU");
  folder.write("2_Dense/config.json", "{}");
  expect("2_Dense/model.safetensors is missing");
}

TEST(HuggingFace, AClassifierOfOneLabelIsAReranker) {
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is not installed";
  const auto file =
      EncoderFolder("BertForSequenceClassification", R"(, "id2label": {"0": "LABEL_0"})").open();
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->get_u32("bert.pooling_type").value(), 4u);
  for (const char* labels : {"", R"(, "id2label": {"0": "no", "1": "yes", "2": "maybe"})"}) {
    const std::string refusal = EncoderFolder("BertForSequenceClassification", labels).refusal();
    EXPECT_NE(refusal.find(*labels ? "3 labels" : "2 labels"), std::string::npos) << refusal;
  }
  const std::string body = EncoderFolder("Qwen3Model").refusal();
  EXPECT_NE(body.find("modules.json"), std::string::npos) << body;
}

TEST(HuggingFace, GenerationConfigSaysHowTokensAreChosen) {
  const test::TempFolder folder;
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder.file(name)) << text;
  };
  write("tokenizer.json", R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})");
  write("generation_config.json",
        R"({"temperature":0.6,"top_p":0.9,"top_k":20,"repetition_penalty":1.1,"min_p":null,
            "suppress_tokens":[3,"x",-1],"eos_token_id":[7,8]})");
  const auto file = open_hugging_face_tokenizer(folder.file(""));
  ASSERT_TRUE(file) << file.error().message;
  const SamplerDefaults got = sampler_defaults(*file);
  EXPECT_EQ(got.temperature, 0.6F);
  EXPECT_EQ(got.top_p, 0.9F);
  EXPECT_EQ(got.top_k, 20u);
  EXPECT_EQ(got.repeat_penalty, 1.1F);
  EXPECT_FALSE(got.min_p);
  EXPECT_EQ(file->get_i32s("tokenizer.ggml.suppress_tokens").value(), (std::vector<int32_t>{3}));
  EXPECT_EQ(file->get_i32s("bellmetal.end_token_ids").value(), (std::vector<int32_t>{7, 8}));
}

TEST(HuggingFace, SaysWhatItDoesNotDo) {
  EXPECT_NE(refusal_of("[]").message.find("no JSON object"), std::string::npos);
  EXPECT_NE(refusal_of("{}").message.find("architectures"), std::string::npos);
  const Error unknown = refusal_of(R"({"architectures": ["NoSuchForCausalLM"]})");
  EXPECT_EQ(unknown.code, Code::kUnsupported);
  EXPECT_NE(unknown.message.find("NoSuchForCausalLM"), std::string::npos);
  EXPECT_EQ(
      refusal_of(R"({"architectures": ["LlamaForCausalLM"], "quantization_config": {}})").code,
      Code::kUnsupported);
  EXPECT_NE(
      refusal_of(R"({"architectures": ["LlamaForCausalLM"]})").message.find("num_hidden_layers"),
      std::string::npos);
  const std::string small = R"("architectures": ["LlamaForCausalLM"], "hidden_size": 8,
      "num_hidden_layers": 1, "intermediate_size": 8, "num_attention_heads": 2)";
  EXPECT_EQ(refusal_of("{" + small + "}").code, Code::kNotFound);  // no weights
  EXPECT_NE(refusal_of("{" + small + R"(, "hidden_act": "relu"})").message.find("hidden_act"),
            std::string::npos);
  EXPECT_NE(refusal_of("{" + small + R"(, "rope_scaling": {"type": "new"}})").message.find("new"),
            std::string::npos);
  EXPECT_NE(refusal_of("{" + small +
                       R"(, "rope_scaling": null, "rope_parameters": {"rope_type": "new"}})")
                .message.find("new"),
            std::string::npos);
  EXPECT_EQ(refusal_of(std::string(100, '[')).code, Code::kCorrupt);
  // Of single families.
  const auto refusal = [&](const char* name, const char* keys) {
    const std::string rest = small.substr(small.find(",") + 1);
    return refusal_of(fmt::format(R"({{"architectures": ["{}"],{}, {}}})", name, rest, keys))
        .message;
  };
  const auto expect = [&](const char* name, const char* keys, const char* text) {
    EXPECT_NE(refusal(name, keys).find(text), std::string::npos) << refusal(name, keys);
  };
  expect("LlamaForCausalLM", R"("num_key_value_heads": [2, 1])", "differs between layers");
  expect("Lfm2ForCausalLM", R"("num_key_value_heads": 2, "full_attn_idxs": [1])", "full_attn_idxs");
  expect("Lfm2ForCausalLM", R"("num_key_value_heads": 2, "conv_bias": true)", "conv_bias");
  expect("PhiForCausalLM", R"("qk_layernorm": true)", "qk_layernorm");
  expect("Exaone4ForCausalLM",
         R"("num_key_value_heads": 2, "sliding_window": 4, "sliding_window_pattern": "LX")",
         "letters");
  expect("GraniteMoeHybridForCausalLM",
         R"("layer_types": ["mamba"], "mamba_n_groups": 2, "shared_intermediate_size": 8)",
         "mamba_n_groups");
  expect(
      "GraniteMoeHybridForCausalLM",
      R"("layer_types": ["mamba"], "time_step_limit": [0.0, 0.5], "shared_intermediate_size": 8)",
      "time_step_limit");
  expect("Ministral3ForCausalLM", R"("num_key_value_heads": 2, "sliding_window": 4)",
         "sliding_window");
}

}  // namespace
}  // namespace bm::models
