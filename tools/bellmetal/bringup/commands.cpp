#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/commands.h"

namespace bm::cli {
namespace {

void add_boot(CLI::App& parent, Run& run) {
  auto options = std::make_shared<BootOptions>();
  CLI::App* boot = parent.add_subcommand("boot", "Boot a card stage by stage, then close it");
  add_card_options(*boot, options->card);
  boot->add_option("--trace", options->trace, "File for every access, in order");
  boot->add_flag("--stats", options->has_stats, "Count accesses to the card");
  boot->add_flag("--reset", options->always_reset, "No warm boot: reset the card first");
  boot->callback(
      [&run, options] { run = [options] { return run_boot(real_system(), *options); }; });
  boot->footer(
      examples("bellmetal gpu boot --pci 0000:03:00.0 --stats\n"
               "bellmetal gpu boot --pci remote:/tmp/card.sock --trace boot.trace --json"));
}

}  // namespace

void add_gpu(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("gpu", "An AMD card without a kernel driver: boot it, look into it");
  command->require_subcommand(1);
  add_boot(*command, run);
  command->footer(
      examples("bellmetal gpu boot --pci 0000:03:00.0 --stats\n"
               "bellmetal gpu boot --pci remote:/tmp/card.sock --json"));
}

}  // namespace bm::cli
