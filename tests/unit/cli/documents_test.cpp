// The documents that repeat what the program knows are compared with it.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <CLI/CLI.hpp>

#include "runtime/base/env.h"
#include "tools/bellmetal/commands.h"
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

/// Long and short names, "--json" and "-o", of a command and all below it.
std::set<std::string> options_of(const CLI::App& command) {
  std::set<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // for the program's own processes
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
    for (const std::string& name : option->get_snames()) names.insert("-" + name);
  }
  for (const CLI::App* one : command.get_subcommands([](const CLI::App*) { return true; }))
    names.merge(options_of(*one));
  return names;
}

/// Options that a text writes: words that begin with dashes and are no rules of tables.
std::set<std::string> options_in(const std::string& text) {
  std::set<std::string> names;
  const std::regex option("(^|[^-A-Za-z0-9_/.])(--?[A-Za-z][A-Za-z0-9-]*)");
  for (auto it = std::sregex_iterator(text.begin(), text.end(), option);
       it != std::sregex_iterator(); ++it)
    names.insert((*it)[2]);
  return names;
}

/// The text of "## name" up to the next heading of its kind.
std::string section_of(const std::string& page, const std::string& name) {
  const size_t begin = page.find("\n## " + name + "\n");
  if (begin == std::string::npos) return {};
  return page.substr(begin, page.find("\n## ", begin + 1) - begin);
}

// serve and pci have pages of their own, and chat shares the table of generate.
TEST(Documents, CommandLinePageNamesEveryCommandAndEveryOption) {
  CLI::App app("", "bellmetal");
  cli::Run run;
  add_commands(app, run);
  const std::string page = read("docs/cli.md");
  const std::set<std::string> all = options_of(app);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& name = command->get_name();
    std::string text = section_of(page, name);
    EXPECT_NE(text, "") << "docs/cli.md has no section " << name;
    if (name == "chat") text += section_of(page, "generate");
    if (name == "serve") text += read("docs/serving.md");
    if (name == "pci") text += read("docs/transport.md");
    const std::set<std::string> written = options_in(text);
    for (const std::string& option : options_of(*command)) {
      if (option == "--help" || option == "-h" || option == "--json") continue;  // of all commands
      EXPECT_TRUE(written.contains(option)) << "docs/cli.md, " << name << ": no word on " << option;
    }
    for (const CLI::App* one : command->get_subcommands([](const CLI::App*) { return true; }))
      EXPECT_NE(text.find(one->get_name()), std::string::npos)
          << "docs/cli.md, " << name << ": no word on " << one->get_name();
  }
}

TEST(Documents, CommandLinePageNamesNoOptionThatIsNone) {
  CLI::App app("", "bellmetal");
  cli::Run run;
  add_commands(app, run);
  std::set<std::string> all = options_of(app);
  all.insert({"--version", "--help", "-n", "-f", "-p"});  // those of mpirun and nvidia-modprobe
  for (const char* path : {"docs/cli.md"}) {
    const std::string page = read(path);
    for (const std::string& option : options_in(page))
      if (option.starts_with("--"))
        EXPECT_TRUE(all.contains(option)) << path << " names " << option;
  }
}

}  // namespace
}  // namespace bm::cli
