#include <memory>

#include <CLI/CLI.hpp>

#include "runtime/base/env.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/doctor.h"
#include "tools/bellmetal/bringup/top.h"
#include "tools/bellmetal/bringup/trace_diff.h"
#include "tools/bellmetal/commands.h"

namespace bm::cli {
namespace {

void add_boot(CLI::App& parent, Run& run) {
  auto options = std::make_shared<BootOptions>();
  CLI::App* boot = parent.add_subcommand("boot", "Boot a card stage by stage, then close it");
  add_card_options(*boot, options->card);
  boot->add_option("--trace", options->trace, "File for every access, in order");
  boot->add_flag(
      "--stats", options->has_stats,
      "Count accesses to the card, those of one small kernel after the boot as well, and "
      "read its sensors");
  boot->add_flag("--kernel", options->runs_kernel, "Run one small kernel when the card is up");
  boot->add_flag("--reset", options->always_reset, "No warm boot: reset the card first");
  boot->add_option("--power-limit", options->power_limit_w,
                   "Watts, as long as the card is open; BM_AMD_POWER_LIMIT without it")
      ->check(CLI::PositiveNumber);
  boot->callback(
      [&run, options] { run = [options] { return run_boot(real_system(), *options); }; });
  boot->footer(
      examples("bellmetal gpu boot --pci 0000:03:00.0 --stats --power-limit 200\n"
               "bellmetal gpu boot --pci remote:/tmp/card.sock --trace boot.trace --json"));
}

void add_autopsy(CLI::App& parent, Run& run) {
  auto options = std::make_shared<AutopsyCommand>();
  CLI::App* autopsy = parent.add_subcommand(
      "autopsy", "Why a card hangs: rings, packets, waves, faults, page tables, firmware");
  add_card_options(*autopsy, options->card);
  autopsy
      ->add_option("--address", options->addresses,
                   "Address on the GPU whose page is walked; repeatable")
      ->allow_extra_args(false);
  autopsy->callback(
      [&run, options] { run = [options] { return run_autopsy(real_system(), *options); }; });
  autopsy->footer(examples(
      "bellmetal gpu autopsy --pci sysfs:03:00.0\n"
      "bellmetal gpu autopsy --pci remote:/tmp/card.sock --address 0x200000001000 --json"));
}

void add_discover(CLI::App& parent, Run& run) {
  auto options = std::make_shared<CardOptions>();
  CLI::App* discover =
      parent.add_subcommand("discover", "What a card says of itself, before anything is booted");
  add_card_options(*discover, *options);
  discover->callback(
      [&run, options] { run = [options] { return run_discover(real_system(), *options); }; });
  discover->footer(examples("bellmetal gpu discover --pci 0000:03:00.0 --json"));
}

void add_firmware(CLI::App& parent, Run& run) {
  auto options = std::make_shared<FirmwareOptions>();
  CLI::App* firmware = parent.add_subcommand("firmware", "The firmware files that a chip wants");
  firmware->require_subcommand(1);
  CLI::App* list = firmware->add_subcommand("list", "Each file: where it is, its versions");
  list->callback(
      [&run, options] { run = [options] { return run_firmware_list(real_system(), *options); }; });
  CLI::App* check = firmware->add_subcommand("check", "Whether all are there, known and whole");
  check->callback(
      [&run, options] { run = [options] { return run_firmware_check(real_system(), *options); }; });
  const std::string lines = examples(
      "bellmetal gpu firmware check --chip gfx1201\n"
      "bellmetal gpu firmware list --chip ga104\n"
      "bellmetal gpu firmware list --pci 0000:03:00.0 --json");
  for (CLI::App* action : {list, check}) {
    add_card_options(*action, options->card);
    action->add_option("--chip", options->chip, "As gfx1201 or ga104, instead of a card");
    action->footer(lines);
  }
  firmware->footer(lines);
}

void add_forget(CLI::App& parent, Run& run) {
  auto options = std::make_shared<CardOptions>();
  CLI::App* forget = parent.add_subcommand(
      "forget", "Free what is kept in a card's memory for a hot restart (--keep-weights)");
  add_card_options(*forget, *options);
  forget->callback(
      [&run, options] { run = [options] { return run_forget(real_system(), *options); }; });
  forget->footer(
      examples("bellmetal gpu forget --pci 0000:03:00.0\n"
               "bellmetal gpu forget --pci remote:/tmp/card.sock --json"));
}

void add_registers(CLI::App& parent, Run& run) {
  auto options = std::make_shared<RegisterOptions>();
  CLI::App* registers = parent.add_subcommand("regs", "Registers by name, with their fields");
  registers->require_subcommand(1);
  CLI::App* read = registers->add_subcommand("read", "Read some; * stands for anything");
  add_card_options(*read, options->card);
  read->add_option("NAME", options->names, "As GCVM_L2_CNTL, MMHUB.MMVM_*, or a dword address")
      ->required();
  read->callback(
      [&run, options] { run = [options] { return run_registers_read(real_system(), *options); }; });
  CLI::App* write = registers->add_subcommand("write", "Write one, or one field of it");
  add_card_options(*write, options->card);
  write->add_option("NAME", options->name, "NAME, NAME.FIELD or a dword address")->required();
  write->add_option("VALUE", options->value, "0x1234 or 4660")->required();
  write->add_flag("--yes", options->is_sure, "Without it nothing is written");
  write->callback([&run, options] {
    run = [options] { return run_registers_write(real_system(), *options); };
  });
  CLI::App* decode = registers->add_subcommand("decode", "Fields of a value, without a card");
  decode->add_option("NAME", options->name, "NAME or BLOCK.NAME")->required();
  decode->add_option("VALUE", options->value, "0x1234 or 4660")->required();
  decode->add_option("--chip", options->chip, "As gfx1201")->required();
  decode->add_flag("--json", options->card.as_json, "Print one JSON object");
  decode->callback([&run, options] {
    run = [options] { return run_registers_decode(real_system(), *options); };
  });
  const std::string lines = examples(
      "bellmetal gpu regs read 'GCVM_L2_PROTECTION_FAULT_*' --pci 0000:03:00.0\n"
      "bellmetal gpu regs write SCRATCH_REG7 0 --yes --pci 0000:03:00.0\n"
      "bellmetal gpu regs decode IH_RB_CNTL 0x1c --chip gfx1100 --json");
  for (CLI::App* one : {registers, read, write, decode}) one->footer(lines);
}

void add_top(CLI::App& parent, Run& run) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* top = parent.add_subcommand(
      "top", "What the cards of this machine do; none is touched but the one that --pci names");
  add_card_options(*top, options->card);
  top->add_flag("--once", options->once, "Print it once; so does a stdout that is no terminal");
  top->add_option("--interval", options->interval_ms, "Milliseconds between two screens")
      ->check(CLI::Range(100, 60000));
  top->callback([&run, options] { run = [options] { return run_top(real_system(), *options); }; });
  top->footer(
      examples("bellmetal gpu top\nbellmetal gpu top --once --json\n"
               "bellmetal gpu top --pci 0000:03:00.0"));
}

void add_trace(CLI::App& parent, Run& run) {
  auto options = std::make_shared<TraceDiffOptions>();
  CLI::App* trace = parent.add_subcommand("trace", "Traces of accesses to a card");
  trace->require_subcommand(1);
  CLI::App* diff = trace->add_subcommand("diff", "Registers that two drivers leave differently");
  diff->add_option("A", options->a, "Trace of `gpu boot --trace`, or a log of mmiotrace")
      ->required();
  diff->add_option("B", options->b, "The other one")->required();
  diff->add_flag("--json", options->as_json, "Print one JSON object");
  diff->callback(
      [&run, options] { run = [options] { return run_trace_diff(real_system(), *options); }; });
  const std::string lines = examples(
      "bellmetal gpu trace diff boot.trace amdgpu.mmiotrace\n"
      "bellmetal gpu trace diff monday.trace tuesday.trace --json");
  trace->footer(lines);
  diff->footer(lines);
}

}  // namespace

void add_gpu(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("gpu", "A card without a kernel driver: boot it, look into it");
  command->require_subcommand(1);
  add_autopsy(*command, run);
  add_boot(*command, run);
  add_discover(*command, run);
  add_firmware(*command, run);
  add_forget(*command, run);
  add_registers(*command, run);
  add_top(*command, run);
  add_trace(*command, run);
  command->footer(
      examples("bellmetal gpu boot --pci 0000:03:00.0 --stats\n"
               "bellmetal gpu boot --pci remote:/tmp/card.sock --json"));
}

void add_doctor(CLI::App& app, Run& run) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* doctor =
      app.add_subcommand("doctor", "What lies between this user and a working device");
  doctor->add_option("--device", options->device,
                     "CPU, CL, NV, NV:PCI, CUDA, AMD, AMD:PCI, AMD:USB or a PCI function as in "
                     "BM_PCI; all without it");
  doctor->add_flag("--json", options->as_json, "Print one JSON object");
  doctor->callback([&run, options] {
    run = [options] {
      options->cache_folder = settings().cache_dir;
      options->pci = settings().pci;
      return run_doctor(real_system(), *options);
    };
  });
  doctor->footer(
      examples("bellmetal doctor\nbellmetal doctor --device 0000:03:00.0\n"
               "bellmetal doctor --device CL --json"));
}

}  // namespace bm::cli
