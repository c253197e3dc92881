// Loading kernels: errors a user can act on, limits, binaries.

#include "drivers/cl/program.h"
#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;

TEST(OpenClProgram, QuoteLineFindsThePlaceCompilersPrint) {
  constexpr std::string_view kSource = "first\n  second;\nthird";
  EXPECT_EQ(quote_line("/tmp/a.cl:2:10: error: no", kSource), "line 2:   second;");
  EXPECT_EQ(quote_line("<kernel>:3:1: error", kSource), "line 3: third");
  EXPECT_EQ(quote_line("note: 7\nbuilt in 2:x\n<src>:1:1: error", kSource), "line 1: first");
  EXPECT_EQ(quote_line("a.cl:9:1: error", kSource), "");
  EXPECT_EQ(quote_line("a.cl:0:1: error", kSource), "");
  EXPECT_EQ(quote_line("a.cl:2:", kSource), "");
  EXPECT_EQ(quote_line("out of registers", kSource), "");
  EXPECT_EQ(quote_line("", ""), "");
}

TEST(OpenClProgram, BuildErrorShowsLineAndLog) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(code(*device, "broken",
                                         "kernel void broken(global float* out) {\n"
                                         "  out[0] = no_such_function(1);\n"
                                         "}\n",
                                         1, 0));
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, Code::kCompile);
  const std::string& message = program.error().message;
  EXPECT_NE(message.find("kernel 'broken'"), std::string::npos) << message;
  EXPECT_NE(message.find("line 2:   out[0] = no_such_function(1);"), std::string::npos) << message;
  EXPECT_NE(message.find("error"), std::string::npos) << message;
}

TEST(OpenClProgram, MissingEntryIsACompileError) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(code(*device, "other", "kernel void one() {}\n", 0, 0));
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, Code::kCompile);
  EXPECT_NE(program.error().message.find("other"), std::string::npos);
}

TEST(OpenClProgram, KernelAndCodeObjectMustAgreeOnArguments) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  hal::CodeObject object = add_code(*device);
  object.num_vars = 1;
  const auto program = device->load(object);
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, Code::kInvalidArgument) << program.error().message;
}

TEST(OpenClProgram, LocalMemoryInTheTextCounts) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const std::string text = fmt::format(
      "kernel void big(global int* out, long n) {{\n"
      "  local int tile[{}];\n"
      "  tile[get_local_id(0)] = (int)n;\n"
      "  barrier(CLK_LOCAL_MEM_FENCE);\n"
      "  out[get_global_id(0)] = tile[get_local_id(0) ^ 1];\n"
      "}}\n",
      device->arch().shared_memory_bytes / 4 + 64);
  const auto program = device->load(code(*device, "big", text, 1, 1));
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, Code::kUnsupported) << program.error().message;
}

TEST(OpenClProgram, WorkGroupsShareLocalMemory) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto loaded = device->load(code(*device, "turn",
                                        "kernel void turn(global long* x) {\n"
                                        "  local long tile[64];\n"
                                        "  const int i = get_local_id(0);\n"
                                        "  tile[i] = x[get_global_id(0)];\n"
                                        "  barrier(CLK_LOCAL_MEM_FENCE);\n"
                                        "  x[get_global_id(0)] = tile[63 - i];\n"
                                        "}\n",
                                        1, 0));
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto x = visible(*device, 128 * 8), arguments = words(*device);
  for (uint64_t i = 0; i < 128; ++i) word(*x, i) = i;
  word(*arguments) = address(*x);
  EXPECT_OK(run(*device, {hal::Dispatch{loaded->get(), arguments->va(), {.x = 2}}}));
  for (uint64_t i = 0; i < 128; ++i) EXPECT_EQ(word(*x, i), i / 64 * 64 + 63 - i % 64);
}

TEST(OpenClProgram, BinaryRunsLikeTheText) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(add_code(*device));
  ASSERT_TRUE(program);
  const auto binary = program_binary(**program);
  ASSERT_TRUE(binary) << binary.error().message;
  hal::CodeObject object = add_code(*device);
  object.image = *binary;
  const auto again = device->load(object);
  ASSERT_TRUE(again) << again.error().message;
  const auto x = visible(*device, 64 * 8), arguments = words(*device);
  word(*arguments, 0) = address(*x);
  word(*arguments, 1) = 64;
  word(*arguments, 2) = 5;
  EXPECT_OK(run(*device, {hal::Dispatch{again->get(), arguments->va(), {}}}));
  EXPECT_EQ(word(*x, 63), 5u);
}

TEST(OpenClProgram, BinaryOfAnotherDriverIsRefused) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(add_code(*device));
  ASSERT_TRUE(program);
  hal::CodeObject object = add_code(*device);
  object.image = *program_binary(**program);
  object.image[12] ^= std::byte{1};  // a letter of the identity
  EXPECT_EQ(device->load(object).error().code, Code::kInvalidArgument);
  object.image.resize(14);  // within the identity
  EXPECT_EQ(device->load(object).error().code, Code::kCorrupt);
}

TEST(OpenClProgram, BinaryOfPoclWithoutItsProgramIsRefused) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(add_code(*device));
  ASSERT_TRUE(program);
  hal::CodeObject object = add_code(*device);
  object.image = *program_binary(**program);
  const std::string_view text(reinterpret_cast<const char*>(object.image.data()),
                              object.image.size());
  const size_t at = text.find("/program.bc");
  if (at == std::string_view::npos) GTEST_SKIP() << "not PoCL";
  object.image[at + 1] = std::byte{'P'};
  EXPECT_EQ(device->load(object).error().code, Code::kUnsupported);
}

TEST(OpenClProgram, DisassemblyIsTextOrRefused) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto text = device->disassemble(add_code(*device));
  EXPECT_TRUE(text || text.error().code == Code::kUnsupported) << text.error().message;
}

cl_int out_of_memory(cl_program, cl_uint, const cl_device_id*, const char*,
                     void (*)(cl_program, void*), void*) {
  return CL_OUT_OF_HOST_MEMORY;
}

TEST(OpenClProgram, BuildThatRanOutOfMemorySaysSo) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clBuildProgram = out_of_memory;
  const auto device = open_on(api);
  EXPECT_EQ(device->load(add_code(*device)).error().code, Code::kOutOfMemory);
  EXPECT_OK(device->status());
}

}  // namespace
}  // namespace bm::cl
