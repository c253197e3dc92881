#include "drivers/cpu/program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "drivers/cpu/cpu_info.h"
#include "drivers/cpu/externals.h"
#include "runtime/base/elf.h"
#include "tests/unit/drivers/kernels.h"

namespace bm::cpu {
namespace {

using test::address;

std::unique_ptr<CpuProgram> load(const hal::CodeObject& code) {
  auto program = CpuProgram::load(code, host_arch_name());
  EXPECT_TRUE(program) << program.error().message;
  return program ? std::move(*program) : nullptr;
}

/// Protections of the mappings that hold [begin, begin + size), e.g. {"r-xp", "r--p"}.
std::vector<std::string> protections(uint64_t begin, uint64_t size) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> found;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long low = 0, high = 0;
    char text[8] = {};
    if (std::sscanf(line.c_str(), "%llx-%llx %7s", &low, &high, text) != 3) continue;
    if (low < begin + size && high > begin) found.emplace_back(text);
  }
  return found;
}

class EveryCodeModel : public testing::TestWithParam<std::string> {};

TEST_P(EveryCodeModel, RunsConstantsTablesAndData) {
  const auto program = load(test::kernel("look_up", 2, 1, GetParam()));
  ASSERT_NE(program, nullptr);
  std::vector<int32_t> in(200), out(200, -1);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int32_t>(i * 3);
  const uint64_t args[] = {address(out.data()), address(in.data()), 200};
  program->entry()(args, 0, 4, nullptr);
  const int32_t primes[] = {2, 3, 5, 7, 11, 13, 17, 19};
  for (size_t i = 0; i < in.size(); ++i) {
    const int32_t row = in[i] & 7;
    ASSERT_EQ(out[i], 1000 + (i % 2 == 0 ? primes[row] : row * row)) << i;
  }
}

TEST_P(EveryCodeModel, CallsTheMathLibrary) {
  const auto program = load(test::kernel("sines", 2, 1, GetParam()));
  ASSERT_NE(program, nullptr);
  std::vector<float> in(100), out(100);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i) * 0.37f;
  const uint64_t args[] = {address(out.data()), address(in.data()), 100};
  program->entry()(args, 0, 2, nullptr);
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], std::sin(in[i])) << i;
}

TEST_P(EveryCodeModel, CallsThroughAStoredFunctionAddress) {
  const auto program = load(test::kernel("move", 2, 1, GetParam()));
  ASSERT_NE(program, nullptr);
  const std::string in = "relocated";
  std::string out(in.size(), ' ');
  const uint64_t args[] = {address(out.data()), address(in.data()), in.size()};
  program->entry()(args, 0, 1, nullptr);
  EXPECT_EQ(out, in);
}

TEST_P(EveryCodeModel, RunsAPartOfTheGrid) {
  const auto program = load(test::kernel("saxpy", 3, 2, GetParam()));
  ASSERT_NE(program, nullptr);
  std::vector<float> x(300, 2), y(300, 1), out(300, -1);
  const uint64_t args[] = {address(out.data()), address(x.data()), address(y.data()), 300,
                           0x40400000};
  program->entry()(args, 1, 5, nullptr);
  EXPECT_EQ(out[63], -1);
  EXPECT_EQ(out[64], 7);
  EXPECT_EQ(out[299], 7);
}

TEST_P(EveryCodeModel, NoPageIsWritableAndExecutable) {
  const auto program = load(test::kernel("look_up", 2, 1, GetParam()));
  ASSERT_NE(program, nullptr);
  const auto found = protections(address(program->image().data()), program->image().size());
  ASSERT_FALSE(found.empty());
  size_t executable = 0;
  for (const std::string& text : found) {
    EXPECT_FALSE(text[1] == 'w' && text[2] == 'x') << text;
    executable += text[2] == 'x';
  }
  EXPECT_EQ(executable, 1u);
}

INSTANTIATE_TEST_SUITE_P(Objects, EveryCodeModel, testing::ValuesIn(test::kernel_variants()),
                         [](const auto& row) { return row.param; });

Error error_of(const hal::CodeObject& code) {
  const auto program = CpuProgram::load(code, host_arch_name());
  EXPECT_FALSE(program);
  return program ? Error{} : program.error();
}

TEST(CpuProgram, NamesAnUndefinedSymbol) {
  const Error error = error_of(test::kernel("undefined", 1, 0, "undefined"));
  EXPECT_EQ(error.code, Code::kUnsupported);
  EXPECT_NE(error.message.find("'system'"), std::string::npos) << error.message;
}

TEST(CpuProgram, EntryMustBeAFunction) {
  EXPECT_EQ(error_of(test::kernel("missing", 1, 0)).code, Code::kInvalidArgument);
  const Error data = error_of(test::kernel("shared_offset", 1, 0));
  EXPECT_EQ(data.code, Code::kInvalidArgument);
  EXPECT_NE(data.message.find("not a function"), std::string::npos) << data.message;
}

TEST(CpuProgram, OtherArchitectureAndBlockAreRefused) {
  auto code = test::kernel("iota", 1, 2);
  code.arch = "gfx1100";
  EXPECT_EQ(error_of(code).code, Code::kInvalidArgument);
  code = test::kernel("iota", 1, 2);
  code.block.x = 64;
  EXPECT_EQ(error_of(code).code, Code::kInvalidArgument);
  code = test::kernel("iota", 1, 2);
  code.image.resize(100);
  EXPECT_EQ(error_of(code).code, Code::kCorrupt);
}

TEST(CpuProgram, OneWrongByteNeverBreaksTheLoader) {
  const auto code = test::kernel("look_up", 2, 1);
  ASSERT_FALSE(code.image.empty());
  std::mt19937 random(7);
  std::uniform_int_distribution<size_t> place(0, code.image.size() - 1);
  std::uniform_int_distribution<int> value(0, 255);
  for (int i = 0; i < 2000; ++i) {
    auto broken = code;
    for (int byte = 0; byte < 3; ++byte)
      broken.image[place(random)] = static_cast<std::byte>(value(random));
    // Loading may succeed (the byte was code); it must not crash or leave a half-loaded program.
    const auto program = CpuProgram::load(broken, host_arch_name());
    EXPECT_TRUE(!program || (*program)->entry() != nullptr);
  }
}

TEST(Externals, AreSortedAndFound) {
  const auto table = externals();
  for (size_t i = 1; i < table.size(); ++i) EXPECT_LT(table[i - 1].name, table[i].name);
  for (const External& external : table) {
    EXPECT_NE(external.address, nullptr) << external.name;
    EXPECT_EQ(find_external(external.name), external.address);
  }
  EXPECT_EQ(find_external("system"), nullptr);
  EXPECT_EQ(find_external(""), nullptr);
}

#if defined(__x86_64__)
TEST(Externals, SixteenBitFloatsRoundOnce) {
  __extension__ using Half = _Float16;
  const auto bits = [](Half value) { return std::bit_cast<uint16_t>(value); };
  const auto to_bfloat =
      reinterpret_cast<Half (*)(float)>(const_cast<void*>(find_external("__truncsfbf2")));
  EXPECT_EQ(bits(to_bfloat(1.0f)), 0x3f80);
  EXPECT_EQ(bits(to_bfloat(1.00390625f)), 0x3f80) << "tie to even";
  EXPECT_EQ(bits(to_bfloat(1.01171875f)), 0x3f82) << "tie to even";
  EXPECT_EQ(bits(to_bfloat(-3.4e38f)), 0xff80) << "beyond the largest";
  EXPECT_EQ(bits(to_bfloat(std::bit_cast<float>(0x7f800001u))), 0x7fc0) << "NaN stays NaN";
  const auto from_double =
      reinterpret_cast<Half (*)(double)>(const_cast<void*>(find_external("__truncdfbf2")));
  EXPECT_EQ(bits(from_double(1.00390625 + 1e-12)), 0x3f81)
      << "a float in between would round to the tie";
  EXPECT_EQ(bits(from_double(-1.00390625 - 1e-12)), 0xbf81);
  EXPECT_EQ(bits(from_double(1.01171875 - 1e-12)), 0x3f81);
  EXPECT_EQ(bits(from_double(1e300)), 0x7f80);
  const auto to_half =
      reinterpret_cast<Half (*)(float)>(const_cast<void*>(find_external("__truncsfhf2")));
  EXPECT_EQ(bits(to_half(65504.0f)), 0x7bff);
}
#endif

}  // namespace
}  // namespace bm::cpu
