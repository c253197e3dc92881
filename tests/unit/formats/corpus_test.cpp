// Runs one fuzz harness over the files kept for it. A crash or a sanitizer report is the failure.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

TEST(FuzzCorpus, HoldsNoInputThatBreaksTheHarness) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(BM_CORPUS)) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    // A copy of exactly this size, so that a read past the end is seen.
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
              0);
    ++count;
  }
  EXPECT_GE(count, 5u);
}

}  // namespace
