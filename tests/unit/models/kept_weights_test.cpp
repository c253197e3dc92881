// The checksum of weights that stay on a device, against plain C++.

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "models/llama_kept_weights.h"
#include "runtime/device.h"

namespace bm::models {
namespace {

uint32_t mixed(uint32_t seen, uint32_t first, uint32_t second, uint32_t shift) {
  const uint32_t once = seen * first;
  return (once ^ once >> shift) * second;
}

uint64_t expected(std::span<const uint32_t> words) {
  uint32_t low = 0, high = 0;
  for (uint32_t i = 0; i < words.size(); ++i) {
    low += mixed(words[i] ^ i * 0x9e3779b1u, 0x85ebca6b, 0xc2b2ae35, 15);
    high += mixed(words[i] + i * 0x27d4eb2fu, 0x165667b1, 0x85ebca77, 13);
  }
  return uint64_t{high} << 32 | low;
}

uint64_t checksum(const std::vector<uint32_t>& words) {
  const Tensor t = Tensor::from_bytes(std::as_bytes(std::span(words)),
                                      {static_cast<int64_t>(words.size())}, DType::kU32, "CPU");
  return checksum_on_device(t.buffer());
}

TEST(KeptWeights, TheChecksumIsThatOfPlainCode) {
  std::mt19937 random(7);
  for (const size_t count : {size_t{64}, size_t{1000}, size_t{1} << 18}) {
    std::vector<uint32_t> words(count);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    EXPECT_EQ(checksum(words), expected(words)) << count << " words";
  }
  EXPECT_EQ(checksum(std::vector<uint32_t>(4096)), expected(std::vector<uint32_t>(4096)));
}

TEST(KeptWeights, OneBitAndTwoWordsThatChangePlacesChangeIt) {
  std::mt19937 random(8);
  std::vector<uint32_t> words(1 << 12);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  const uint64_t before = checksum(words);
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<uint32_t> changed = words;
    changed[random() % words.size()] ^= 1u << random() % 32;
    EXPECT_NE(checksum(changed), before);
  }
  std::vector<uint32_t> swapped = words;
  std::swap(swapped[17], swapped[18]);
  EXPECT_NE(checksum(swapped), before);
}

TEST(KeptWeights, DevicesWhoseMemoryGoesWithTheProcessAreRefused) {
  for (const char* const name : {"CPU", "NULL", "REF"}) {
    auto device = runtime::open_device(name);
    ASSERT_TRUE(device) << device.error().message;
    const Status can = can_keep_weights(**device);
    ASSERT_FALSE(can);
    EXPECT_EQ(can.error().code, Code::kUnsupported);
    EXPECT_NE(can.error().message.find("DEV=AMD:PCI"), std::string::npos) << can.error().message;
  }
}

}  // namespace
}  // namespace bm::models
