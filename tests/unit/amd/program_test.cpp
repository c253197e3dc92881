// Code objects of LLVM (tests/unit/amd/data), whole and damaged.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "drivers/amd/program/code_object.h"
#include "drivers/amd/program/launch_plan.h"

namespace bm::amd {
namespace {

using Bytes = std::vector<std::byte>;

Bytes read(const std::string& name) {
  std::ifstream file("tests/unit/amd/data/" + name, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_FALSE(text.empty()) << name;
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

const ChipRow& chip(std::string_view name) { return *find_chip(name); }

template <class T>
T at(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}
template <class T>
void put(Bytes& bytes, uint64_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// File offset of the kernel descriptor: the first of .rodata, found by its zeroed reserved words.
uint64_t descriptor_in_file(const Bytes& file, const KernelFacts& kernel) {
  for (uint64_t offset = 0; offset + 64 <= file.size(); offset += 4)
    if (at<uint32_t>(file, offset) == kernel.group_bytes &&
        at<uint32_t>(file, offset + 8) == kernel.kernarg_bytes &&
        at<uint32_t>(file, offset + 48) == kernel.rsrc1 &&
        at<uint32_t>(file, offset + 52) == kernel.rsrc2)
      return offset;
  ADD_FAILURE() << "no descriptor";
  return 0;
}

void expect_error(const Status& status, Code code, std::string_view text) {
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, code) << status.error().message;
  EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
}
template <class T>
void expect_error(const Result<T>& result, Code code, std::string_view text) {
  expect_error(result ? Status{} : Status{tl::unexpected(result.error())}, code, text);
}

hal::CodeObject code_for(std::string name) {
  hal::CodeObject code;
  code.entry = std::move(name);
  code.num_buffers = 1;
  code.num_vars = 1;
  code.block = {64, 1, 1};
  return code;
}

TEST(AmdProgram, ObjectsOfEveryGenerationLoadWithoutALinker) {
  for (const char* name : {"gfx942", "gfx1100", "gfx1201"}) {
    auto image = load_code_object(read(std::string(name) + ".o"), "lookup", chip(name));
    ASSERT_TRUE(image.has_value()) << image.error().message;
    const KernelFacts& k = image->kernel();
    EXPECT_EQ(k.group_bytes, 1024u);
    EXPECT_EQ(k.private_bytes, 0u);
    EXPECT_GE(k.kernarg_bytes, 16u);
    EXPECT_TRUE(k.takes_kernarg);
    EXPECT_EQ(k.is_wave32, std::string(name) != "gfx942");
    EXPECT_EQ(k.entry_offset % 256, 0u);
    EXPECT_GE(k.vgprs, 1u);
    // The relocated word says how far the entry is from the descriptor.
    EXPECT_EQ(at<int64_t>(image->bytes(), k.descriptor_offset + 16),
              static_cast<int64_t>(k.entry_offset - k.descriptor_offset));
    // @pointer holds @table's address, whose first words are 1, 2, 3, 4.
    for (const uint64_t base : {uint64_t{0x10'0000}, uint64_t{0x7f00'1234'5000}}) {
      ASSERT_TRUE(image->relocate(base));
      int found = 0;
      for (uint64_t i = 0; i + 8 <= image->bytes().size(); i += 8) {
        const uint64_t target = at<uint64_t>(image->bytes(), i) - base;
        if (target < image->bytes().size() - 16 && target != 0 && target % 4 == 0 &&
            at<uint32_t>(image->bytes(), target) == 1 &&
            at<uint32_t>(image->bytes(), target + 12) == 4)
          ++found;
      }
      EXPECT_EQ(found, 1) << name << " at " << base;
    }
  }
}

TEST(AmdProgram, LinkedObjectsLoadAlike) {
  auto object = load_code_object(read("gfx1100.o"), "lookup", chip("gfx1100"));
  auto linked = load_code_object(read("gfx1100.so"), "lookup", chip("gfx1100"));
  ASSERT_TRUE(linked.has_value()) << linked.error().message;
  EXPECT_EQ(object->kernel().rsrc1, linked->kernel().rsrc1);
  EXPECT_EQ(object->kernel().group_bytes, linked->kernel().group_bytes);
  EXPECT_EQ(object->kernel().is_wave32, linked->kernel().is_wave32);
  EXPECT_EQ(at<uint64_t>(object->bytes(), object->kernel().entry_offset),
            at<uint64_t>(linked->bytes(), linked->kernel().entry_offset));
  ASSERT_TRUE(linked->relocate(0x7f0000000000));
}

TEST(AmdProgram, WrongFilesAreNamedForWhatTheyAre) {
  const Bytes good = read("gfx1100.o");
  expect_error(load_code_object(good, "lookup", chip("gfx1201")), Code::kInvalidArgument,
               "compiled for gfx1100, this GPU is gfx1201");
  expect_error(load_code_object(good, "other", chip("gfx1100")), Code::kInvalidArgument,
               "it has 'lookup' 'stack' 'scale'");
  Bytes bad = good;
  bad[8] = std::byte{9};
  expect_error(load_code_object(bad, "lookup", chip("gfx1100")), Code::kUnsupported,
               "code object version 11");
  bad = good;
  bad[7] = std::byte{0};
  expect_error(load_code_object(bad, "lookup", chip("gfx1100")), Code::kUnsupported, "OS ABI 0");
  bad = good;
  put<uint16_t>(bad, 18, 62);
  expect_error(load_code_object(bad, "lookup", chip("gfx1100")), Code::kUnsupported, "machine 62");
  expect_error(load_code_object({}, "lookup", chip("gfx1100")), Code::kCorrupt, "lookup");
}

TEST(AmdProgram, DamagedObjectsAreRefusedOrHarmless) {
  for (const char* name : {"gfx1100.o", "gfx1100.so"}) {
    const Bytes good = read(name);
    for (size_t length = 0; length < good.size(); length += 13)
      (void)load_code_object(std::span(good).first(length), "lookup", chip("gfx1100"));
    for (size_t i = 0; i < good.size(); ++i) {
      for (const uint8_t mask : {uint8_t{0xff}, uint8_t{0x01}, uint8_t{0x80}}) {
        Bytes bad = good;
        bad[i] ^= std::byte{mask};
        auto image = load_code_object(bad, "lookup", chip("gfx1100"));
        if (image) {
          EXPECT_LE(image->kernel().descriptor_offset + 64, image->bytes().size());
          EXPECT_LT(image->kernel().entry_offset, image->bytes().size());
          EXPECT_TRUE(image->relocate(0x1000));
        }
      }
    }
  }
}

TEST(AmdProgram, StartUpValuesOfAStackAreRefusedWhereThereIsOne) {
  const Bytes good = read("gfx1100.o");
  const KernelFacts kernel = load_code_object(good, "lookup", chip("gfx1100"))->kernel();
  const uint64_t at_descriptor = descriptor_in_file(good, kernel);
  const auto properties = at<uint16_t>(good, at_descriptor + 56);
  for (const auto& [bit, text] :
       {std::pair{0, "private segment buffer"}, std::pair{5, "flat scratch"}}) {
    Bytes bad = good;
    put<uint16_t>(bad, at_descriptor + 56, static_cast<uint16_t>(properties | 1 << bit));
    // Without a stack nothing reads them: they are zero.
    const auto idle = load_code_object(bad, "lookup", chip("gfx1100"));
    ASSERT_TRUE(idle) << idle.error().message;
    const auto plan = plan_launch(chip("gfx1100"), 0, idle->kernel(), code_for("lookup"));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->num_user_data, bit == 0 ? 6u : 4u);
    put<uint32_t>(bad, at_descriptor + 4, 64);
    expect_error(load_code_object(bad, "lookup", chip("gfx1100")), Code::kUnsupported, text);
  }
  Bytes dynamic = good;
  put<uint16_t>(dynamic, at_descriptor + 56, static_cast<uint16_t>(properties | 1 << 11));
  EXPECT_EQ(load_code_object(dynamic, "lookup", chip("gfx1100"))->kernel().private_bytes, 16384u);
}

class AmdPlan : public testing::Test {
 protected:
  KernelFacts kernel(const char* name, const char* of = "gfx1100") {
    return load_code_object(read(std::string(of) + ".o"), name, chip(of))->kernel();
  }
  hal::CodeObject code = code_for("lookup");
};

TEST_F(AmdPlan, ALaunchIsPlanned) {
  const auto plan = plan_launch(chip("gfx1100"), 0, kernel("lookup"), code);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->group_bytes, 1024u);
  EXPECT_EQ(plan->rsrc2 >> 15 & 0x1ff, 2u);  // steps of 512 bytes
  EXPECT_EQ(plan->rsrc1 >> 20 & 1, 1u);      // waves can be saved only so
  EXPECT_EQ(plan->num_user_data, 2u);
  EXPECT_EQ(plan->explicit_bytes, 16u);
  const auto gfx12 = plan_launch(chip("gfx1201"), 0, kernel("lookup", "gfx1201"), code);
  EXPECT_EQ(gfx12->rsrc1 >> 20 & 1, 0u);
}

TEST_F(AmdPlan, LdsOverTheLimitIsRefused) {
  code.shared_memory_bytes = 65537;
  expect_error(plan_launch(chip("gfx1100"), 0, kernel("lookup"), code), Code::kUnsupported,
               "65537 bytes of LDS per block, gfx1100 has 65536");
  code.shared_memory_bytes = 40000;
  expect_error(plan_launch(chip("gfx1100"), 32768, kernel("lookup"), code), Code::kUnsupported,
               "has 32768");
  code.shared_memory_bytes = 65536;
  EXPECT_TRUE(plan_launch(chip("gfx1100"), 65536, kernel("lookup"), code));
}

TEST_F(AmdPlan, ThreadsAndRegistersOverTheLimitAreRefused) {
  code.block = {1025, 1, 1};
  expect_error(plan_launch(chip("gfx1100"), 0, kernel("lookup"), code), Code::kInvalidArgument,
               "at most 1024");
  code.block = {1u << 31, 1u << 31, 4};
  EXPECT_FALSE(plan_launch(chip("gfx1100"), 0, kernel("lookup"), code));
  code.block = {0, 1, 1};
  EXPECT_FALSE(plan_launch(chip("gfx1100"), 0, kernel("lookup"), code));
  // 1024 threads are 32 waves, 16 on each SIMD of a compute unit: 96 registers each on large chips.
  code.block = {1024, 1, 1};
  KernelFacts facts = kernel("lookup");
  facts.rsrc1 &= ~(1u << 29);  // compute-unit mode
  facts.vgprs = 96;
  EXPECT_TRUE(plan_launch(chip("gfx1100"), 0, facts, code));
  expect_error(plan_launch(chip("gfx1102"), 0, facts, code), Code::kInvalidArgument,
               "96 vector registers");
  facts.vgprs = 104;
  EXPECT_FALSE(plan_launch(chip("gfx1100"), 0, facts, code));
  facts.rsrc1 |= 1u << 29;  // twice the SIMDs
  EXPECT_TRUE(plan_launch(chip("gfx1100"), 0, facts, code));
  facts.vgprs = 264;
  code.block = {32, 1, 1};
  expect_error(plan_launch(chip("gfx1100"), 0, facts, code), Code::kInvalidArgument,
               "264 vector registers, gfx1100 has 256");
}

TEST_F(AmdPlan, ScratchIsRoundedAndBounded) {
  const auto plan = plan_launch(chip("gfx1100"), 0, kernel("stack"), code);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_GE(plan->private_bytes, 2000u);
  EXPECT_EQ(plan->private_bytes % 16, 0u);
  EXPECT_EQ(plan->num_user_data, 6u) << "packet, arguments and id";
  EXPECT_TRUE(plan->needs_block());
  KernelFacts facts = kernel("stack");
  facts.private_bytes = 131072;  // 15 bits of 256 bytes for 64 lanes are a little less
  expect_error(plan_launch(chip("gfx1100"), 0, facts, code), Code::kUnsupported,
               "131072 bytes of scratch per thread");
  EXPECT_TRUE(plan_launch(chip("gfx1201"), 0, facts, code)) << "18 bits there";
}

TEST_F(AmdPlan, AShortArgumentBlockIsRefusedAndALongOneFilled) {
  KernelFacts facts = kernel("lookup");
  code.num_buffers = 40;
  expect_error(plan_launch(chip("gfx1100"), 0, facts, code), Code::kInvalidArgument,
               "40 buffers and 1 variables are 328 bytes");
  code.num_buffers = 1;
  facts.kernarg_bytes = 16 + 256;
  auto plan = plan_launch(chip("gfx1100"), 0, facts, code);
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->has_hidden_arguments());
  Bytes block(plan->kernarg_bytes, std::byte{0xee});
  fill_hidden_arguments(*plan, {5, 6, 7}, block);
  EXPECT_EQ(block[15], std::byte{0xee});
  EXPECT_EQ(at<uint32_t>(block, 16), 5u);
  EXPECT_EQ(at<uint32_t>(block, 24), 7u);
  EXPECT_EQ(at<uint16_t>(block, 28), 64u);
  EXPECT_EQ(at<uint16_t>(block, 16 + 64), 3u);
  EXPECT_EQ(block.back(), std::byte{0});
}

TEST_F(AmdPlan, GridsAreBoundedInThreads) {
  const auto plan = plan_launch(chip("gfx1100"), 0, kernel("lookup"), code);
  EXPECT_TRUE(check_grid(*plan, {UINT32_MAX / 64, 1, 1}));
  expect_error(check_grid(*plan, {UINT32_MAX / 64 + 1, 1, 1}), Code::kInvalidArgument,
               "in one dimension");
  EXPECT_TRUE(check_grid(*plan, {0, 0, UINT32_MAX}));
}

}  // namespace
}  // namespace bm::amd
