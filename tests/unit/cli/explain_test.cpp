#include <gtest/gtest.h>
#include <sys/resource.h>

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

/// Norms, queries with keys and values, two for places and two for attention, the matrix behind it,
/// and three of the feed-forward: what stands outside of the layers is 4 launches.
TEST(Explain, ALayerTakesFewLaunchesForAToken) {
  constexpr int kLayers = 4, kMost = 12, kOutside = 4;
  for (const char* device : {"NULL:PTX::sm_90", "NULL:LLVM::gfx1100"}) {
    int launches = 0;
    for (const auto& k :
         kernels({"models/bundled/licence.gguf", "--device", device, "--no-measure"}))
      if (k["part"].get<std::string>().starts_with("decode step"))
        launches += k["launches"].get<int>();
    EXPECT_LE(launches, kLayers * kMost + kOutside) << device;
  }
}

/// What the table of a card that is not here is made of; machine code where there is a toolchain.
void check_card(const nlohmann::json& k, const char* instruction) {
  ASSERT_EQ(k["launches"], 1);
  EXPECT_GT(k["groups"], 0);
  EXPECT_GT(k["shared_bytes"].get<int>() + k["matrix_flops"].get<double>(), 0);
  EXPECT_GT(k["predicted_us"], 0);
  EXPECT_TRUE(k["bound_by"] == "matrix" || k["bound_by"] == "issue" || k["bound_by"] == "memory");
  EXPECT_GT(k["of_roof"], 0);
  EXPECT_LE(k["of_roof"], 1);
  EXPECT_TRUE(k["measured_us"].is_null()) << "nothing runs on NULL";
  const std::string assembly = k["assembly"];
  if (k["registers"].is_null()) {
    EXPECT_TRUE(assembly.starts_with(";") || assembly.starts_with("//")) << assembly;
    std::printf("no toolchain: %s\n", assembly.substr(0, assembly.find('\n')).c_str());
    return;
  }
  EXPECT_GT(k["registers"], 16);
  EXPECT_EQ(k["spill_bytes"], 0);
  EXPECT_GT(k["code_bytes"], 100);
  EXPECT_GT(k["waves"], 0);
  EXPECT_LE(k["waves"], k["max_waves"]);
  EXPECT_NE(assembly.find(instruction), std::string::npos) << assembly;
}

TEST(Explain, CardsThatAreNotHereShowTheirCodeAndWhatItAsksFor) {
  constexpr const char* kProduct = "f16[512, 512] @ f16[512, 512]";
  const auto of = [&](const char* device) { return kernels({kProduct, "--device", device})[0]; };
  check_card(of("NULL:LLVM::gfx1100"), "v_wmma_f32_16x16x16_f16");
  const auto nv = of("NULL:PTX::sm_80");
  EXPECT_NE(nv["source"].get<std::string>().find("mma.sync"), std::string::npos) << "PTX";
  check_card(nv, nv["assembly"].get<std::string>().starts_with("//") ? "mma.sync" : "HMMA");
  // 2·512³ operations, all of them by matrix instructions.
  EXPECT_EQ(nv["matrix_flops"], 2.0 * 512 * 512 * 512);
  const Ended table = run({kProduct, "--device", "NULL:PTX::sm_80", "--stage", "schedule"});
  for (const char* title : {"REGISTERS", "SHARED", "SPILLS", "WAVES", "PREDICTED", "OF ROOF"})
    EXPECT_NE(table.out.find(title), std::string::npos) << title;
}

TEST(Explain, OneRowOfAVocabularyHasWorkForAllComputeUnits) {
  for (const char* what : {"argmax(f32[1, 128256], 1)", "softmax(f32[1, 128256])"})
    for (const char* device : {"NULL:PTX::sm_90", "NULL:LLVM::gfx1100"}) {
      double most = 0;
      for (const auto& k : kernels({what, "--device", device, "--stage", "schedule"})) {
        // Only what adds up the results of the parts is a single group.
        const bool is_long = k["bytes"] > 100'000;
        if (is_long) {
          EXPECT_GE(k["groups"], 72) << what << ", " << k["kernel"];
        }
        most = std::max(most, k["groups"].get<double>());
      }
      EXPECT_GE(most, 72);
    }
}

TEST(Explain, NullNamesWhatItDoesNotStandFor) {
  const Ended unknown = run({"f32[2]+1", "--device", "NULL:::x"});
  EXPECT_NE(unknown.exit, kOk);
  EXPECT_NE(unknown.err.find("architecture \"x\""), std::string::npos) << unknown.err;
  const Ended renderer = run({"f32[2]+1", "--device", "NULL:PTX:gfx1100"});
  EXPECT_NE(renderer.exit, kOk);
  EXPECT_NE(renderer.err.find("AMD devices have LLVM and HIP"), std::string::npos) << renderer.err;
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

/// Resident memory at its highest, in KiB. Source: getrusage(2).
int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Explain, InputsAreWrittenForAMeasurementOnly) {
  const int64_t before = peak_memory();
  const Ended nothing = run({"f32[100000000]", "--device", "CPU"});
  EXPECT_EQ(nothing.exit, kUsage);
  EXPECT_NE(nothing.err.find("computes nothing"), std::string::npos) << nothing.err;
  const auto k = kernels({"sum(f32[100000000])", "--device", "CPU", "--no-measure"});
  EXPECT_GE(k[0]["bytes"], 400'000'000);
  EXPECT_LT(peak_memory() - before, 200 << 10);
}

}  // namespace
}  // namespace bm::cli
