#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/exit_code.h"

namespace bm::cli {

std::string examples(std::string_view lines) {
  std::string text = "Examples:\n";
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    text += fmt::format("  {}\n", lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return text;
}

int run_command_line(int argc, const char* const* argv) {
  CLI::App app("GPU drivers in user space and a tensor runtime on top of them", "bellmetal");
  app.require_subcommand(1);
  app.get_formatter()->column_width(28);
  app.footer(std::string("Every command has --help with examples, and --json.\n\n") +
             exit_code_help());
  Run run;
  add_generate(app, run);
  add_devices(app, run);
  add_bake(app, run);
  add_bench(app, run);
  add_selftest(app, run);
  add_disasm(app, run);
  add_explain(app, run);
  add_cache(app, run);
  add_env(app, run);
  add_version(app, run);
  if (argc <= 1) {
    fmt::print(stderr, "{}", app.help());
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Prints help for --help (0), or the message and where to look.
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return run();
}

}  // namespace bm::cli
