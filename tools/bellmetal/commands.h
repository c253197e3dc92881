#pragma once
// The commands of the program. Each add_* registers one subcommand with its options, help and
// examples; when it is given on the command line, it leaves in `run` what is to be done.

#include <functional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace bm::cli {

using Run = std::function<int()>;

void add_bake(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_cache(CLI::App& app, Run& run);
void add_chat(CLI::App& app, Run& run);
void add_devices(CLI::App& app, Run& run);
void add_disasm(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_env(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run);
void add_gpu(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_pci(CLI::App& app, Run& run);
void add_selftest(CLI::App& app, Run& run);
void add_serve(CLI::App& app, Run& run);
void add_tokenize(CLI::App& app, Run& run);
void add_version(CLI::App& app, Run& run);

/// All of them, and `help`: the program as it is.
void add_commands(CLI::App& app, Run& run);

/// The examples shown under a command's options: one command line per line of `lines`.
std::string examples(std::string_view lines);

/// Parses and runs. Returns the exit code of the program.
int run_command_line(int argc, const char* const* argv);

}  // namespace bm::cli
