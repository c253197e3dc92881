// Batches over paged keys and values against the single-sequence path, and against themselves in
// other company.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "models/llama_batch.h"
#include "models/llama_session.h"
#include "models/quant.h"
#include "runtime/allocator.h"
#include "runtime/base/env.h"
#include "runtime/device.h"

namespace bm::models {
namespace {

constexpr uint32_t kPage = LlamaBatch::kPageLength;

/// BM_BATCH_MODEL: another file, of at least 253 tokens and 512 positions.
const char* model_path() {
  const char* const other = std::getenv("BM_BATCH_MODEL");
  return other != nullptr ? other : "models/bundled/licence.gguf";
}

std::shared_ptr<const Llama> load_on(const std::string& device) {
  auto file = GgufFile::open(model_path());
  if (!file) throw std::runtime_error(file.error().message);
  auto loaded = Llama::load(std::make_shared<const GgufFile>(std::move(*file)),
                            {.device = device,
                             .context = 512,
                             .progress = {},
                             .packs_float32 = true});  // as servers load it
  if (!loaded) throw std::runtime_error(loaded.error().message);
  return *loaded;
}

std::shared_ptr<const Llama> bundled() {
  static const std::shared_ptr<const Llama> model = load_on("CPU");
  return model;
}

std::unique_ptr<LlamaBatch> make(uint32_t sequences, DType type = DType::kF16,
                                 std::shared_ptr<const Llama> model = bundled(),
                                 uint32_t piece = kPage) {
  auto batch = LlamaBatch::create(
      std::move(model),
      {.sequences = sequences, .cache_bytes = 0, .cache_type = type, .piece = piece});
  if (!batch) throw std::runtime_error(batch.error().message);
  return std::move(*batch);
}

/// A sequence with pages of its own; tokens come from a fixed list, not from the model.
struct Feed {
  std::vector<int32_t> tokens;
  size_t prompt = 0;
  uint32_t position = 0;
  std::vector<uint32_t> pages;
  uint32_t piece = kPage;
  std::vector<std::vector<float>> logits;  ///< after the prompt, and after every token from then on

  bool is_prompt() const { return position < prompt; }
  bool is_done() const { return position == tokens.size(); }
  BatchItem next(uint32_t state = 0) const {
    const size_t n =
        is_prompt() ? std::min<size_t>(prompt - position, piece - position % piece) : 1;
    return {std::span(tokens).subspan(position, n), position, pages, is_prompt(), state};
  }
  /// Of models whose states go from token to token.
  BatchItem next_token(uint32_t state) const {
    return {std::span(tokens).subspan(position, 1), position, pages, false, state};
  }
};

Feed random_feed(std::mt19937& random, size_t prompt, size_t more, uint32_t first_page) {
  Feed feed;
  feed.prompt = prompt;
  for (size_t i = 0; i < prompt + more; ++i)
    feed.tokens.push_back(static_cast<int32_t>(random() % 250 + 3));
  for (uint32_t i = 0; i * kPage < prompt + more; ++i) feed.pages.push_back(first_page + i);
  std::shuffle(feed.pages.begin(), feed.pages.end(), random);
  return feed;
}

/// Everybody takes part in every step; of prompts the first one.
void run_together(LlamaBatch& batch, std::vector<Feed*> feeds) {
  for (;;) {
    std::vector<BatchItem> items;
    std::vector<Feed*> owners;
    Feed* prompt = nullptr;
    uint32_t place = 0;  // of the prompt's state
    for (uint32_t i = 0; i < feeds.size(); ++i) {
      Feed* const f = feeds[i];
      if (f->is_done()) continue;
      if (!batch.takes_pieces()) {
        items.push_back(f->next_token(i));
        owners.push_back(f);
        continue;
      }
      if (f->is_prompt()) {
        if (!prompt) prompt = f, place = i;
        continue;
      }
      items.push_back(f->next(i));
      owners.push_back(f);
    }
    if (prompt) {
      items.push_back(prompt->next(place));
      owners.push_back(prompt);
    }
    if (items.empty()) return;
    const Status status = batch.run(items);
    ASSERT_TRUE(status) << status.error().message;
    for (size_t i = 0; i < items.size(); ++i) {
      owners[i]->position += static_cast<uint32_t>(items[i].tokens.size());
      if (owners[i]->is_prompt()) continue;
      const auto row = batch.logits(i);
      owners[i]->logits.emplace_back(row.begin(), row.end());
    }
  }
}

TEST(LlamaBatch, TokensThatFollowEachOtherInAStepEqualStepsOfOne) {
  // Beyond the step from which on those of one token have kernels of their own.
  constexpr size_t kMore = 69;
  std::mt19937 random(8);
  const auto batch = make(6);
  Feed feed = random_feed(random, 1, kMore, 1);
  std::vector<std::vector<float>> expected;
  for (; !feed.is_done(); ++feed.position) {
    const BatchItem item = feed.next_token(1);
    ASSERT_TRUE(batch->run({&item, 1}));
    const auto row = batch->logits(0);
    expected.emplace_back(row.begin(), row.end());
  }
  // Other pages and another place; the last of a sequence between them has nothing to do with it.
  Feed again = random_feed(random, 1, kMore, 1 + static_cast<uint32_t>(feed.pages.size()));
  Feed other = random_feed(random, 1, kMore, 1 + 2 * static_cast<uint32_t>(feed.pages.size()));
  again.tokens = feed.tokens;
  while (!again.is_done()) {
    std::vector<BatchItem> items{again.next_token(2), other.next_token(0)};
    ++again.position, ++other.position;
    for (size_t i = 0; i < 4 && !again.is_done(); ++i, ++again.position)
      items.push_back(again.next_token(2));
    const Status status = batch->run(items);
    ASSERT_TRUE(status) << status.error().message;
    size_t at = again.position - (items.size() - 1);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i == 1) continue;
      const auto row = batch->logits(i);
      ASSERT_TRUE(std::ranges::equal(row, expected[at])) << "after token " << at;
      ++at;
    }
  }
}

TEST(LlamaBatch, EqualsTheSingleSequencePath) {
  std::mt19937 random(1);
  const auto batch = make(2, DType::kF32);
  Feed feed = random_feed(random, 75, 10, 1);
  run_together(*batch, {&feed});
  ASSERT_EQ(feed.logits.size(), 11u);
  LlamaSession session(bundled(), {.cache_type = DType::kF32});
  ASSERT_TRUE(session.feed(std::span(feed.tokens).first(75)));
  double worst_of_all = 0;
  for (size_t i = 0;; ++i) {
    double worst = 0, scale = 0;
    for (size_t k = 0; k < feed.logits[i].size(); ++k) {
      const auto expected = static_cast<double>(session.logits()[k]);
      worst = std::max(worst, std::abs(static_cast<double>(feed.logits[i][k]) - expected));
      scale = std::max(scale, std::abs(expected));
    }
    worst_of_all = std::max(worst_of_all, worst / scale);
    // What a state has summed up in another order is carried on.
    EXPECT_LT(worst, (batch->has_states() ? 1e-4 : 1e-5) * scale) << "after token " << 75 + i;
    if (i + 1 == feed.logits.size()) break;
    ASSERT_TRUE(session.feed(std::span(feed.tokens).subspan(75 + i, 1)));
  }
  RecordProperty("worst_of_largest", fmt::format("{:.2e}", worst_of_all));
}

/// Largest difference relative to the largest expected logit.
double worst_difference(std::span<const float> got, std::span<const float> expected) {
  double worst = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto e = static_cast<double>(expected[i]);
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - e));
    scale = std::max(scale, std::abs(e));
  }
  return worst / scale;
}

TEST(LlamaBatch, DividedAmongDevicesItGivesTheSameLogits) {
  const auto model = load_on("CPU:1,CPU:2");
  ASSERT_EQ(model->device_count(), 2u);
  std::random_device seed;
  std::mt19937 random(seed());
  std::vector<Feed> whole{random_feed(random, 70, 8, 1), random_feed(random, 5, 12, 3)};
  std::vector<Feed> divided = whole, alone = whole;
  const auto one = make(2, DType::kF32), two = make(2, DType::kF32, model);
  run_together(*one, {&whole[0], &whole[1]});
  run_together(*two, {&divided[0], &divided[1]});
  for (Feed& feed : alone) run_together(*two, {&feed});
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i].logits.size(), divided[i].logits.size());
    ASSERT_EQ(alone[i].logits.size(), divided[i].logits.size());
    for (size_t k = 0; k < whole[i].logits.size(); ++k) {
      // What was one kernel over the border of two blocks is two: sums are ordered otherwise.
      EXPECT_LT(worst_difference(divided[i].logits[k], whole[i].logits[k]),
                one->has_states() ? 1e-4 : 1e-5)
          << "sequence " << i << ", after token " << whole[i].prompt + k;
      EXPECT_EQ(std::memcmp(alone[i].logits[k].data(), divided[i].logits[k].data(),
                            alone[i].logits[k].size() * sizeof(float)),
                0)
          << "sequence " << i << " in company, after token " << whole[i].prompt + k;
    }
  }
}

TEST(LlamaBatch, PromptsMayComeInShorterPieces) {
  std::random_device seed;
  std::mt19937 random(seed());
  // The last piece ends where the last page does.
  Feed whole = random_feed(random, 2 * kPage - 3, 6, 1), pieces = whole, company = whole;
  const auto one = make(2, DType::kF32), two = make(2, DType::kF32, bundled(), 16);
  pieces.piece = company.piece = 16;
  Feed other = random_feed(random, 3, 40, 4);
  other.piece = 16;
  run_together(*one, {&whole});
  run_together(*two, {&pieces});
  run_together(*two, {&company, &other});
  ASSERT_EQ(company.logits.size(), pieces.logits.size());
  for (size_t k = 0; k < pieces.logits.size(); ++k) {
    EXPECT_TRUE(company.logits[k] == pieces.logits[k])
        << "in company, after token " << whole.prompt + k;
  }
  ASSERT_EQ(whole.logits.size(), pieces.logits.size());
  for (size_t k = 0; k < whole.logits.size(); ++k)
    EXPECT_LT(worst_difference(pieces.logits[k], whole.logits[k]), one->has_states() ? 1e-4 : 1e-5)
        << "after token " << whole.prompt + k;
  EXPECT_FALSE(LlamaBatch::create(bundled(), {.piece = 24}));
  if (!two->takes_pieces()) return;
  Feed wrong = random_feed(random, 32, 0, 1);
  const BatchItem long_one = wrong.next();
  EXPECT_FALSE(two->run({&long_one, 1}));
}

TEST(LlamaBatch, ASequenceGetsTheSameBitsInWhateverCompany) {
  std::random_device seed;
  std::mt19937 random(seed());
  std::vector<Feed> alone;
  const auto batch = make(5);
  uint32_t page = 1;
  for (const size_t prompt : {1u, 64u, 30u, 100u, 67u}) {
    alone.push_back(random_feed(random, prompt, 6 + random() % 20, page));
    page += static_cast<uint32_t>(alone.back().pages.size());
  }
  std::vector<Feed> together = alone;
  for (Feed& feed : alone) run_together(*batch, {&feed});
  run_together(*batch, {&together[3], &together[0], &together[4], &together[1], &together[2]});
  for (size_t i = 0; i < alone.size(); ++i) {
    ASSERT_EQ(alone[i].logits.size(), together[i].logits.size());
    for (size_t k = 0; k < alone[i].logits.size(); ++k)
      ASSERT_EQ(std::memcmp(alone[i].logits[k].data(), together[i].logits[k].data(),
                            alone[i].logits[k].size() * sizeof(float)),
                0)
          << "sequence " << i << ", token " << k;
  }
}

TEST(LlamaBatch, PreparingChangesNoPageAndNoBit) {
  std::mt19937 random(std::random_device{}());
  std::vector<Feed> plain = {random_feed(random, 70, 6, 1), random_feed(random, 3, 12, 3),
                             random_feed(random, 20, 9, 4)};
  std::vector<Feed> prepared = plain;
  const auto never = make(3), between = make(3);
  ASSERT_FALSE(between->is_prepared());
  for (const size_t more : {4u, 0u}) {  // of every sequence so many tokens are left for later
    std::vector<Feed*> here, there;
    std::vector<std::vector<int32_t>> all;
    for (size_t i = 0; i < plain.size(); ++i) {
      all.push_back(plain[i].tokens);
      for (Feed* f : {&plain[i], &prepared[i]}) f->tokens.resize(f->tokens.size() - more);
      here.push_back(&plain[i]), there.push_back(&prepared[i]);
    }
    run_together(*never, here);
    run_together(*between, there);
    for (size_t i = 0; i < plain.size(); ++i) plain[i].tokens = prepared[i].tokens = all[i];
    for (int n = 0; !between->is_prepared(); ++n) {
      ASSERT_LT(n, 100) << "no end";
      ASSERT_TRUE(between->prepare());
    }
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].logits.size(), plain[i].tokens.size() - plain[i].prompt + 1);
    EXPECT_EQ(plain[i].logits, prepared[i].logits) << "sequence " << i;
  }
}

TEST(LlamaBatch, HiddenStatesAreWhatLogitsAreMadeOf) {
  std::mt19937 random(5);
  const auto batch = make(2);
  Feed feed = random_feed(random, 40, 0, 1), same = feed;
  run_together(*batch, {&feed});
  const std::vector<float> logits = feed.logits.at(0);
  const size_t length = bundled()->config().embedding_length;
  if (!batch->takes_pieces()) {
    for (; !same.is_done(); ++same.position) ASSERT_TRUE(batch->embed(same.next_token(1)));
    ASSERT_EQ(batch->hidden().size(), length);
  } else {
    ASSERT_TRUE(batch->embed(same.next()));
    ASSERT_EQ(batch->hidden().size(), 40 * length);
    EXPECT_FALSE(batch->embed({same.next().tokens.first(1), 0, same.pages, false}));
  }
  const std::span<const float> last = batch->hidden().last(length);
  auto opened = GgufFile::open(model_path());
  ASSERT_TRUE(opened);
  const GgufTensor* output = opened->find_tensor("output.weight");
  if (!output) output = opened->find_tensor("token_embd.weight");
  ASSERT_TRUE(output);
  std::vector<float> weights(output->value_count);
  ASSERT_TRUE(dequantize_row(output->type, output->data, weights));
  for (size_t t = 0; t < logits.size(); ++t) {
    double sum = 0;
    for (size_t i = 0; i < length; ++i)
      sum += static_cast<double>(weights[t * length + i]) * static_cast<double>(last[i]);
    sum *= static_cast<double>(bundled()->config().logit_scale);
    const double cap = static_cast<double>(bundled()->config().logit_softcap);
    if (cap > 0) sum = cap * std::tanh(sum / cap);
    EXPECT_NEAR(sum, static_cast<double>(logits[t]), 0.05) << t;
  }
}

TEST(LlamaBatch, ACacheThatDoesNotFitSaysWhatWould) {
  const auto used = [] { return unwrap(runtime::open_device("CPU"))->allocator().stats().used; };
  const uint64_t page = make(1)->page_bytes();  // which loads the model
  if (page == 0) GTEST_SKIP() << "a model without keys and values";
  const uint64_t before = used();
  auto whole = make(8);
  const uint64_t needed = used() - before;
  whole.reset();
  const auto create = [&](uint32_t sequences, uint64_t more) {
    const ScopedSetting cap("BM_MEMORY_CAP", std::to_string(used() + more));
    return LlamaBatch::create(bundled(), {.sequences = sequences});
  };
  constexpr uint32_t kMissing = 60;  // of 64 pages
  const auto refused = create(8, needed - kMissing * page);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kOutOfMemory);
  const std::string& message = refused.error().message;
  for (const char* part : {"8 sequences of 512 positions", " on CPU (", "which has",
                           "positions fit", "--ctx", "--sequences", "--cache-memory"})
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  const size_t at = message.find(" positions fit");
  const size_t from = message.rfind(' ', at - 1) + 1;
  const uint64_t fit = std::stoull(message.substr(from, at - from));
  EXPECT_GT(fit, 0u);
  EXPECT_LT(fit, 64 * kPage);
  EXPECT_TRUE(create(1, needed));
}

TEST(LlamaBatch, TheDefaultDeviceNeedsNoName) {
  const auto batch = LlamaBatch::create(load_on(""), {.sequences = 1});
  EXPECT_TRUE(batch) << batch.error().message;
}

TEST(LlamaBatch, RefusesStepsThatDoNotFit) {
  const auto batch = make(1);
  const std::vector<int32_t> tokens(65, 5), bad{-1};
  const std::vector<uint32_t> pages{1, 2}, none, wild{batch->page_count() + 1};
  EXPECT_FALSE(batch->run({}));
  const auto refused = [&](const BatchItem& item) { return !batch->run({&item, 1}); };
  EXPECT_TRUE(refused({tokens, 0, pages, true}));                         // beyond a page
  EXPECT_TRUE(refused({std::span(tokens).first(2), 63, pages, true}));    // across pages
  EXPECT_TRUE(refused({std::span(tokens).first(2), 10, pages, true}));    // amid a page
  EXPECT_TRUE(refused({std::span(tokens).first(2), 0, pages, false}));    // not one token
  EXPECT_TRUE(refused({std::span(tokens).first(1), 0, none, false}));     // no page
  EXPECT_TRUE(refused({std::span(tokens).first(1), 0, wild, false}));     // no such page
  EXPECT_TRUE(refused({std::span(tokens).first(1), 512, pages, false}));  // beyond the context
  EXPECT_TRUE(refused({bad, 0, pages, false}));                           // no such token
  EXPECT_FALSE(refused({std::span(tokens).first(1), 0, pages, false}));
  EXPECT_EQ(refused({std::span(tokens).first(1), 0, pages, true}), !batch->takes_pieces());
  // No such place.
  EXPECT_EQ(refused({std::span(tokens).first(1), 0, pages, false, 1}), batch->has_states());
  EXPECT_FALSE(LlamaBatch::create(bundled(), {.sequences = 0}));
  // Mamba has no keys and values that could be too many.
  EXPECT_EQ(bool(LlamaBatch::create(bundled(), {.sequences = 1, .cache_bytes = 4096})),
            batch->page_bytes() == 0);
}

}  // namespace
}  // namespace bm::models
