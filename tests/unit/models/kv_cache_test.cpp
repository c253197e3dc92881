// KV caches of sessions: their types, how they grow, and long texts beside NumPy in float64.
#include "models/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "models/gguf.h"
#include "models/llama_session.h"
#include "runtime/allocator.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

constexpr const char* kNumPy = "/usr/bin/python3";
constexpr uint32_t kLongContext = 40'000, kWords = 61;

/// A small model with a context of 40,000 positions.
std::string write_model(const test::TempFolder& folder, const char* options = "") {
  const std::string path = folder.file("long.gguf");
  const std::string command = fmt::format("{} tests/oracle/random_llama.py {} --context {} {}",
                                          kNumPy, path, kLongContext, options);
  if (std::system(command.c_str()) != 0) return "";
  return path;
}

std::shared_ptr<const Llama> load_long(const std::string& path, const char* device = "CPU",
                                       uint32_t context = kLongContext) {
  auto file = GgufFile::open(path);
  if (!file) throw std::runtime_error(file.error().message);
  auto model = Llama::load(std::make_shared<const GgufFile>(std::move(*file)),
                           {.device = device, .context = context, .progress = {}});
  if (!model) throw std::runtime_error(model.error().message);
  return *model;
}

/// The rule of long_context_reference.py.
std::vector<int32_t> long_text(size_t count) {
  std::vector<int32_t> out(count);
  for (uint64_t i = 0; i < count; ++i)
    out[i] = static_cast<int32_t>((31 * i * i + 17 * i + 5) % kWords);
  return out;
}

double difference(std::span<const float> got, std::span<const double> expected) {
  double worst = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
    scale = std::max(scale, std::abs(expected[i]));
  }
  return worst / scale;
}

struct CacheBound {
  DType type;
  double most;
};
/// Of logits, relative to the largest: halves have 11 bits, blocks of int8 seven.
constexpr CacheBound kBounds[] = {{DType::kF32, 2e-5}, {DType::kF16, 2e-3}, {DType::kI8, 3e-2}};

/// All but three tokens as a prompt, then one by one.
void compare_long_text(size_t count, std::span<const CacheBound> bounds) {
  const test::TempFolder folder;
  const std::string path = write_model(folder,
                                       "--layers 2 --dim 48 --heads 4 --kv-heads 2 "
                                       "--head-dim 16 --ffn 32");
  if (path.empty()) GTEST_SKIP() << kNumPy << " has no numpy";
  constexpr size_t kLast = 3;
  const std::string out = folder.file("logits.f64");
  const std::string command =
      fmt::format("{} tests/oracle/long_context_reference.py {} --count {} --last {} --out {}",
                  kNumPy, path, count, kLast, out);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::vector<double> want(kLast * kWords);
  std::ifstream(out, std::ios::binary)
      .read(reinterpret_cast<char*>(want.data()),
            static_cast<std::streamsize>(want.size() * sizeof(double)));
  const auto model = load_long(path);
  const std::vector<int32_t> tokens = long_text(count);
  for (const auto& [type, most] : bounds) {
    LlamaSession session(model, {.cache_type = type});
    for (size_t i = 0; i < kLast; ++i) {
      const size_t begin = i == 0 ? 0 : count - kLast + i, end = count - kLast + i + 1;
      const Status fed = session.feed(std::span(tokens).subspan(begin, end - begin));
      ASSERT_TRUE(fed) << fed.error().message;
      EXPECT_LT(difference(session.logits(), std::span(want).subspan(i * kWords, kWords)), most)
          << static_cast<int>(type) << " after " << end;
    }
  }
}

TEST(KvCache, APromptOf8192TokensEqualsTheReference) { compare_long_text(8192, kBounds); }
TEST(KvCache, APromptOf32768TokensEqualsTheReference) {
  compare_long_text(32'768, std::span(kBounds).subspan(1, 1));
}

/// A cache that has grown several times has the numbers of one that had room from the start.
TEST(KvCache, GrowingChangesNoLogit) {
  const test::TempFolder folder;
  const std::string path = write_model(folder);
  if (path.empty()) GTEST_SKIP() << kNumPy << " has no numpy";
  const auto model = load_long(path);
  const std::vector<int32_t> tokens = long_text(2300);
  for (const auto& [type, most] : kBounds) {
    LlamaSession grown(model, {.cache_type = type}), roomy(model, {.cache_type = type});
    EXPECT_EQ(grown.capacity(), KvCache::kFirstCapacity);
    ASSERT_TRUE(roomy.reserve(4000));
    EXPECT_GE(roomy.capacity(), 4000u);
    // Over a border in a prompt, and over one while writing.
    size_t at = 0;
    for (const size_t count : {size_t{1000}, size_t{1020}, size_t{1030}, size_t{2040}}) {
      for (LlamaSession* s : {&grown, &roomy})
        ASSERT_TRUE(s->feed(std::span(tokens).subspan(at, count - at)));
      at = count;
    }
    for (; at < 2060; ++at)
      for (LlamaSession* s : {&grown, &roomy})
        ASSERT_TRUE(s->feed(std::span(tokens).subspan(at, 1)));
    EXPECT_GT(grown.capacity(), 2060u);
    EXPECT_LT(grown.capacity(), roomy.capacity() + 200u);
    const std::vector<double> expected(roomy.logits().begin(), roomy.logits().end());
    EXPECT_LT(difference(grown.logits(), expected), 1e-5);
    grown.reset();
    EXPECT_EQ(grown.position(), 0u);
    EXPECT_GT(grown.capacity(), 2060u);
  }
}

/// What is held follows what was fed, not what might be.
TEST(KvCache, MemoryFollowsUse) {
  const test::TempFolder folder;
  const std::string path = write_model(folder);
  if (path.empty()) GTEST_SKIP() << kNumPy << " has no numpy";
  const auto model = load_long(path, "CPU:7");
  const auto used = [] { return (*runtime::open_device("CPU:7"))->allocator().stats().used; };
  const std::vector<int32_t> tokens = long_text(3000);
  const uint64_t per_position = model->cache_bytes(0, DType::kF16);
  EXPECT_EQ(per_position, 2u * 2 * 2 * 8 * 2);  // blocks, keys and values, heads, length, bytes
  EXPECT_EQ(model->cache_bytes(0, DType::kI8), 2u * 2 * 2 * (8 + 2));
  const uint64_t before = used();
  LlamaSession session(model);
  const uint64_t empty = used() - before;
  EXPECT_LT(empty, kLongContext * per_position / 4);
  ASSERT_TRUE(session.feed(tokens));
  EXPECT_GT(used() - before, 3000 * per_position);
  EXPECT_LT(used() - before, kLongContext * per_position);
}

/// The last position of a context is used, whatever the pieces of the prompt are.
TEST(KvCache, AContextEndsWhereItSays) {
  const test::TempFolder folder;
  const std::string path = write_model(folder);
  if (path.empty()) GTEST_SKIP() << kNumPy << " has no numpy";
  const auto model = load_long(path, "CPU", 1500);
  const std::vector<int32_t> tokens = long_text(1501);
  LlamaSession session(model);
  const Status over = session.feed(tokens);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, Code::kInvalidArgument);
  ASSERT_TRUE(session.feed(std::span(tokens).first(1500)));
  EXPECT_EQ(session.room(), 0u);
  EXPECT_EQ(session.capacity(), 1500u);
  EXPECT_FALSE(session.feed(std::span(tokens).first(1)));
  EXPECT_FALSE(session.reserve(1501));
}

TEST(LlamaMemory, WhatIsCountedIsWhatASessionTakes) {
  auto opened = GgufFile::open("models/bundled/licence.gguf");
  ASSERT_TRUE(opened);
  const auto file = std::make_shared<const GgufFile>(std::move(*opened));
  const Llama::LoadOptions options{.device = "CPU:6", .context = 0, .progress = {}};
  const auto needs = Llama::memory_need(file, options, DType::kF16);
  ASSERT_TRUE(needs) << needs.error().message;
  ASSERT_EQ(needs->size(), 1u);
  const Llama::MemoryNeed& need = (*needs)[0];
  EXPECT_EQ(need.context, 512u);
  const auto used = [] {
    return static_cast<double>((*runtime::open_device("CPU:6"))->allocator().stats().used);
  };
  const double before = used();
  const auto model = Llama::load(file, options);
  ASSERT_TRUE(model);
  const double loaded = used() - before, weights = static_cast<double>(need.weights);
  EXPECT_GT(loaded, 0.9 * weights);
  EXPECT_LT(loaded, 1.05 * weights);
  LlamaSession session(*model);
  ASSERT_TRUE(session.feed(std::vector<int32_t>(200, 40)));
  ASSERT_TRUE(session.feed(std::vector<int32_t>(1, 40)));
  // There is room for one piece of a prompt behind the context, a quarter of this one.
  const double taken = used() - before - loaded,
               counted = static_cast<double>(need.context * need.per_position + need.scratch);
  EXPECT_GT(taken, 0.7 * counted);
  EXPECT_LT(taken, 1.5 * counted);
}

TEST(KvRows, Int8BlocksAreOffByHalfAStep) {
  KvRows rows(8, 3, 48, DType::kI8, "CPU");
  test::Random random(3);
  std::vector<float> numbers(2 * 3 * 48);
  for (float& x : numbers) x = static_cast<float>(random.below(2001)) / 500.0F - 2;
  std::fill_n(numbers.begin(), 16, 0.0F);  // a block of nothing
  rows.store(4, 2, Tensor::from(numbers, {2, 3, 48}, "CPU"));
  rows.store(0, 4, Tensor::zeros({4, 3, 48}, DType::kF32, "CPU"));
  Tensor all = rows.load(6).contiguous().realize();
  std::vector<float> got(6 * 3 * 48);
  runtime::Buffer from = all.buffer();
  from.size = got.size() * sizeof(float);
  ASSERT_TRUE(runtime::copy_out(std::as_writable_bytes(std::span(got)), from));
  for (size_t i = 0; i < numbers.size(); ++i) {
    // 16 divides 48, 32 does not; halves of the scale's rounding besides.
    float largest = 0;
    for (size_t k = i / 16 * 16; k < i / 16 * 16 + 16; ++k)
      largest = std::max(largest, std::abs(numbers[k]));
    EXPECT_NEAR(got[4 * 3 * 48 + i], numbers[i], largest / 127 * 0.58F) << i;
  }
  EXPECT_EQ(got[0], 0.0F);
}

}  // namespace
}  // namespace bm::models
