// The documents that repeat what the program knows are compared with it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "runtime/base/env.h"
#include "tools/bellmetal/exit_code.h"

namespace bm::cli {
namespace {

// Tests run in the source folder.
std::string read(const char* path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.is_open()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Documents, EnvironmentPageListsEveryVariableAsTheProgramDoes) {
  const std::string page = read("docs/environment.md");
  size_t num_rows = 0;
  for (size_t at = page.find("\n| `"); at != std::string::npos; at = page.find("\n| `", at + 1)) {
    ++num_rows;
  }
  for (const EnvValue& v : all_env()) {
    const std::string fallback = v.fallback.empty() ? "(empty)" : v.fallback;
    const std::string row = fmt::format("| `{}` | {} | {} |\n", v.name, fallback, v.help);
    EXPECT_NE(page.find(row), std::string::npos) << "docs/environment.md lacks the row\n" << row;
  }
  EXPECT_EQ(num_rows, all_env().size()) << "a row of docs/environment.md has no variable";
}

TEST(Documents, CommandLinePageRepeatsTheExitCodes) {
  EXPECT_NE(read("docs/cli.md").find(exit_code_help()), std::string::npos)
      << "docs/cli.md must hold this text:\n"
      << exit_code_help();
}

TEST(Documents, CommandLinePageNamesEveryCommand) {
  const std::string page = read("docs/cli.md");
  for (const char* command : {"generate", "chat", "serve", "devices", "bench", "selftest", "disasm",
                              "explain", "cache", "env", "version", "tokenize", "inspect"}) {
    EXPECT_NE(page.find(fmt::format("\n## {}\n", command)), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace bm::cli
