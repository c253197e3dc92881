#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/exit_code.h"

namespace bm::cli {
namespace {

struct Outcome {
  int exit = -1;
  std::string out, err;
};

Outcome run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "bellmetal");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.exit = run_command_line(static_cast<int>(arguments.size()), arguments.data());
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

constexpr const char* kBundled = "models/bundled/licence.gguf";

TEST(CommandLine, WithoutACommandPrintsHelpAsAUsageError) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.exit, kUsage);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("generate"), std::string::npos);
}

TEST(CommandLine, UnknownCommandsAndOptionsAreUsageErrors) {
  EXPECT_EQ(run({"fly"}).exit, kUsage);
  EXPECT_EQ(run({"devices", "--colour"}).exit, kUsage);
  EXPECT_EQ(run({"cache"}).exit, kUsage);
  EXPECT_EQ(run({"bench", "everything"}).exit, kUsage);
  EXPECT_EQ(run({"bench", "cpu", "--seconds", "nan"}).exit, kUsage);
  EXPECT_EQ(run({"bench", "cpu", "--seconds", "-1"}).exit, kUsage);
  EXPECT_EQ(run({"bench", "cpu", "--device", "NOPE"}).exit, kUsage);
}

TEST(CommandLine, GenerateRefusesValuesOutOfRange) {
  EXPECT_EQ(run({"generate"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf"}).exit, kUsage) << "the prompt is missing";
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--top-p", "1.5"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--temperature", "-1"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--temperature", "nan"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--max-tokens", "0"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--max-tokens", "-3"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--top-k", "-1"}).exit, kUsage);
  EXPECT_EQ(run({"generate", "m.gguf", "p", "--seed", "x"}).exit, kUsage);
}

TEST(CommandLine, WhatIsNotKnownIsNamedWithTheNearestThatIs) {
  const auto expect = [](std::vector<const char*> arguments, const char* given, const char* meant) {
    const Outcome outcome = run(std::move(arguments));
    EXPECT_EQ(outcome.exit, kUsage);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(given), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(fmt::format("did you mean \"{}\"?", meant)), std::string::npos)
        << outcome.err;
  };
  expect({"genrate", "m.gguf", "p"}, "\"genrate\"", "generate");
  expect({"device"}, "\"device\"", "devices");
  expect({"bench", "replya"}, "\"replya\"", "replay");
  expect({"cache", "clean"}, "\"clean\"", "clear");
  expect({"devices", "--jsno"}, "\"--jsno\"", "--json");
  expect({"generate", "m.gguf", "p", "--max-token=3"}, "\"--max-token\"", "--max-tokens");
  EXPECT_EQ(run({"zzzzzzzzzzzz"}).err.find("did you mean"), std::string::npos);
}

TEST(CommandLine, EnvNamesVariablesThatAreMistyped) {
  ASSERT_EQ(::setenv("BM_TRHEADS", "2", 1), 0);
  const Outcome text = run({"env"}), json = run({"env", "--json"});
  ::unsetenv("BM_TRHEADS");
  EXPECT_EQ(text.exit, kOk);
  EXPECT_NE(text.err.find("BM_TRHEADS is none of these, did you mean \"BM_THREADS\"?"),
            std::string::npos)
      << text.err;
  EXPECT_NE(json.out.find("\"BM_TRHEADS\""), std::string::npos) << json.out;
}

TEST(CommandLine, ExplainSaysThatAnInputAloneRunsNothing) {
  const Outcome outcome = run({"explain", "f32[4]", "--device", "NULL", "--no-measure"});
  EXPECT_EQ(outcome.exit, kUsage);
  EXPECT_NE(outcome.err.find("f32[4] computes nothing"), std::string::npos) << outcome.err;
}

TEST(CommandLine, UnitsOfACardThatIsNotHereAreANumber) {
  const std::string file = testing::TempDir() + "bm-units.bundle";
  for (const char* arch : {"gfx1100,0", "gfx1100,-1", "gfx1100,x", "gfx1100,", "sm_90,4097"}) {
    const Outcome outcome = run({"bake", kBundled, "--arch", arch, "-o", file.c_str()});
    EXPECT_EQ(outcome.exit, kUsage) << arch << outcome.out;
    EXPECT_NE(outcome.err.find("number of compute units"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run({"inspect", kBundled, "--device", "NULL:LLVM::gfx1100,84"}).exit, kOk);
}

TEST(CommandLine, AnArgumentTooManyNamesAllOfTheCommand) {
  const Outcome outcome = run({"cache", "stats", "x"});
  EXPECT_EQ(outcome.exit, kUsage);
  EXPECT_NE(outcome.err.find("`bellmetal cache stats --help`"), std::string::npos) << outcome.err;
}

// docs/cli.md: a file that is missing, malformed or not writable is 4, whoever reads or writes it.
TEST(CommandLine, TunedSchedulesOfABadFileAreABadFile) {
  const std::string folder = testing::TempDir() + "bm-tuned";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/text") << "hello\n";
  const ScopedSetting used("BM_CACHE", "1");
  for (const char* name : {"", "/none", "/text"}) {
    const Outcome outcome = run({"cache", "import-tuned", (folder + name).c_str()});
    EXPECT_EQ(outcome.exit, kBadFile) << outcome.err;
    EXPECT_NE(outcome.err.find(folder), std::string::npos) << outcome.err;
  }
  for (const char* name : {"", "/none/file"})
    EXPECT_EQ(run({"cache", "export-tuned", (folder + name).c_str()}).exit, kBadFile) << name;
  std::filesystem::remove_all(folder);
}

TEST(CommandLine, VersionIsAnOptionToo) {
  const Outcome option = run({"--version"}), command = run({"version"});
  EXPECT_EQ(option.exit, kOk);
  EXPECT_EQ(option.out, command.out);
}

TEST(CommandLine, SeedsAreWholeNumbersThatFit) {
  for (const char* seed : {"-1", "+1", "1.5", "18446744073709551616", "0x", ""}) {
    const Outcome outcome = run({"generate", "m.gguf", "p", "--seed", seed});
    EXPECT_EQ(outcome.exit, kUsage) << seed;
    EXPECT_NE(outcome.err.find("--seed"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run({"generate", "/nowhere/m.gguf", "p", "--seed", "18446744073709551615"}).exit,
            kBadFile);
}

TEST(CommandLine, EveryCommandHasHelpWithExamplesAndJson) {
  const std::vector<std::vector<const char*>> commands = {{"generate"},
                                                          {"devices"},
                                                          {"bench", "replay"},
                                                          {"bench", "overhead"},
                                                          {"selftest"},
                                                          {"disasm"},
                                                          {"explain"},
                                                          {"cache", "stats"},
                                                          {"cache", "clear"},
                                                          {"cache", "trim"},
                                                          {"pci", "list"},
                                                          {"pci", "bind"},
                                                          {"pci", "restore"},
                                                          {"gpu", "boot"},
                                                          {"env"},
                                                          {"version"},
                                                          {"bench", "latency"},
                                                          {"bench", "bandwidth"},
                                                          {"bench", "matmul"},
                                                          {"bench", "cpu"},
                                                          {"bench", "gpu"},
                                                          {"chat"},
                                                          {"serve"},
                                                          {"bake"},
                                                          {"doctor"},
                                                          {"tokenize"},
                                                          {"inspect"}};
  for (std::vector<const char*> command : commands) {
    command.push_back("--help");
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit, kOk) << command[0];
    EXPECT_NE(outcome.out.find("Examples:\n  "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("--json"), std::string::npos) << outcome.out;
  }
  EXPECT_NE(run({"--help"}).out.find("Exit codes:"), std::string::npos);
}

TEST(CommandLine, WhatTheModelCannotTakeIsAMistakeOfTheOptions) {
  for (const std::vector<const char*>& options : std::vector<std::vector<const char*>>{
           {"--ctx-size", "513"}, {"--logit-bias", "288+1"}, {"-l", "287+1", "-l", "288-inf"}}) {
    std::vector<const char*> line = {"generate", kBundled, "a", "-n", "1", "--device", "NULL"};
    line.insert(line.end(), options.begin(), options.end());
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.exit, kUsage) << options[0] << outcome.err;
    EXPECT_NE(outcome.err.find(options[0][2] == 'c' ? "513" : "288"), std::string::npos)
        << outcome.err;
  }
}

TEST(CommandLine, ABundleThatIsNoFileIsSaidBeforeTheModelIsLoaded) {
  for (const char* const bundle : {"/nowhere/b", "models"}) {
    const Outcome outcome =
        run({"generate", kBundled, "the prompt", "--device", "NULL", "--bundle", bundle});
    EXPECT_EQ(outcome.exit, kBadFile) << outcome.err;
    EXPECT_EQ(outcome.err.find("the prompt"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(bundle), std::string::npos) << outcome.err;
  }
}

TEST(CommandLine, TokenizeGivesTheIdsAndTakesThemBack) {
  const Outcome ids = run({"tokenize", kBundled, "a b", "--ids"});
  // <unk> <s> </s>, then byte b at 3 + b, then the mark for a space.
  EXPECT_EQ(ids.out, "1,100,259,101\n") << ids.err;
  EXPECT_EQ(run({"tokenize", kBundled, "a b", "--ids", "--no-bos"}).out, "100,259,101\n");
  EXPECT_EQ(run({"tokenize", kBundled, "--decode", "100,259,101"}).out, "a b\n");
  EXPECT_EQ(run({"tokenize", kBundled, "<s>", "--ids", "--no-bos", "--parse-special"}).out, "1\n");
  EXPECT_EQ(run({"tokenize", kBundled, "<s>", "--ids", "--no-bos"}).out, "63,118,65\n");
  const auto json = nlohmann::json::parse(run({"tokenize", kBundled, "a", "--json"}).out);
  EXPECT_EQ(json["count"], 2);
  EXPECT_EQ(json["tokens"][0]["special"], true);
  EXPECT_EQ(json["tokens"][1], (nlohmann::json{{"id", 100}, {"piece", "a"}, {"special", false}}));
  EXPECT_EQ(run({"tokenize", kBundled}).exit, kUsage);
  EXPECT_EQ(run({"tokenize", kBundled, "a", "--decode", "1"}).exit, kUsage);
  EXPECT_EQ(run({"tokenize", kBundled, "--decode", "999999"}).exit, kUsage);
  // What --ids prints of nothing is no token, not token 0.
  EXPECT_EQ(run({"tokenize", kBundled, "", "--ids", "--no-bos"}).out, "\n");
  EXPECT_EQ(run({"tokenize", kBundled, "--decode", ""}).out, "\n");
  for (const char* const wrong : {"1,,2", "1,", ",1", "1;2", "a"})
    EXPECT_EQ(run({"tokenize", kBundled, "--decode", wrong}).exit, kUsage) << wrong;
  EXPECT_EQ(run({"tokenize", kBundled, "-f", "/nowhere/text"}).exit, kBadFile);
  EXPECT_EQ(run({"tokenize", "/nowhere/m.gguf", "a"}).exit, kBadFile);
}

TEST(CommandLine, InspectAddsUpWhatIsInAFile) {
  const auto json = nlohmann::json::parse(run({"inspect", kBundled, "--json"}).out);
  EXPECT_EQ(json["metadata"]["general.architecture"], "llama");
  EXPECT_EQ(json["metadata"]["tokenizer.ggml.tokens"]["count"], 288);
  uint64_t bytes = 0;
  for (const auto& tensor : json["tensors"]) bytes += tensor["bytes"].get<uint64_t>();
  EXPECT_EQ(json["weight_bytes"], bytes);
  EXPECT_EQ(
      json["types"]["F16"]["bytes"].get<uint64_t>() + json["types"]["F32"]["bytes"].get<uint64_t>(),
      bytes);
  const auto first = json["tensors"][0];
  EXPECT_EQ(first["shape"], (nlohmann::json{288, 256}));
  EXPECT_EQ(first["bytes"], 288 * 256 * 2);
  const std::string text = run({"inspect", kBundled}).out;
  EXPECT_NE(text.find("token_embd.weight"), std::string::npos);
  EXPECT_EQ(run({"inspect", kBundled, "--no-tensors"}).out.find("token_embd.weight"),
            std::string::npos);
  EXPECT_EQ(run({"inspect", "/nowhere/m.gguf"}).exit, kBadFile);
  EXPECT_EQ(run({"inspect", "docs/cli.md"}).exit, kBadFile);
}

TEST(CommandLine, VersionIsOneJsonObject) {
  const Outcome outcome = run({"version", "--json"});
  EXPECT_EQ(outcome.exit, kOk);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["version"], "0.1.0");
}

TEST(CommandLine, EnvListsEveryVariableWithItsSource) {
  const ScopedSetting debug("DEBUG", "2");
  const Outcome outcome = run({"env", "--json"});
  const auto rows = nlohmann::json::parse(outcome.out)["variables"];
  ASSERT_EQ(rows.size(), all_env().size());
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [](const auto& row) { return row["name"] == "DEBUG"; });
  ASSERT_NE(found, rows.end());
  EXPECT_EQ((*found)["value"], "2");
  EXPECT_EQ((*found)["source"], "scope");
  for (const EnvValue& variable : all_env()) {
    EXPECT_NE(run({"env"}).out.find(variable.name), std::string::npos);
  }
}

TEST(CommandLine, DevicesListsTheCpuAsUsable) {
  const Outcome outcome = run({"devices", "--json"});
  EXPECT_EQ(outcome.exit, kOk);
  const auto rows = nlohmann::json::parse(outcome.out)["devices"];
  const auto is_cpu = [](const auto& row) { return row["name"] == "CPU" && row["usable"] == true; };
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), is_cpu)) << outcome.out;
  EXPECT_NE(run({"devices"}).out.find("CPU"), std::string::npos);
}

TEST(CommandLine, DevicesDoesNotLoadTheCompiler) {
  EXPECT_EQ(run({"devices"}).exit, kOk);
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
  EXPECT_NE(text.find("libfmt"), std::string::npos) << "this test reads the wrong file";
  // An OpenCL platform may bring an LLVM of its own; ours stays out.
  EXPECT_EQ(text.find("bellmetal_llvm"), std::string::npos);
}

TEST(CommandLine, CacheStatsTrimAndClearReportTheFile) {
  for (const std::vector<const char*>& command :
       {std::vector<const char*>{"cache", "stats", "--json"},
        {"cache", "trim", "10M", "--json"},
        {"cache", "clear", "--json"}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
    EXPECT_NE(nlohmann::json::parse(outcome.out)["path"], "") << outcome.out;
  }
  EXPECT_EQ(run({"cache", "trim", "lots"}).exit, kUsage);
}

}  // namespace
}  // namespace bm::cli
