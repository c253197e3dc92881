#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "compiler/bundle.h"
#include "compiler/toolchain/component_folders.h"
#include "runtime/base/env.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/device.h"
#include "runtime/target.h"
#include "tensor/exception.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/exit_code.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

namespace {

/// What was given and is not known, with the nearest that is; empty when nothing was.
std::string unknown_word(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().back();
    path += " " + command->get_name();
  }
  const std::vector<std::string> rest = command->remaining();
  if (rest.empty()) return {};
  const std::string& word = rest.front();
  const bool is_option = word.starts_with('-');
  std::vector<std::string> names;
  if (is_option)
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  else
    for (const CLI::App* one : command->get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(one->get_name());
  const std::string given = word.substr(0, word.find('='));
  // There are no commands below this one: it takes fewer arguments than it was given.
  if (!is_option && names.empty())
    return fmt::format("\"{}\" is one argument too many; `{} --help` lists what there is", given,
                       path);
  return fmt::format(
      "unknown {} \"{}\"{}; `{} --help` lists what there is", is_option ? "option" : "command",
      given,
      runtime::did_you_mean(given, std::vector<std::string_view>(names.begin(), names.end())),
      path);
}

/// The exit code of a command that would end with `code`: work that nobody waited for may have
/// failed, too.
int finish_devices(int code) {
  if (code != kOk) return code;
  for (runtime::Device* device : runtime::opened_devices())
    if (const Status done = device->synchronize(); !done && is_device_error(done.error().code))
      code = report(done.error(), false);
  return code;
}

/// `bellmetal help [COMMAND…]`: what COMMAND --help prints.
void add_help(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("help", "Show what a command takes, as COMMAND --help");
  auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("COMMAND", *words, "A command, or a command and what follows it: gpu boot");
  command->footer(examples("bellmetal help serve\nbellmetal help gpu boot"));
  command->callback([&app, &run, words] {
    run = [&app, words] {
      const CLI::App* at = &app;
      std::string before;
      for (const std::string& word : *words) {
        std::vector<std::string_view> names;
        const CLI::App* next = nullptr;
        for (const CLI::App* one : at->get_subcommands([](const CLI::App*) { return true; })) {
          names.emplace_back(one->get_name());
          if (one->get_name() == word) next = one;
        }
        before += (before.empty() ? "" : " ") + at->get_name();
        if (!next) {
          print_error(
              fmt::format("bellmetal: unknown command \"{}\"{}; `{} --help` lists what "
                          "there is\n",
                          word, runtime::did_you_mean(word, names), before));
          return static_cast<int>(kUsage);
        }
        at = next;
      }
      // The whole program's would be that of the command it was asked by.
      fmt::print("{}", at == &app ? app.get_formatter()->make_help(&app, app.get_name(),
                                                                   CLI::AppFormatMode::Normal)
                                  : at->help(before));
      return static_cast<int>(kOk);
    };
  });
}

/// Where commands take kernels and compilers from, also where a cache has what this one needs.
/// generate and chat look at bundles themselves, as --bundle names others; bake uses none.
int check_sources_of_kernels(const CLI::App& app, bool as_json) {
  constexpr std::array kOwnBundles{"generate", "chat", "bake"};
  constexpr std::array kCommands{"serve", "selftest", "explain", "bench", "disasm"};
  const auto has_any_of = [&](const auto& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* name) { return app.got_subcommand(name); });
  };
  if (has_any_of(kCommands))
    if (const Status bundles = compiler::check_bundle_files(settings().bundle); !bundles)
      return report_file(bundles.error(), "", as_json);
  if (has_any_of(kCommands) || has_any_of(kOwnBundles))
    if (const auto folders = compiler::component_folders(); !folders)
      return report(folders.error(), as_json);
  return kOk;
}

int parse_and_run(int argc, const char* const* argv, bool as_json) {
  CLI::App app("GPU drivers in user space and a tensor runtime on top of them", "bellmetal");
  app.set_version_flag("--version", std::string("bellmetal ") + BM_VERSION);
  app.get_formatter()->column_width(28);
  app.footer(std::string("Every command has --help with examples, and --json.\n\n") +
             exit_code_help());
  Run run;
  add_commands(app, run);
  if (argc <= 1) {
    print_error(app.help());
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::Success)) {
      if (const std::string unknown = unknown_word(app); !unknown.empty()) {
        print_error("bellmetal: " + unknown + "\n");
        return kUsage;
      }
    }
    // Prints help for --help (0), or the message and where to look.
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  if (const int code = check_sources_of_kernels(app, as_json); code != kOk) return code;
  return finish_devices(run());
}

}  // namespace

void add_commands(CLI::App& app, Run& run) {
  app.require_subcommand(1);
  add_generate(app, run);
  add_chat(app, run);
  add_serve(app, run);
  add_devices(app, run);
  add_bake(app, run);
  add_bench(app, run);
  add_selftest(app, run);
  add_disasm(app, run);
  add_explain(app, run);
  add_tokenize(app, run);
  add_inspect(app, run);
  add_cache(app, run);
  add_pci(app, run);
  add_gpu(app, run);
  add_doctor(app, run);
  add_env(app, run);
  add_version(app, run);
  add_help(app, run);
  for (const char* name : {"generate", "chat", "serve", "selftest"}) {
    auto folders = std::make_shared<std::string>();
    CLI::App* command = app.get_subcommand(name);
    command->add_option(
        "--firmware-dir", *folders,
        "Folders searched for firmware files first, separated by ':' (BM_FIRMWARE_DIR)");
    // Devices are opened on this thread; it holds as long as the program's commands do.
    auto firmware = std::make_shared<std::optional<ScopedSetting>>();
    command->parse_complete_callback([folders, firmware] {
      if (!folders->empty()) firmware->emplace("BM_FIRMWARE_DIR", *folders);
    });
  }
}

int run_command_line(int argc, const char* const* argv) {
  const char* const command = argc > 1 ? argv[1] : "start-up";
  const bool as_json =
      std::any_of(argv, argv + argc, [](const char* a) { return std::string_view(a) == "--json"; });
  try {
    try {
      return parse_and_run(argc, argv, as_json);
    } catch (const Exception& e) {
      return report(e.error(), as_json);
    } catch (const std::system_error& error) {
      // Most likely stdout does not take what was printed; finish_output() says so.
      if (std::ferror(stdout) == 0) print_error(fmt::format("bellmetal: {}\n", error.what()));
      return kFailure;
    } catch (const std::bad_alloc&) {
      return report(out_of_memory(command), as_json);
    } catch (const std::length_error&) {
      return report(error_of_exception(command), as_json);
    }
  } catch (const std::bad_alloc&) {
    end_out_of_memory(command);  // not even the report could be made
  }
}

}  // namespace bm::cli
