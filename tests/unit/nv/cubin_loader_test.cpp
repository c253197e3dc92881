#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "drivers/nv/program.h"
#include "tests/unit/nv/cubin_builder.h"

namespace bm::nv {
namespace {

using testing::Bytes;
using testing::CubinBuilder;
using testing::info_sized;
using testing::info_value;
using testing::join;
using testing::pack;
using testing::sample_cubin;

constexpr uint64_t kPlace = 0x12'3456'7800;

uint64_t word(const ProgramImage& image, uint64_t at, size_t bytes = 8) {
  uint64_t value = 0;
  std::memcpy(&value, image.bytes().data() + at, bytes);
  return value;
}

std::string refusal(const CubinBuilder& cubin, std::string_view kernel, uint32_t sm, Code code) {
  const auto result = load_cubin(cubin.build(), kernel, sm);
  if (result) return "accepted";
  EXPECT_EQ(result.error().code, code) << result.error().message;
  return result.error().message;
}

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

struct Form {
  uint32_t sm;
  bool is_cuda_12;
  uint32_t param_base, shared;
};

class Cubin : public ::testing::TestWithParam<Form> {
 protected:
  Result<ProgramImage> load(std::string_view kernel) {
    return load_cubin(sample_cubin(GetParam().sm, GetParam().is_cuda_12).build(), kernel,
                      GetParam().sm);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Containers, Cubin,
    ::testing::Values(Form{75, true, 0x160, 256}, Form{75, false, 0x160, 256},
                      Form{86, true, 0x160, 1280}, Form{89, false, 0x160, 1280},
                      Form{90, true, 0x210, 1280}, Form{90, false, 0x210, 1280},
                      Form{100, false, 0x380, 1280}, Form{120, false, 0x380, 1280}),
    [](const auto& form) {
      return fmt::format("sm{}cuda{}", form.param.sm, form.param.is_cuda_12 ? 12 : 13);
    });

TEST_P(Cubin, FactsBelongToTheKernelAskedFor) {
  const auto second = load("second");
  ASSERT_TRUE(second) << second.error().message;
  const KernelInfo& k = second->kernel();
  EXPECT_EQ(k.name, "second");
  EXPECT_EQ(k.sm, GetParam().sm);
  EXPECT_FALSE(k.is_sm_specific);
  EXPECT_FALSE(k.is_ptx);
  EXPECT_EQ(k.registers, 40u);
  EXPECT_EQ(k.barriers, 3u);
  EXPECT_EQ(k.stack_bytes, 1024u) << "it calls functions";
  EXPECT_EQ(k.shared_bytes, GetParam().shared);
  EXPECT_EQ(k.shared_reserved_bytes, GetParam().sm < 80 ? 0u : 0x400u);
  EXPECT_EQ(k.param_base, GetParam().param_base);
  EXPECT_EQ(k.param_bytes, 20u);
  EXPECT_EQ(k.parameters, (std::vector<Parameter>{{0, 8}, {8, 12}}));
  EXPECT_EQ(k.max_threads, 256u);
  EXPECT_FALSE(k.cluster || k.required_block || k.max_cluster_rank);
  EXPECT_EQ(k.banks[0].bytes, (GetParam().param_base + 20 + 15) / 16 * 16);

  const auto first = load("first");
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->kernel().registers, 24u);
  EXPECT_EQ(first->kernel().barriers, 0u);
  EXPECT_EQ(first->kernel().stack_bytes, 0u);
  EXPECT_EQ(first->kernel().shared_bytes, GetParam().sm < 80 ? 0u : 0x400u);
  EXPECT_EQ(first->kernel().param_base, GetParam().param_base);
  EXPECT_EQ(first->kernel().param_bytes, 0u);
  EXPECT_EQ(first->kernel().max_threads, 1024u);
}

TEST_P(Cubin, ImageHoldsCodeAndConstantsWhereTheKernelInfoSays) {
  const auto image = load("second");
  ASSERT_TRUE(image) << image.error().message;
  const KernelInfo& k = image->kernel();
  EXPECT_EQ(image->bytes().size() % 256, 0u);
  EXPECT_EQ(k.code_offset % 256, 0u);
  EXPECT_EQ(k.code_bytes, 384u);
  EXPECT_EQ(word(*image, k.code_offset), 0u);
  EXPECT_EQ(k.banks[2].bytes, 16u);
  EXPECT_EQ(word(*image, k.banks[2].offset), 0x2222'2222'2222'2222u);
  EXPECT_EQ(k.banks[3].bytes, 32u);
  EXPECT_EQ(word(*image, k.banks[3].offset + 12), 0x3333'3333'3333'3333u);
  EXPECT_EQ(k.banks[4].bytes, 16u);
  EXPECT_EQ(k.banks[1].bytes, 0u);
  for (const ConstantBank& bank : k.banks) EXPECT_EQ(bank.offset % 256, 0u);
}

TEST_P(Cubin, FourKibibytesFollowTheLastInstruction) {
  const auto image = load("second");
  ASSERT_TRUE(image);
  // "helper" is reached by a call; nothing of it may lie in the last 4 KiB.
  const auto bytes = image->bytes();
  const auto helper = std::find(bytes.begin(), bytes.end(), std::byte{0x55});
  ASSERT_NE(helper, bytes.end());
  EXPECT_EQ((helper - bytes.begin()) % 128, 0);
  EXPECT_GE(bytes.end() - (helper + 128), 4096);
  EXPECT_TRUE(
      std::all_of(bytes.end() - 4096, bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(Cubin, RelocationsPointIntoTheImageWithTheirAddends) {
  auto image = load("second");
  ASSERT_TRUE(image);
  const KernelInfo& k = image->kernel();
  for (const uint64_t place : {kPlace, uint64_t{0x10'0000'0000}, uint64_t{0x7000'0000'0000}}) {
    const bool fits = place < uint64_t{1} << 49;
    ASSERT_EQ(bool(image->relocate(place)), fits);
    // constant4[0] = &data + 8 + 4: .nv.global.init holds 0x77, its symbol is 8 bytes in.
    const uint64_t data = word(*image, k.banks[4].offset) - place;
    ASSERT_LT(data + 8, image->bytes().size());
    EXPECT_EQ(word(*image, data - 12), 0x7777'7777'7777'7777u);
    EXPECT_EQ(word(*image, data + 4), 0x7777'7777'7777'7777u);
    EXPECT_NE(word(*image, data - 20), 0x7777'7777'7777'7777u);
    const uint64_t zeros = word(*image, k.banks[4].offset + 8) - place;
    ASSERT_LT(zeros + 400, image->bytes().size());
    for (uint64_t i = 0; i < 400; i += 8) EXPECT_EQ(word(*image, zeros + i), 0u);
    // Return address in two instructions.
    const uint64_t code = k.code_offset;
    EXPECT_EQ(word(*image, code + 0x14, 4) | word(*image, code + 0x24, 4) << 32,
              place + code + 0x90);
    // Call: target / 4 from bit 34; from sm_90 on its low 8 bits are bits 23:16.
    const uint64_t low = word(*image, code + 0x30), high = word(*image, code + 0x38);
    const uint64_t upper = low >> 34 | (high & 0x1ffff) << 30;
    const uint64_t target =
        GetParam().sm >= 90 ? (upper << 8 | (low >> 16 & 0xff)) << 2 : upper << 2;
    EXPECT_EQ(image->bytes()[target - place], std::byte{0x55});
    EXPECT_EQ(image->bytes()[target - place - 1], std::byte{0});
  }
}

TEST(CubinRelocate, RefusesPlacesThatCodeCannotLieAt) {
  auto image = load_cubin(sample_cubin(90, false).build(), "second", 90);
  ASSERT_TRUE(image);
  EXPECT_FALSE(image->relocate(0x1000'0080));
  EXPECT_FALSE(image->relocate(uint64_t{1} << 49));
  EXPECT_FALSE(image->relocate(~uint64_t{0xff}));
}

TEST(CubinArch, RunsOnLaterChipsOfTheSameMajorOnly) {
  struct Row {
    uint32_t code, device;
    bool runs;
  };
  for (const Row& row :
       {Row{80, 80, true}, Row{80, 86, true}, Row{80, 89, true}, Row{86, 89, true},
        Row{86, 80, false}, Row{80, 90, false}, Row{90, 80, false}, Row{87, 89, false},
        Row{80, 87, false}, Row{100, 103, true}, Row{103, 100, false}, Row{100, 110, false},
        Row{120, 121, true}, Row{90, 100, false}, Row{75, 80, false}}) {
    const auto image = load_cubin(sample_cubin(row.code, false).build(), "first", row.device);
    EXPECT_EQ(bool(image), row.runs) << row.code << " on " << row.device;
    if (image) continue;
    EXPECT_HAS(image.error().message, fmt::format("compile for sm_{}", row.device));
  }
}

TEST(CubinArch, SpecificCodeRunsOnItsOwnChipOnly) {
  CubinBuilder cuda13 = sample_cubin(100, false);
  cuda13.section(".nv.compat").bytes = info_value(2, 9, 1);
  CubinBuilder cuda12 = sample_cubin(90, true);
  cuda12.set_flags(0x5a0d5a);  // as nvcc 12.4 writes for sm_90a
  const auto hopper = load_cubin(cuda12.build(), "first", 90);
  ASSERT_TRUE(hopper) << hopper.error().message;
  EXPECT_TRUE(hopper->kernel().is_sm_specific);
  EXPECT_TRUE(load_cubin(cuda13.build(), "first", 100));
  EXPECT_HAS(refusal(cuda13, "first", 103, Code::kUnsupported), "sm_100a");
}

TEST(CubinStack, IsWhatTheCompilerSaysWithoutCallsOfTheUsers) {
  CubinBuilder cubin = sample_cubin(90, false);
  const uint32_t first = cubin.symbol("first");
  cubin.section(".nv.info").bytes =
      join({info_sized(0x2f, pack(first, 24u)), info_sized(0x11, pack(first, 64u)),
            info_sized(0x12, pack(first, 96u))});
  const auto stack = [](const CubinBuilder& made) {
    const auto image = load_cubin(made.build(), "first", 90);
    return image ? image->kernel().stack_bytes : 0;
  };
  EXPECT_EQ(stack(cubin), 96u);
  cubin.add_symbol("$first$__internal_accurate_pow", cubin.index(".text.first"), 128, 2);
  EXPECT_EQ(stack(cubin), 96u);
  cubin.add_symbol("$first$_Z4deepi", cubin.index(".text.first"), 192, 2);
  EXPECT_EQ(stack(cubin), 1024u);
}

TEST(CubinErrors, NameTheKernelsThereAre) {
  const std::string message = refusal(sample_cubin(90, false), "third", 90, Code::kNotFound);
  EXPECT_HAS(message, "'third'");
  EXPECT_HAS(message, "first, second");
  // A device function is no kernel.
  EXPECT_HAS(refusal(sample_cubin(90, false), "helper", 90, Code::kNotFound), "'helper'");
}

TEST(CubinErrors, UnknownRelocationNamesTypeSectionAndSymbol) {
  CubinBuilder cubin = sample_cubin(90, false);
  cubin.add_relocations(cubin.index(".text.first"),
                        {{.offset = 0x10, .symbol = cubin.symbol("data"), .type = 0x66}}, true);
  const std::string message = refusal(cubin, "first", 90, Code::kUnsupported);
  EXPECT_HAS(message, "0x66");
  EXPECT_HAS(message, ".rela.text.first");
  EXPECT_HAS(message, "'data'");
  EXPECT_TRUE(load_cubin(cubin.build(), "second", 90)) << "not on its way";
}

TEST(CubinErrors, UndefinedSymbolIsNamed) {
  CubinBuilder cubin = sample_cubin(90, false);
  const uint32_t print = cubin.add_symbol("vprintf", 0, 0, 0x12);
  cubin.add_relocations(cubin.index(".text.first"), {{.offset = 0, .symbol = print, .type = 0x4b}},
                        true);
  EXPECT_HAS(refusal(cubin, "first", 90, Code::kUnsupported), "'vprintf'");
}

TEST(CubinErrors, RelocationOutsideItsSection) {
  for (const uint64_t offset : {uint64_t{249}, uint64_t{256}, ~uint64_t{0} - 3}) {
    CubinBuilder cubin = sample_cubin(90, false);
    cubin.add_relocations(cubin.index(".text.first"),
                          {{.offset = offset, .symbol = cubin.symbol("data"), .type = 2}}, true);
    EXPECT_HAS(refusal(cubin, "first", 90, Code::kCorrupt), "outside '.text.first'");
  }
}

TEST(CubinErrors, RelSectionsWithAddendsInInstructions) {
  CubinBuilder cubin = sample_cubin(89, false);  // code of "first" is 0x11…
  cubin.add_relocations(cubin.index(".text.first"),
                        {{.offset = 0, .symbol = cubin.symbol("data"), .type = 0x3a}}, false);
  EXPECT_HAS(refusal(cubin, "first", 89, Code::kUnsupported), "addend inside an instruction");
}

TEST(CubinErrors, SymbolsOfSharedMemoryAreOffsets) {
  CubinBuilder cubin = sample_cubin(90, false);
  const uint32_t tile = cubin.add_symbol("tile", cubin.index(".nv.shared.second"), 0x440, 1);
  cubin.add_relocations(cubin.index(".text.first"), {{.offset = 0, .symbol = tile, .type = 0x37}},
                        true);
  auto image = load_cubin(cubin.build(), "first", 90);
  ASSERT_TRUE(image) << image.error().message;
  ASSERT_TRUE(image->relocate(kPlace));
  EXPECT_EQ(word(*image, image->kernel().code_offset + 4, 4), 0x440u);
}

TEST(CubinErrors, BadInfoRecords) {
  struct Row {
    Bytes records;
    const char* message;
  };
  for (const Row& row :
       {Row{pack(uint8_t{9}, uint8_t{1}, uint16_t{0}), "format 9"},
        Row{pack(uint8_t{4}, uint8_t{0x17}, uint16_t{400}), "400 bytes wanted"},
        Row{pack(uint8_t{4}), "offset 0x0"}, Row{info_sized(0x0a, pack(1u)), "8 needed"},
        Row{info_value(2, 0x4c, 17), "17 barriers"},
        Row{info_sized(0x0a, pack(0u, uint16_t{0x210}, uint16_t{64})), "constant bank 0"},
        Row{info_sized(0x17, pack(0u, uint16_t{0}, uint16_t{0}, 8u << 18)), "a parameter of 8"}}) {
    CubinBuilder cubin = sample_cubin(90, false);
    cubin.section(".nv.info.second").bytes = row.records;
    EXPECT_HAS(refusal(cubin, "second", 90, Code::kCorrupt), row.message);
  }
  CubinBuilder cubin = sample_cubin(90, false);
  cubin.section(".nv.info").bytes = info_sized(0x2f, pack(cubin.symbol("first"), 256u));
  EXPECT_HAS(refusal(cubin, "first", 90, Code::kCorrupt), "256 registers");
}

TEST(CubinErrors, HugeSectionsAreNotAllocated) {
  CubinBuilder cubin = sample_cubin(90, false);
  cubin.section(".nv.global").nobits = uint64_t{1} << 50;
  EXPECT_HAS(refusal(cubin, "second", 90, Code::kUnsupported), "larger than 64 MiB");
  CubinBuilder shared = sample_cubin(90, false);
  shared.section(".nv.shared.second").nobits = uint64_t{1} << 40;
  EXPECT_HAS(refusal(shared, "second", 90, Code::kCorrupt), "shared memory");
}

TEST(CubinErrors, OtherContainersAreNamedWithTheRemedy) {
  const auto of = [](std::string_view text) {
    const auto result = load_cubin(std::as_bytes(std::span(text)), "k", 90);
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_HAS(of("//\n.version 8.0\n.target sm_90\n"), "BM_NV_CODE=ptx");
  EXPECT_HAS(of(std::string_view("\x50\xed\x55\xba\x01\0", 6)), "fat binary");
  EXPECT_HAS(of(""), "truncated");
  CubinBuilder cubin = sample_cubin(90, false);
  cubin.set_abi(9);
  EXPECT_HAS(refusal(cubin, "first", 90, Code::kUnsupported), "ABI version 9");
}

TEST(CubinAttributes, ClustersAndRequiredBlocks) {
  CubinBuilder cubin = sample_cubin(90, false);
  Bytes& records = cubin.section(".nv.info.second").bytes;
  records =
      join({records, info_value(1, 0x3e, 0), info_sized(0x3d, pack(2u, 1u, 4u)),
            info_sized(0x3f, pack(8u)), info_sized(0x10, pack(64u, 2u, 1u)),
            info_sized(0x45, pack(0u, uint16_t{2}, uint16_t{19}, 1u)), info_sized(0xfe, pack(1u))});
  const auto image = load_cubin(cubin.build(), "second", 90);
  ASSERT_TRUE(image) << image.error().message;
  const KernelInfo& k = image->kernel();
  EXPECT_EQ(k.cluster, (hal::Dim3{2, 1, 4}));
  EXPECT_EQ(k.max_cluster_rank, 8u);
  EXPECT_EQ(k.required_block, (hal::Dim3{64, 2, 1}));
  EXPECT_EQ(k.parameters.back(), (Parameter{19, 1}));
}

TEST(CubinAttributes, RegistersLimitTheBlock) {
  for (const auto& [registers, threads] :
       {std::pair{64u, 1024u}, {65u, 896u}, {128u, 512u}, {129u, 384u}, {255u, 256u}}) {
    CubinBuilder cubin = sample_cubin(90, false);
    cubin.section(".nv.info").bytes = info_sized(0x2f, pack(cubin.symbol("first"), registers));
    const auto image = load_cubin(cubin.build(), "first", 90);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_EQ(image->kernel().max_threads, threads) << registers;
  }
}

TEST(PtxProgram, IsTheTextItself) {
  const std::string text =
      ".version 8.0\n.target sm_90\n.visible .entry add_one\n(.param .u64 p) { ret; }\n";
  const std::span bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  const auto program = load_ptx(bytes, "add_one", 90);
  ASSERT_TRUE(program) << program.error().message;
  EXPECT_TRUE(program->kernel().is_ptx);
  EXPECT_EQ(program->kernel().code_offset, 0u);
  EXPECT_EQ(program->kernel().param_base, 0x160u);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), program->bytes().begin()));
  EXPECT_EQ(load_ptx(bytes, "add", 90).error().code, Code::kNotFound);
  EXPECT_EQ(load_ptx(bytes, "add_one_more", 90).error().code, Code::kNotFound);
  EXPECT_EQ(load_ptx(bytes.first(text.size()), "add_one", 90).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace bm::nv
