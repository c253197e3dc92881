// The network against an independent PyTorch implementation, in every weight format.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <random>

#include "models/llama_batch.h"
#include "models/llama_encoder.h"
#include "models/tokenizer.h"
#include "runtime/allocator.h"
#include "runtime/device.h"
#include "tests/unit/formats/test_support.h"
#include "tests/unit/models/reference.h"

namespace bm::models {
namespace {

constexpr const char* kModel = "models/bundled/licence.gguf";

/// Logits of every position, [tokens][vocabulary], computed by tests/oracle/llama_reference.py.
std::vector<float> reference(const std::string& model, const std::vector<int32_t>& tokens,
                             size_t vocabulary, const test::TempFolder& folder) {
  const std::string out = folder.file("logits.f32");
  std::string list;
  for (int32_t t : tokens) list += (list.empty() ? "" : ",") + std::to_string(t);
  const std::string command =
      fmt::format("{} tests/oracle/llama_reference.py {} --tokens {} --out {} >/dev/null", kPython,
                  model, list, out);
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command);
  return read_floats(out, tokens.size() * vocabulary);
}

std::vector<int32_t> prompt_tokens(const std::string& model, size_t count) {
  const auto file = open(model);
  const auto tokenizer = Tokenizer::from_gguf(*file);
  auto tokens = (*tokenizer)
                    ->encode(
                        "Permission is hereby granted, free of charge, to any person obtaining a "
                        "copy of this software");
  tokens->resize(std::min(count, tokens->size()));
  return *tokens;
}

TEST(Llama, AnEncoderTellsTheKindsOfTokensApart) {
  const test::TempFolder folder;
  const std::string path = folder.file("bert.gguf");
  const std::string command =
      fmt::format("{} tests/oracle/random_transformer.py {} --arch bert --layers 1", kPython, path);
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "python3-numpy is not installed";
  std::ifstream in(path, std::ios::binary);
  std::vector<char> image((std::istreambuf_iterator<char>(in)), {});
  const auto hidden_of = [&](size_t second) {
    auto file = GgufFile::from_bytes(std::as_bytes(std::span(image)));
    const auto shared = std::make_shared<const GgufFile>(std::move(*file));
    const auto model = Llama::load(shared, {.device = "CPU", .context = 0, .progress = {}});
    EXPECT_EQ((*model)->token_kinds(), 2u);
    const auto encoder = LlamaEncoder::create(*model);
    const std::vector<int32_t> tokens = {5, 1, 33, 60, 2};
    EXPECT_TRUE((*encoder)->encode(tokens, 2));  // nothing of it stays
    EXPECT_TRUE((*encoder)->encode(tokens, second));
    return std::vector<float>((*encoder)->hidden().begin(), (*encoder)->hidden().end());
  };
  const std::vector<float> first = hidden_of(SIZE_MAX), both = hidden_of(3), second = hidden_of(0);
  EXPECT_EQ(hidden_of(5), first);
  EXPECT_NE(both, first);
  EXPECT_NE(both, second);
  // The rows of the table in the other order.
  const auto file = GgufFile::from_bytes(std::as_bytes(std::span(image)));
  const auto rows = file->find_tensor("token_types.weight")->data;
  char* const begin = image.data() + (reinterpret_cast<const char*>(rows.data()) - image.data());
  std::swap_ranges(begin, begin + rows.size() / 2, begin + rows.size() / 2);
  EXPECT_EQ(hidden_of(0), first);
  EXPECT_EQ(hidden_of(SIZE_MAX), second);
}

TEST(Llama, LogitsEqualThePyTorchReferenceInEveryFormat) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  const std::vector<int32_t> tokens = prompt_tokens(kModel, 40);
  for (const char* type : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"}) {
    const std::string path = folder.file(std::string(type) + ".gguf");
    const std::string command = fmt::format("{} tests/oracle/quantize_gguf.py {} {} {} >/dev/null",
                                            kPython, kModel, path, type);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const auto model = load(path, "CPU", 0, false);
    const size_t vocabulary = model->config().vocab_size;
    const std::vector<float> want = reference(path, tokens, vocabulary, folder);
    LlamaSession by_one(model, exact()), by_chunk(model, exact()), by_blocks(load(path, "CPU"));
    ASSERT_TRUE(by_blocks.feed(tokens));
    EXPECT_LT(distance(by_blocks.logits(), std::span(want).last(vocabulary)), 0.02) << type;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto status = by_one.feed({&tokens[i], 1});
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_LT(distance(by_one.logits(), std::span(want).subspan(i * vocabulary, vocabulary)),
                1e-4)
          << type << " token " << i;
    }
    for (size_t n : {size_t{40}, size_t{7}, size_t{1}}) {
      by_chunk.reset();
      const auto status = by_chunk.feed(std::span(tokens).first(n));
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_LT(
          distance(by_chunk.logits(), std::span(want).subspan((n - 1) * vocabulary, vocabulary)),
          1e-4)
          << type << " prompt of " << n;
    }
  }
}

/// exp of the mean surprise at every token but the first.
double perplexity(const std::string& path, std::span<const int32_t> tokens, bool keep_blocks) {
  LlamaSession session(load(path, "CPU", 0, keep_blocks));
  double sum = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    EXPECT_TRUE(session.feed({&tokens[i], 1}));
    const std::span<const float> logits = session.logits();
    const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    double total = 0;
    for (const float l : logits) total += std::exp(static_cast<double>(l) - largest);
    const auto next = static_cast<size_t>(tokens[i + 1]);
    sum += std::log(total) + largest - static_cast<double>(logits[next]);
  }
  return std::exp(sum / static_cast<double>(tokens.size() - 1));
}

TEST(Llama, BlocksDoNotMoveThePerplexity) {
  const test::TempFolder folder;
  const auto tokenizer = Tokenizer::from_gguf(*open(kModel));
  std::ifstream in("LICENSE");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  auto tokens = (*tokenizer)->encode(text);
  ASSERT_TRUE(tokens);
  tokens->resize(std::min<size_t>(tokens->size(), 300));
  for (const char* type : {"Q8_0", "Q4_0", "Q4_K", "Q6_K"}) {
    const std::string path = folder.file(std::string(type) + ".gguf");
    const std::string command = fmt::format("{} tests/oracle/quantize_gguf.py {} {} {} >/dev/null",
                                            kPython, kModel, path, type);
    if (std::system(command.c_str()) != 0) GTEST_SKIP() << command;
    const double expanded = perplexity(path, *tokens, false),
                 kept = perplexity(path, *tokens, true);
    EXPECT_NEAR(kept / expanded, 1, 0.005) << type << ": " << expanded << " and " << kept;
  }
}

/// 21 tokens of a vocabulary.
std::vector<int32_t> sample_tokens(size_t vocabulary) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 21; ++i)
    tokens.push_back((i * 37 + 5) % static_cast<int32_t>(vocabulary));
  return tokens;
}

/// The first 13 as a prompt: logits of every position from there on.
void expect_logits(const std::shared_ptr<const Llama>& model, const std::vector<int32_t>& tokens,
                   const std::vector<float>& want, const std::string& what) {
  const size_t vocabulary = model->config().vocab_size;
  LlamaSession session(model, exact());
  begin(session, tokens);
  for (size_t at = 13; at <= tokens.size(); ++at) {
    const size_t from = at == 13 ? 0 : at - 1;
    ASSERT_TRUE(session.feed(std::span(tokens).subspan(from, at - from))) << what;
    EXPECT_LT(
        distance(session.logits(), std::span(want).subspan((at - 1) * vocabulary, vocabulary)),
        1e-4)
        << what << " token " << at;
  }
}

TEST(Llama, RandomModelsOfEveryFamilyEqualTheReference) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  for (const char* options : {
           "--arch llama --kv-heads 6 --vocab 7",
           "--arch llama --dim 72 --heads 3 --kv-heads 1 --head-dim 40 --ffn 33 --vocab 131 "
           "--untied --rope-factors --base 500000",
           "--arch llama --linear-scale 4 --layers 3 --heads 8 --kv-heads 4",
           "--arch llama --untied --biases",
           "--arch qwen2 --untied",
           "--arch qwen3 --head-dim 32 --kv-heads 3 --untied",
           "--arch gemma --head-dim 16 --kv-heads 1 --ffn 96",
       }) {
    const std::string path = folder.file("random.gguf");
    const std::string command =
        fmt::format("{} tests/oracle/random_llama.py {} {}", kPython, path, options);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const auto model = load(path, "CPU");
    const std::vector<int32_t> tokens = sample_tokens(model->config().vocab_size);
    expect_logits(model, tokens, reference(path, tokens, model->config().vocab_size, folder),
                  options);
  }
}

TEST(Llama, EveryArchitectureEqualsTheReference) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  std::vector<std::string> options;
  for (const Architecture& row : architectures())
    if (!row.has(kNoLogits)) options.push_back(row.name);
  for (const char* more :
       {"falcon --tensor attn_norm_2",
        "stablelm --tensor headqknorm",
        "stablelm --without ffn_norm",
        "command-r --tensor headqknorm",
        "gptneox --key use_parallel_residual=false",
        "olmo2 --key attention.sliding_window=5",
        "llama --key attention.sliding_window=4",
        "llama --key rope.scaling.attn_factor=1.19",
        "qwen2 --key rope.scaling.type=yarn --key rope.scaling.factor=4.0 --key "
        "rope.scaling.original_context_length=32",
        "phi3 --tensor rope_long --tensor rope_short --key rope.scaling.type=longrope --key "
        "rope.scaling.original_context_length=512 --key rope.scaling.attn_factor=1.19",
        "t5 --tensor plainup --tensor biases --tensor tied --key decoder_block_count=4",
        "t5 --key attention.relative_buckets_count=32",
        "mamba --key ssm.dt_b_c_rms=true",
        "falcon-h1 --without ssm_norm",
        "rwkv6 --tensor apart",
        "grok --tensor dense --key router_logit_softcapping=2.0",
        "arwkv7 --tensor nogate",
        "arwkv7 --tensor mixnorm",
        "granitehybrid --key rope.scaling.finetuned=true",
        "granite --key rope.scaling.finetuned=false",
        "llama --tensor moe",
        "gemma4 --tensor moe --key embedding_length_per_layer_input=0 --key "
        "attention.shared_kv_layers=0",
        "gemma4 --without blk.2.attn_v",
        "bitnet --key hidden_activation=relu2",
        "deci --tensor rope_freqs",
        "cohere2moe --key attention.layer_norm_rms_epsilon=0.00001",
        "granite_swa --tensor moe",
        "mimo2 --tensor qkv",
        "nanbeige --key skip_loop_final_norm=true",
        "step35 --tensor rope_freqs",
        "mistral3 --key attention.temperature_scale=0.1 --key attention.temperature_length=6",
        "mistral4 --tensor split --key attention.temperature_scale=0.1 --key "
        "attention.temperature_length=6",
        "baichuan --layers 40",
        "qwen3moe --tensor gateup",
        "qwen3moe --tensor gateup --tensor scales",
        "qwen2moe --tensor scales",
        "llama --tensor scales",
        "exaone4 --layers 5 --key attention.sliding_window=5",
        "mistral3 --key rope.scaling.type=yarn --key rope.scaling.factor=4.0 --key "
        "rope.scaling.original_context_length=32 --key rope.scaling.yarn_log_multiplier=1.0",
        "glm4moe --tensor nextn",
        "glm4 --key rope.dimension_sections=2,1,1,0",
        "phi3 --tensor rope_long --tensor rope_short --key "
        "rope.scaling.original_context_length=32 --key rope.scaling.attn_factor=1.19",
        "glm-dsa --tensor nextn",
        "hy_v3 --tensor nextn",
        "bailingmoe3 --tensor nextn --tensor plainq",
        "kimi-k3 --tensor plainq --without attn_gate",
        "nemotron_h_moe --key moe_latent_size=32 --tensor nextn",
        "muse-glimmer --key attention.sliding_window=3",
        "llama4 --key attention.sliding_window=4 --key attention.temperature_length=3",
        "deepseek2 --tensor split --tensor plainq --tensor probsbias --key expert_gating_func=2 "
        "--key expert_weights_norm=true --key expert_group_count=3 --key "
        "expert_group_used_count=2",
        "deepseek2 --key expert_group_count=3 --key expert_group_used_count=2 --key "
        "rope.scaling.type=yarn --key rope.scaling.factor=4.0 --key "
        "rope.scaling.original_context_length=32 --key rope.scaling.yarn_log_multiplier=0.0707"})
    options.emplace_back(more);
  constexpr size_t kVocabulary = 64;  // of random_transformer.py
  const std::vector<int32_t> tokens = sample_tokens(kVocabulary);
  std::string command = fmt::format("{} tests/oracle/architecture_references.py {} {}", kPython,
                                    folder.file(""), fmt::join(tokens, ","));
  for (const std::string& option : options) command += fmt::format(" '{}'", option);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string path = folder.file(fmt::format("{}.gguf", i));
    const auto model = load(path, "CPU");
    const std::vector<float> want =
        read_floats(folder.file(fmt::format("{}.f32", i)), tokens.size() * kVocabulary);
    expect_logits(model, tokens, want, options[i]);
    // Other caches than keys and values are divided too.
    if (model->config().recurrent.kernel > 0 || model->config().latent.rank > 0 ||
        model->config().encoder_block_count > 0 || model->config().layer_input_length > 0)
      expect_logits(load(path, "CPU:1,CPU:2"), tokens, want, options[i] + " on two devices");
    if (model->config().encoder_block_count > 0) {
      LlamaSession session(model);
      const Status fed = session.feed(tokens);
      ASSERT_FALSE(fed) << options[i];
      EXPECT_NE(fed.error().message.find("encoded before"), std::string::npos);
      const auto batch = LlamaBatch::create(model, {});
      ASSERT_FALSE(batch) << options[i];
      EXPECT_EQ(batch.error().code, Code::kUnsupported) << batch.error().message;
    }
    if (model->config().loop_length > 0) {
      const auto divided =
          Llama::load(open(path), {.device = "CPU:1,CPU:2", .context = 0, .progress = {}});
      ASSERT_FALSE(divided) << options[i];
      EXPECT_NE(divided.error().message.find("blocks that can be apart"), std::string::npos);
    }
    // Hidden states are not all that a later stage would need.
    if (model->config().layer_input_length > 0 || model->config().encoder_block_count > 0) {
      const auto stage =
          Llama::load(open(path), {.device = "CPU", .stages = 2, .context = 0, .progress = {}});
      ASSERT_FALSE(stage) << options[i];
      EXPECT_EQ(stage.error().code, Code::kUnsupported) << stage.error().message;
    }
  }
}

/// States go through several pieces, whose ends are those of no chunk, and on token by token.
TEST(Llama, LongPromptsOfRecurrentModelsEqualTheReference) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  const std::array models{"mamba2",      "falcon-h1",   "lfm2",       "qwen35", "qwen3next",
                          "jamba",       "rwkv6",       "rwkv6qwen2", "rwkv7",  "arwkv7",
                          "kimi-linear", "bailingmoe3", "kimi-k3"};
  constexpr size_t kVocabulary = 64;  // of random_transformer.py
  std::mt19937 random(std::random_device{}());
  std::vector<int32_t> tokens(152);
  // The same token again and again, too: keys of a delta network that are all alike.
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = i >= 40 && i < 60 ? 5 : static_cast<int32_t>(random() % kVocabulary);
  std::string command = fmt::format("{} tests/oracle/architecture_references.py {} {}", kPython,
                                    folder.file(""), fmt::join(tokens, ","));
  for (const char* model : models) command += fmt::format(" '{} --context 256'", model);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (size_t i = 0; i < models.size(); ++i) {
    const auto model = load(folder.file(fmt::format("{}.gguf", i)), "CPU");
    const std::vector<float> want =
        read_floats(folder.file(fmt::format("{}.f32", i)), tokens.size() * kVocabulary);
    LlamaSession session(model, exact());
    for (const auto& [from, to] : {std::pair<size_t, size_t>{0, 149}, {149, 150}, {150, 152}}) {
      ASSERT_TRUE(session.feed(std::span(tokens).subspan(from, to - from))) << models[i];
      EXPECT_LT(
          distance(session.logits(), std::span(want).subspan((to - 1) * kVocabulary, kVocabulary)),
          1e-4)
          << fmt::format("{} after {} of {}", models[i], to, fmt::join(tokens, ","));
    }
  }
}

/// More positions than attention reads: which these are, an indexer says. Prompts, tokens one by
/// one, on two devices, and blocks that go by what another has chosen.
TEST(Llama, IndexersChooseWhatTheReferenceDoes) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  // Many small heads: none of the scores is 0 because all of them are.
  const std::string eight = " --key attention.indexer.head_count=8 --key attention.indexer.top_k=";
  const std::array<std::string, 7> models{
      "deepseek32" + eight + "13",
      "deepseek32 --key attention.indexer.key_length=8" + eight + "1",
      "glm-dsa" + eight + "16",
      "glm-dsa --layers 5 --key attention.indexer.types=1,0,0,1,0" + eight + "9",
      "hy_v4 --tensor indexer --key attention.indexer.key_length=16 --key "
      "attention.indexer.types=1,0,1" +
          eight + "9",
      "minimax-m3 --key attention.indexer.top_k=3 --key attention.indexer.block_size=8",
      "minimax-m3 --key attention.indexer.top_k=4 --key attention.indexer.block_size=5 --key "
      "attention.indexer.local_blocks=2 --key attention.indexer.key_length=16"};
  constexpr size_t kVocabulary = 64;  // of random_transformer.py
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(96);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
  std::string command = fmt::format("{} tests/oracle/architecture_references.py {} {}", kPython,
                                    folder.file(""), fmt::join(tokens, ","));
  for (const std::string& model : models)
    command += fmt::format(" '{} --seed {}'", model, random() % 1000);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::vector<float> want =
        read_floats(folder.file(fmt::format("{}.f32", i)), tokens.size() * kVocabulary);
    for (const char* device : {"CPU", "CPU:1,CPU:2"}) {
      const auto model = load(folder.file(fmt::format("{}.gguf", i)), device);
      LlamaSession session(model, exact());
      size_t far = 0;
      for (size_t at = 0; at < tokens.size();) {
        const size_t count = at == 0 ? 41 : at == 41 ? 20 : 1;
        const Status done = session.feed(std::span(tokens).subspan(at, count));
        ASSERT_TRUE(done) << models[i] << ": " << done.error().message;
        at += count;
        far += distance(session.logits(),
                        std::span(want).subspan((at - 1) * kVocabulary, kVocabulary)) > 1e-4;
      }
      // Of two positions whose scores differ in their last bits either may be read.
      EXPECT_LE(far, 2u) << models[i] << " on " << device << " of seed " << seed;
    }
  }
}

/// Hidden states instead of logits; texts of several lengths by one encoder.
TEST(Llama, EveryEncoderEqualsTheReference) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  std::vector<std::string> options;
  for (const Architecture& row : architectures())
    if (row.has(kNoLogits)) options.push_back(row.name);
  for (const char* more :
       {"jina-bert-v2 --tensor attn_norm_2 --tensor wholeqknorm", "jina-bert-v2 --tensor fusedup",
        "jina-bert-v2 --tensor plainup", "bert --layers 1", "bert --tensor distances",
        "deberta-v2 --key attention.relative_limit=0 --key attention.relative_parts=c2p",
        "nomic-bert-moe --tensor sumbias", "qwen3 --key attention.causal=false",
        "modern-bert --key hidden_activation=silu", "t5encoder --tensor plainup --tensor biases",
        "t5encoder --key attention.relative_buckets_count=32"})
    options.emplace_back(more);
  constexpr size_t kWidth = 96;  // of random_transformer.py
  const std::vector<int32_t> tokens = sample_tokens(64);
  std::string command = fmt::format("{} tests/oracle/architecture_references.py {} {}", kPython,
                                    folder.file(""), fmt::join(tokens, ","));
  for (const std::string& option : options) command += fmt::format(" '{}'", option);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string path = folder.file(fmt::format("{}.gguf", i));
    // Gemma's second makes something else of its hidden states.
    const size_t width = options[i] == "gemma-embedding2" ? 40 : kWidth;
    const auto want = read_floats(folder.file(fmt::format("{}.f32", i)), tokens.size() * width);
    for (const char* device : {"CPU", "CPU:1,CPU:2"}) {
      // One block cannot be divided.
      if (options[i].ends_with("--layers 1") && device != std::string_view("CPU")) continue;
      const std::string what = fmt::format("{} on {}", options[i], device);
      const auto model = load(path, device);
      auto encoder = LlamaEncoder::create(model);
      ASSERT_TRUE(encoder) << what;
      ASSERT_TRUE((*encoder)->encode(std::span(tokens).first(5)));
      // Tokens behind change what those before become: nothing here is causal.
      EXPECT_GT(distance((*encoder)->hidden(), std::span(want).first(5 * width)), 1e-3);
      const Status done = (*encoder)->encode(tokens);
      ASSERT_TRUE(done) << what << ": " << done.error().message;
      EXPECT_LT(distance((*encoder)->hidden(), want), 1e-4) << what;
      LlamaSession session(model);
      EXPECT_FALSE(session.feed(tokens)) << what;
    }
    const auto stage =
        Llama::load(open(path), {.device = "CPU", .stages = 2, .context = 0, .progress = {}});
    ASSERT_FALSE(stage) << options[i];
    EXPECT_EQ(stage.error().code, Code::kUnsupported);
    EXPECT_NE(stage.error().message.find("this model makes embeddings"), std::string::npos);
  }
}

TEST(Llama, BothRenderersAndTheReferenceDeviceAgree) {
  const std::vector<int32_t> tokens = prompt_tokens(kModel, 3);
  std::vector<float> first;
  for (const char* device : {"REF", "CPU", "CPU:CLANG"}) {
    LlamaSession session(load(kModel, device, 16), exact());
    const auto status = session.feed(tokens);
    if (!status && status.error().code == Code::kNotFound) continue;  // no clang on this machine
    ASSERT_TRUE(status) << status.error().message;
    if (first.empty()) first.assign(session.logits().begin(), session.logits().end());
    EXPECT_LT(distance(session.logits(), first), 1e-4) << device;
  }
}

TEST(Llama, AResetSessionRepeatsItself) {
  const std::vector<int32_t> tokens = prompt_tokens(kModel, 10);
  LlamaSession session(load(kModel, "CPU", 64));
  ASSERT_TRUE(session.feed(tokens));
  const std::vector<float> first(session.logits().begin(), session.logits().end());
  session.reset();
  EXPECT_EQ(session.position(), 0u);
  ASSERT_TRUE(session.feed(tokens));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), session.logits().begin()));
}

TEST(Llama, TwoSessionsOfOneModelDoNotDisturbEachOther) {
  const std::vector<int32_t> tokens = prompt_tokens(kModel, 12);
  const auto model = load(kModel, "CPU", 64);
  LlamaSession alone(model, exact()), a(model, exact()), b(model, exact());
  ASSERT_TRUE(alone.feed(tokens));
  for (int32_t t : tokens) {
    ASSERT_TRUE(a.feed({&t, 1}));
    const int32_t other = (t + 7) % 250 + 3;
    ASSERT_TRUE(b.feed({&other, 1}));
  }
  EXPECT_LT(distance(a.logits(), alone.logits()), 1e-5);
}

TEST(Llama, TheContextFillsToItsLastPosition) {
  const auto model = load(kModel, "CPU", 20);
  const std::vector<int32_t> tokens = prompt_tokens(kModel, 20);
  LlamaSession session(model);
  ASSERT_TRUE(session.feed(std::span(tokens).first(15)));
  EXPECT_EQ(session.room(), 5u);
  ASSERT_TRUE(session.feed(std::span(tokens).subspan(15, 5)));
  EXPECT_EQ(session.room(), 0u);
  const auto status = session.feed(std::span(tokens).first(1));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
}

TEST(Llama, TokensOutsideTheVocabularyAreRefused) {
  LlamaSession session(load(kModel, "CPU", 16));
  for (int32_t bad : {-1, 288, INT32_MAX}) EXPECT_FALSE(session.feed({&bad, 1}));
  EXPECT_FALSE(session.feed({}));
  EXPECT_EQ(session.position(), 0u);
}

TEST(Llama, AContextBeyondTheModelsIsRefused) {
  const auto model =
      Llama::load(open(kModel), {.device = "CPU", .context = 100'000, .progress = {}});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, Code::kInvalidArgument);
}

/// Bytes that the allocator of a device has given out.
uint64_t live_bytes(const std::string& device) {
  return (*runtime::open_device(device))->allocator().stats().used;
}

TEST(Llama, DividedAmongDevicesItGivesTheSameLogits) {
  const auto whole = load(kModel, "CPU"), divided = load(kModel, "CPU:1,CPU:2,CPU:3");
  ASSERT_EQ(divided->device_count(), 3u);
  const KvCache cache = divided->make_cache(8, DType::kF16);
  std::array<size_t, 3> blocks{};
  for (size_t i = 0; i < divided->config().block_count; ++i) {
    const size_t at = divided->device_of(i);
    EXPECT_TRUE(i == 0 || at >= divided->device_of(i - 1));
    EXPECT_EQ(cache.keys[i].device().name(), fmt::format("CPU:{}", at + 1));
    ++blocks[at];
  }
  for (const size_t count : blocks) EXPECT_GT(count, 0u);
  // The first has the table of embeddings besides its blocks, the last the output's matrix.
  for (const char* device : {"CPU:1", "CPU:2", "CPU:3"}) EXPECT_GT(live_bytes(device), 0u);
  LlamaSession one(whole, exact()), three(divided, exact());
  const auto tokens = prompt_tokens(kModel, 12);
  for (const auto part : {std::span(tokens).first(9), std::span(tokens).subspan(9, 1),
                          std::span(tokens).subspan(10)}) {
    ASSERT_TRUE(one.feed(part));
    const Status fed = three.feed(part);
    ASSERT_TRUE(fed) << fed.error().message;
    EXPECT_LT(distance(three.logits(), one.logits()), 1e-5);
  }
}

std::shared_ptr<const Llama> load_stage(uint32_t stage, uint32_t stages,
                                        const std::string& path = kModel) {
  auto model = Llama::load(
      open(path),
      {.device = "CPU", .stage = stage, .stages = stages, .context = 0, .progress = {}});
  if (!model) throw std::runtime_error(model.error().message);
  return *model;
}

/// The first of two stages, which hands on to `last`.
LlamaSession first_of_two(const std::string& path, LlamaSession& last) {
  return LlamaSession(load_stage(0, 2, path),
                      {.cache_type = DType::kF32,
                       .next = [&last](const StagePiece& piece, std::span<const float> hidden,
                                       std::span<float> logits) -> Status {
                         BM_TRY(last.feed_hidden(piece, hidden));
                         if (piece.is_last) std::ranges::copy(last.logits(), logits.begin());
                         return {};
                       }});
}

TEST(Llama, StagesGiveTheLogitsOfTheWholeModel) {
  LlamaSession whole(load(kModel, "CPU"), exact()), last(load_stage(1, 2), exact());
  LlamaSession first = first_of_two(kModel, last);
  auto tokens = prompt_tokens(kModel, 60);
  // More than one piece.
  while (tokens.size() < LlamaSession::max_piece() + 40)
    tokens.insert(tokens.end(), tokens.begin() + 1, tokens.begin() + 20);
  const size_t prompt = tokens.size() - 3;
  for (size_t at = 0, n = prompt; at < tokens.size(); at += n, n = 1) {
    ASSERT_TRUE(whole.feed(std::span(tokens).subspan(at, n)));
    const Status fed = first.feed(std::span(tokens).subspan(at, n));
    ASSERT_TRUE(fed) << fed.error().message;
    // What was one kernel over the border of two blocks is two: sums are ordered otherwise.
    EXPECT_LT(distance(first.logits(), whole.logits()), 1e-5) << "after token " << at + n;
  }
  // What a stage is sent is checked.
  const std::vector<float> hidden(last.max_piece() + 1);
  EXPECT_EQ(last.feed_hidden({.position = 0, .count = 1, .is_last = true}, hidden).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(
      last.feed_hidden({.position = 1 << 30, .count = 1, .is_last = true}, hidden).error().code,
      Code::kInvalidArgument);
}

/// What the first block makes of a token goes along to the stages that read it.
TEST(Llama, StagesOfRwkvHaveTheValuesOfTheFirstBlock) {
  const test::TempFolder folder;
  const std::string path = folder.file("rwkv7.gguf");
  const std::string command =
      fmt::format("{} tests/oracle/random_transformer.py {} --arch rwkv7 --seed {}", kPython, path,
                  std::random_device{}());
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << kPython << " with numpy is not installed";
  LlamaSession whole(load(path, "CPU"), exact()), last(load_stage(1, 2, path), exact());
  LlamaSession first = first_of_two(path, last);
  const std::vector<int32_t> tokens = sample_tokens(64);
  for (const auto part : {std::span(tokens).first(5), std::span(tokens).subspan(5, 1)}) {
    ASSERT_TRUE(whole.feed(part));
    const Status fed = first.feed(part);
    ASSERT_TRUE(fed) << fed.error().message;
    EXPECT_LT(distance(first.logits(), whole.logits()), 1e-5);
  }
}

TEST(Llama, DevicesThatCannotDivideTheModelAreRefused) {
  const auto refused = [](const std::string& device, bool keep_weights = false) {
    auto model =
        Llama::load(open(kModel),
                    {.device = device, .context = 0, .progress = {}, .keep_weights = keep_weights});
    return model ? std::string("loaded") : model.error().message;
  };
  EXPECT_EQ(refused("CPU:1,CPU:1"), "\"CPU:1,CPU:1\" names CPU:1 twice");
  EXPECT_EQ(refused("CPU:1;"), "\"CPU:1;\" has an empty name of a device");
  EXPECT_EQ(refused("CPU:1,CPU:2", true),
            "weights are kept on one device; \"CPU:1,CPU:2\" names 2 (--keep-weights)");
  std::string many = "CPU:1";
  for (int i = 2; i <= 100; ++i) many += fmt::format(",CPU:{}", i);
  EXPECT_NE(refused(many).find("names 100 devices; the model has "), std::string::npos);
}

}  // namespace
}  // namespace bm::models
