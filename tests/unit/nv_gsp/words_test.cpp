// Structures and arithmetic of a boot, held against values worked out by hand from
// open-gpu-kernel-modules 570.144 and nouveau.

#include <gtest/gtest.h>

#include <cstring>

#include "drivers/nv/abi/gsp.h"
#include "drivers/nv/gsp/boot_arguments.h"
#include "drivers/nv/gsp/fsp.h"
#include "drivers/nv/gsp/generation.h"
#include "drivers/nv/gsp/protected_memory.h"

namespace bm::nv::gsp {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

const Generation& generation(uint32_t architecture, uint32_t implementation) {
  return **find_generation(architecture, implementation);
}

uint64_t word(std::span<const std::byte> bytes, size_t at, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, size);
  return value;
}

TEST(GspGeneration, FamiliesAreFoundByArchitecture) {
  EXPECT_EQ(generation(0x16, 2).family, "tu10x");
  EXPECT_EQ(generation(0x17, 0).family, "ga100");
  EXPECT_EQ(generation(0x17, 2).family, "ga10x");
  EXPECT_EQ(generation(0x18, 0).family, "gh100");
  EXPECT_EQ(generation(0x19, 2).family, "ad10x");
  EXPECT_EQ(generation(0x1a, 0).family, "gb10x");
  EXPECT_EQ(generation(0x1b, 2).family, "gb20x");
  EXPECT_FALSE(find_generation(0x3f, 0xf));
}

// RTX 3090: 24 GiB, the display's memory one mebibyte below the end.
TEST(GspLayout, Ga102WithTwentyFourGibibytes) {
  const uint64_t memory = 24 * kGiB, image = 63'571'696 - 0x2b0, loader = 24'000;
  const auto layout = lay_out(generation(0x17, 2), memory, memory - kMiB, image, loader);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->end, memory - kMiB);
  EXPECT_EQ(layout->frts_at, memory - 2 * kMiB);
  EXPECT_EQ(layout->loader_at, (memory - 2 * kMiB - loader) / 0x1000 * 0x1000);
  EXPECT_EQ(layout->image_at, (layout->loader_at - image) / 0x10000 * 0x10000);
  // 22 + 8 + 3 (24 × 96 KiB) + 96 MiB, within what the ROM has scrubbed.
  const uint64_t heap = (22 + 8 + 3 + 96) * kMiB;
  EXPECT_EQ(layout->heap_at, (layout->image_at - heap) / kMiB * kMiB);
  EXPECT_EQ(layout->heap_bytes, (layout->image_at - layout->heap_at) / kMiB * kMiB);
  EXPECT_EQ(layout->start, layout->heap_at - kMiB);
  EXPECT_EQ(layout->free_heap_at, layout->start - kMiB);
  EXPECT_LE(memory - layout->free_heap_at, 256 * kMiB);
}

// The heap is what is left of the scrubbed 256 MiB where there is no program to scrub more.
TEST(GspLayout, HeapStaysInsideOfWhatIsScrubbed) {
  const Generation& ampere = generation(0x17, 2);
  const Generation& ada = generation(0x19, 2);
  const uint64_t memory = 512 * kGiB;  // 22 + 8 + 48 + 96 MiB wanted
  EXPECT_EQ(heap_bytes(ampere, memory, 0, 0), 174 * kMiB);
  EXPECT_EQ(heap_bytes(ampere, memory, 2 * kMiB, 100 * kMiB), 154 * kMiB);
  EXPECT_EQ(heap_bytes(ada, memory, 2 * kMiB, 100 * kMiB), 174 * kMiB);
  EXPECT_EQ(heap_bytes(generation(0x16, 2), 4 * kGiB, 0, 0), (8 + 1 + 96) * kMiB);
  EXPECT_EQ(heap_bytes(generation(0x18, 0), 80 * kGiB, 0, 0), (22 + 14 + 8 + 96) * kMiB);
  EXPECT_EQ(heap_bytes(generation(0x18, 0), 4096 * kGiB, 0, 0), 280 * kMiB);
}

TEST(GspLayout, Ga100HasNoFrts) {
  const uint64_t memory = 40 * kGiB;
  const auto layout = lay_out(generation(0x17, 0), memory, memory - kMiB, 28'000'000, 20'000);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->frts_at, layout->end);
  EXPECT_EQ(encode_meta(*layout, {}).get(abi::gsp::WprMeta::frtsSize), 0u);
}

TEST(GspLayout, NonsenseIsRefused) {
  EXPECT_FALSE(lay_out(generation(0x17, 2), 24 * kGiB, 25 * kGiB, kMiB, kMiB));
  EXPECT_FALSE(lay_out(generation(0x17, 2), 64 * kMiB, 63 * kMiB, kMiB, kMiB));
  EXPECT_FALSE(lay_out(generation(0x17, 2), 24 * kGiB, 24 * kGiB - kMiB, kGiB, kMiB));
}

TEST(GspLayout, MetaHasMagicRevisionAndEveryOffset) {
  const uint64_t memory = 24 * kGiB;
  const auto layout = lay_out(generation(0x17, 2), memory, memory - kMiB, 60 * kMiB, 24'000);
  ASSERT_TRUE(layout);
  const auto meta = encode_meta(*layout, {.image_table = 0x1000,
                                          .image_bytes = 60 * kMiB,
                                          .loader = 0x2000,
                                          .loader_bytes = 24'000,
                                          .loader_code = 1,
                                          .loader_data = 2,
                                          .loader_manifest = 3,
                                          .signature = 0x3000,
                                          .signature_bytes = 0x1000});
  const auto bytes = meta.bytes();
  ASSERT_EQ(bytes.size(), 256u);
  EXPECT_EQ(word(bytes, 0, 8), 0xdc3aae21371a60b3u);
  EXPECT_EQ(word(bytes, 8, 8), 1u);
  EXPECT_EQ(word(bytes, 16, 8), 0x1000u);
  EXPECT_EQ(word(bytes, 72, 8), 0x3000u);
  EXPECT_EQ(word(bytes, 112, 8), layout->start);
  EXPECT_EQ(word(bytes, 136, 8), layout->image_at);
  EXPECT_EQ(word(bytes, 168, 8), layout->end);
  EXPECT_EQ(word(bytes, 176, 8), memory);
  EXPECT_EQ(word(bytes, 248, 8), 0u);  // verified: the booter's
}

TEST(GspLayout, HopperAndBlackwellSaySizesAlone) {
  const auto meta = encode_meta(generation(0x1b, 2), 32 * kGiB, {});
  EXPECT_EQ(word(meta.bytes(), 104, 8), 0x220000u);
  EXPECT_EQ(word(meta.bytes(), 112, 8), 0u);
  EXPECT_EQ(word(meta.bytes(), 160, 8), kMiB);
  EXPECT_EQ(word(meta.bytes(), 192, 8), 0x20000u);
  EXPECT_EQ(word(meta.bytes(), 244, 4), 0x1820000u);
  EXPECT_EQ(frts_from_end(generation(0x18, 0)), 0x200000u);
  EXPECT_EQ(frts_from_end(generation(0x1a, 0)), 0x1c00000u);
  EXPECT_EQ(frts_from_end(generation(0x1b, 2)), 0x1c00000u);
}

TEST(GspArguments, RegionsAreNamedByTheirLetters) {
  EXPECT_EQ(region_id("LOGRM"), 0x4c4f47524du);
  EXPECT_EQ(region_id("LOGINIT"), 0x4c4f47494e4954u);
}

TEST(GspArguments, RegistryHasEntriesThenNames) {
  const RegistryValue values[] = {{"RMa", 1}, {"RMbc", 0x12345678}};
  const auto bytes = encode_registry(values);
  ASSERT_EQ(bytes.size(), 8u + 2 * 16 + 4 + 5);
  EXPECT_EQ(word(bytes, 0, 4), bytes.size());
  EXPECT_EQ(word(bytes, 4, 4), 2u);
  EXPECT_EQ(word(bytes, 8, 4), 40u);
  EXPECT_EQ(word(bytes, 12, 1), 1u);
  EXPECT_EQ(word(bytes, 16, 4), 1u);
  EXPECT_EQ(word(bytes, 20, 4), 4u);
  EXPECT_EQ(word(bytes, 24, 4), 44u);
  EXPECT_EQ(word(bytes, 32, 4), 0x12345678u);
  EXPECT_STREQ(reinterpret_cast<const char*>(bytes.data() + 44), "RMbc");
}

TEST(GspArguments, FmcIsToldToBootTheResourceManager) {
  const auto bytes = encode_fmc_arguments(0x11000, 256, 0x12000);
  ASSERT_EQ(bytes.size(), 80u);
  EXPECT_EQ(word(bytes, 8, 4), 1u);
  EXPECT_EQ(word(bytes, 12, 4), 256u);
  EXPECT_EQ(word(bytes, 16, 8), 0x11000u);
  EXPECT_EQ(word(bytes, 36, 1), 1u);
  EXPECT_EQ(word(bytes, 40, 4), 2u);
  EXPECT_EQ(word(bytes, 48, 8), 0x12000u);
}

TEST(GspFsp, MessageIsOnePacketWithTheFilesParts) {
  std::vector<std::byte> hash(48, std::byte{1}), key(97, std::byte{2}), signature(96, std::byte{3});
  const firmware::nvidia::FmcImage fmc{
      .image = {}, .hash = hash, .public_key = key, .signature = signature};
  const auto cot =
      encode_cot(generation(0x1b, 2), fmc, {.fmc = 0x12345000, .arguments = 0x54321000});
  ASSERT_TRUE(cot);
  ASSERT_EQ(cot->size(), 860u);
  EXPECT_EQ(word(*cot, 0, 2), 2u);
  EXPECT_EQ(word(*cot, 2, 2), 860u);
  EXPECT_EQ(word(*cot, 4, 8), 0x12345000u);
  EXPECT_EQ(word(*cot, 12, 8), 0u);
  EXPECT_EQ(word(*cot, 24, 8), 0x1c00000u);
  EXPECT_EQ(word(*cot, 32, 4), kMiB);
  EXPECT_EQ(word(*cot, 36, 1), 1u);
  EXPECT_EQ(word(*cot, 84 + 96, 1), 2u);
  EXPECT_EQ(word(*cot, 84 + 97, 1), 0u);
  EXPECT_EQ(word(*cot, 468, 1), 3u);
  EXPECT_EQ(word(*cot, 852, 8), 0x54321000u);
  const auto packet = encode_fsp_packet(kNvdmCot, *cot);
  ASSERT_EQ(packet.size(), 217u);
  EXPECT_EQ(packet[0], 0xc0000000u);
  EXPECT_EQ(packet[1], 0x1410de7eu);
}

TEST(GspFsp, ResponsesAreHeldAgainstWhatWasSent) {
  const uint32_t good[] = {0xc0000000, 0x1510de7e, 0, 0x14, 0};
  EXPECT_TRUE(check_fsp_response(good, kNvdmCot));
  EXPECT_FALSE(check_fsp_response(std::span(good).first(4), kNvdmCot));
  for (const auto& [at, value] : {std::pair{0, 0x80000000u}, std::pair{1, 0x1410de7eu},
                                  std::pair{3, 0x13u}, std::pair{4, 9u}}) {
    std::vector<uint32_t> bad(std::begin(good), std::end(good));
    bad[static_cast<size_t>(at)] = value;
    EXPECT_FALSE(check_fsp_response(bad, kNvdmCot)) << at;
  }
}

}  // namespace
}  // namespace bm::nv::gsp
