#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/exit_code.h"
#include "tools/bellmetal/explain.h"

namespace bm::cli {
namespace {

struct Ended {
  int exit = -1;
  std::string out, err;
};

Ended run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"bellmetal", "explain"});
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ended e;
  e.exit = run_command_line(static_cast<int>(arguments.size()), arguments.data());
  e.out = testing::internal::GetCapturedStdout();
  e.err = testing::internal::GetCapturedStderr();
  return e;
}

nlohmann::json kernels(std::vector<const char*> arguments) {
  arguments.push_back("--json");
  const Ended e = run(arguments);
  EXPECT_EQ(e.exit, kOk) << e.out;
  return nlohmann::json::parse(e.out)["kernels"];
}

TEST(Explain, ShowsEveryStageOfAKernel) {
  const auto list = kernels({"relu(f32[64, 64] + 1)", "--device", "CPU"});
  ASSERT_EQ(list.size(), 1U);
  const auto& k = list[0];
  EXPECT_NE(k["ir"].get<std::string>().find("load"), std::string::npos);
  EXPECT_NE(k["schedule"].get<std::string>().find("loop 0: r"), std::string::npos);
  EXPECT_NE(k["schedule"].get<std::string>().find("blocks: "), std::string::npos);
  EXPECT_NE(k["program"].get<std::string>(), "");
  EXPECT_NE(k["source"].get<std::string>().find("define"), std::string::npos) << "LLVM IR";
  EXPECT_NE(k["assembly"].get<std::string>().find("ret"), std::string::npos);
}

TEST(Explain, CountsWorkAndMeasuresIt) {
  const auto k = kernels({"sum(f32[256, 256], 1)", "--device", "CPU", "--stage", "schedule"})[0];
  EXPECT_FALSE(k.contains("assembly"));
  EXPECT_GE(k["flops"], 256 * 255);
  EXPECT_EQ(k["bytes"], 4 * (256 * 256 + 256));
  EXPECT_EQ(k["launches"], 1);
  EXPECT_GT(k["predicted_us"], 0);
  EXPECT_GT(k["measured_us"], 0);
  EXPECT_GT(k["of_roof"], 0);
  EXPECT_TRUE(k["bound_by"] == "memory" || k["bound_by"] == "arithmetic") << k["bound_by"];
}

TEST(Explain, CanLeaveMeasuringOut) {
  const auto k = kernels({"f32[8] * 2", "--device", "CPU", "--no-measure"})[0];
  EXPECT_TRUE(k["measured_us"].is_null());
  EXPECT_TRUE(k["predicted_us"].is_null());
}

TEST(Explain, ListsTheKernelsOfAModelAndShowsTheChosenOnes) {
  const char* model = "models/bundled/licence.gguf";
  const auto all = kernels({model, "--device", "CPU", "--no-measure"});
  ASSERT_GT(all.size(), 10U);
  bool has_prompt = false, has_step = false;
  for (const auto& k : all) {
    EXPECT_FALSE(k.contains("ir"));
    has_prompt = has_prompt || k["part"].get<std::string>().starts_with("prompt");
    has_step = has_step || k["part"].get<std::string>().starts_with("decode step");
  }
  EXPECT_TRUE(has_prompt && has_step);
  const std::string name = all[0]["kernel"];
  for (const auto& k : kernels(
           {model, "--device", "CPU", "--no-measure", "--kernel", name.c_str(), "--stage", "ir"}))
    EXPECT_NE(k["ir"].get<std::string>(), "");
}

TEST(Explain, MistakesAreNamed) {
  EXPECT_EQ(run({"nonsense("}).exit, kUsage);
  EXPECT_EQ(run({"/nowhere/model.gguf"}).exit, kBadFile);
  EXPECT_EQ(run({"f32[2]+1", "--kernel", "xyz", "--device", "CPU"}).exit, kUsage);
  EXPECT_EQ(run({"f32[2]+1", "--stage", "soup"}).exit, kUsage);
  EXPECT_NE(run({"f32[2]+1", "--device", "REF"}).err.find("nothing to explain"), std::string::npos);
}

TEST(Roofline, IsTheSlowerOfArithmeticAndMemory) {
  Roofline r(1);
  EXPECT_GT(r.flops_per_second(), 1e8);
  EXPECT_EQ(r.flops_per_second(), r.flops_per_second()) << "measured once";
  EXPECT_FALSE(r.roof(1e12, 1).is_memory);
  EXPECT_TRUE(r.roof(1, 1e9).is_memory);
  EXPECT_DOUBLE_EQ(r.roof(2e12, 1).seconds, 2e12 / r.flops_per_second());
}

}  // namespace
}  // namespace bm::cli
