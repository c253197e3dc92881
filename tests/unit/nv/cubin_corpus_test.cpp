// Hostile cubins: the seeds of tests/fuzz/cubin_fuzz.cpp, and mutations of what compilers write.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "drivers/nv/program.h"
#include "tests/unit/nv/cubin_builder.h"
#include "tests/unit/nv/nvrtc_probe.h"

namespace bm::nv {
namespace {

using testing::Bytes;

struct Seed {
  uint32_t sm;
  bool is_cuda_12;
};
constexpr Seed kSeeds[] = {{75, true}, {89, false}, {90, true}, {90, false}, {120, false}};

std::filesystem::path corpus_file(const Seed& seed) {
  return "tests/fuzz/corpus/cubin/" +
         fmt::format("sm{}_cuda{}", seed.sm, seed.is_cuda_12 ? 12 : 13);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// BM_UPDATE_CORPUS=1 writes the files anew.
TEST(CubinCorpus, SeedsAreWhatTheBuilderMakes) {
  for (const Seed& seed : kSeeds) {
    const Bytes made = testing::sample_cubin(seed.sm, seed.is_cuda_12).build();
    if (std::getenv("BM_UPDATE_CORPUS") != nullptr) {
      std::filesystem::create_directories(corpus_file(seed).parent_path());
      std::ofstream(corpus_file(seed), std::ios::binary)
          .write(reinterpret_cast<const char*>(made.data()),
                 static_cast<std::streamsize>(made.size()));
    }
    EXPECT_EQ(read_file(corpus_file(seed)), made) << corpus_file(seed);
  }
}

/// An image of exactly these bytes: sanitizers then see a read past the end.
bool survives(const Bytes& bytes, std::string_view kernel, uint32_t sm) {
  const Bytes exact(bytes.begin(), bytes.end());
  auto image = load_cubin(exact, kernel, sm);
  if (!image) return !image.error().message.empty();
  const KernelInfo& k = image->kernel();
  return image->relocate(0x10'0000'0000).has_value() &&
         k.code_offset + k.code_bytes + 4096 <= image->bytes().size();
}

TEST(CubinCorpus, EveryPrefixIsRefusedWithAReason) {
  const Bytes whole = testing::sample_cubin(90, false).build();
  for (size_t length = 0; length < whole.size(); ++length) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    const auto image = load_cubin(part, "second", 90);
    ASSERT_FALSE(image) << length;
    ASSERT_FALSE(image.error().message.empty());
  }
}

/// Every byte in turn, so that each field of each table is broken at least once.
TEST(CubinCorpus, EveryByteMayBeWrong) {
  for (const Seed& seed : kSeeds) {
    const Bytes whole = testing::sample_cubin(seed.sm, seed.is_cuda_12).build();
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const unsigned value : {0x00u, 0x01u, 0x7fu, 0x80u, 0xffu}) {
        Bytes broken = whole;
        broken[at] = static_cast<std::byte>(value);
        ASSERT_TRUE(survives(broken, "second", seed.sm)) << at << " = " << value;
      }
    }
  }
}

TEST(CubinCorpus, RandomDamageToCompiledCubins) {
  std::string why;
  const auto nvrtc = testing::Nvrtc::open(why);
  if (nvrtc == nullptr) GTEST_SKIP() << why;
  const auto output = nvrtc->compile(
      "__device__ int g = 3; __constant__ int c[4] = {1};\n"
      "extern \"C\" __global__ void second(int* p, double d) {\n"
      "  __shared__ int s[64]; s[threadIdx.x] = p[threadIdx.x] + c[p[0] & 3]; __syncthreads();\n"
      "  p[1] = s[p[2] & 63] + g++ + (int)sin(d); }\n",
      "sm_90");
  ASSERT_FALSE(output.cubin.empty()) << output.log;
  ASSERT_TRUE(load_cubin(output.cubin, "second", 90));
  std::mt19937_64 random(7);
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  for (int round = 0; round < 20000; ++round) {
    Bytes broken = output.cubin;
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      // Code is only copied: damage belongs where it is read.
      size_t at = below(broken.size());
      if (below(2) == 0) at = below(2) == 0 ? below(64) : broken.size() - 1 - below(4096);
      const uint64_t value = below(2) == 0 ? random() : ~uint64_t{0} >> below(64);
      const size_t width = std::min(size_t{1} << below(4), broken.size() - at);
      std::memcpy(broken.data() + at, &value, width);
    }
    ASSERT_TRUE(survives(broken, "second", 90)) << "round " << round;
  }
}

}  // namespace
}  // namespace bm::nv
