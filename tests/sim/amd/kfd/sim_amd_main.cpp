// Runs a program on a simulated AMD machine: sim-amd [options] COMMAND [ARGUMENT…]
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tests/sim/amd/engine/interpreter.h"
#include "tests/sim/amd/kfd/notify_devices.h"
#include "tests/sim/amd/kfd/planted.h"
#include "tests/sim/amd/kfd/sysfs.h"

namespace {

using namespace bm;
using namespace bm::sim;

constexpr std::string_view kUsage =
    "usage: sim-amd [options] COMMAND [ARGUMENT...]\n"
    "Runs COMMAND, unmodified, on a machine whose amdgpu driver and GPUs are simulated.\n"
    "  --chip NAME       gfx942 gfx1030 gfx1100 gfx1102 gfx1201 (default gfx1100)\n"
    "  --gpus N          number of GPUs (default 1)\n"
    "  --xccs N          chiplets of each (default 1)\n"
    "  --interface N     minor version of the kernel's interface (default 17)\n"
    "  --vram MIB        video memory of each GPU (default 4096)\n"
    "  --small-bar       the CPU sees no video memory\n"
    "  --no-peers        GPUs cannot reach each other's memory\n"
    "  --no-kfd          /dev/kfd does not exist\n"
    "  --no-permission   opening /dev/kfd fails with EACCES\n"
    "  --no-render-permission  opening /dev/dri/renderD* fails with EACCES\n"
    "  --target N        gfx_target_version in sysfs, for chips nobody knows\n"
    "  --fail CALL[,N[,ERRNO]]  the N-th call whose name starts with CALL fails (default 1, 22)\n"
    "  --stall           queues never move\n"
    "  --plant NAME[,N]  a fault of tests/unit/amd_faults: at the N-th launch, copy, fence or wait "
    "(default 1)\n"
    "  --no-code         launches do nothing\n"
    "  --stats           print calls and work at the end\n"
    "  --strict          exit 3 when a queue died\n";

struct Arguments {
  amd::Options options{.vram_bytes = uint64_t{4} << 30};
  bool has_stats = false, is_strict = false, has_help = false, has_code = true;
  std::vector<std::string> command;
  std::string planted;  ///< NAME[,N]
  std::string problem;
};

uint32_t number(std::string_view text) {
  uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// CALL,N,ERRNO.
void parse_failure(std::string_view text, amd::Options& options) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == text.npos) break;
    text.remove_prefix(comma + 1);
  }
  options.failing_name = parts[0];
  options.failing_call = parts.size() > 1 ? static_cast<int>(number(parts[1])) - 1 : 0;
  options.failing_error = parts.size() > 2 ? static_cast<int>(number(parts[2])) : EINVAL;
}

/// Whether `word` is an option without a value.
bool set_flag(std::string_view word, Arguments& out) {
  amd::Options& o = out.options;
  if (word == "--small-bar")
    o.has_large_bar = false;
  else if (word == "--no-peers")
    o.has_peers = false;
  else if (word == "--no-kfd")
    o.kfd_error = ENOENT;
  else if (word == "--no-permission")
    o.kfd_error = EACCES;
  else if (word == "--no-render-permission")
    o.render_error = EACCES;
  else if (word == "--stall")
    o.is_stalled = true;
  else if (word == "--no-code")
    out.has_code = false;
  else if (word == "--stats")
    out.has_stats = true;
  else if (word == "--strict")
    out.is_strict = true;
  else if (word == "--help")
    out.has_help = true;
  else
    return false;
  return true;
}

bool set_value(std::string_view word, const std::string& value, Arguments& out) {
  amd::Options& o = out.options;
  if (word == "--chip")
    o.chip = value;
  else if (word == "--gpus")
    o.gpus = number(value);
  else if (word == "--xccs")
    o.xccs = number(value);
  else if (word == "--interface")
    o.minor = number(value);
  else if (word == "--vram")
    o.vram_bytes = uint64_t{number(value)} << 20;
  else if (word == "--target")
    o.target_version = number(value);
  else if (word == "--fail")
    parse_failure(value, o);
  else if (word == "--plant")
    out.planted = value;
  else
    return false;
  return true;
}

Arguments parse(int count, char** words) {
  Arguments out;
  int i = 1;
  for (; i < count && std::string_view(words[i]).starts_with("--"); ++i) {
    const std::string_view word = words[i];
    if (set_flag(word, out)) continue;
    if (i + 1 < count && set_value(word, words[i + 1], out))
      ++i;
    else
      out.problem = fmt::format("unknown option {}, or one without its value", word);
  }
  for (; i < count; ++i) out.command.emplace_back(words[i]);
  if (!amd::find_card(out.options.chip)) out.problem = "unknown chip " + out.options.chip;
  if (out.command.empty() && !out.has_help && out.problem.empty())
    out.problem = "no command to run";
  return out;
}

/// `knobs` are those of the machine that is made of `options` afterwards.
bool plant(const std::string& text, amd::Options& options, amd::Knobs& knobs) {
  const size_t comma = text.find(',');
  const uint32_t nth = comma == text.npos ? 1 : number(std::string_view(text).substr(comma + 1));
  return amd::plant(std::string_view(text).substr(0, comma), nth, options, knobs);
}

void print_stats(const amd::Machine& machine, const notify::Counts& counts) {
  fmt::print(stderr, "sim-amd: {} opens, {} closes, {} ioctls, {} passed on\n", counts.opens,
             counts.closes, counts.ioctls, counts.passed);
  for (const auto& [name, calls] : machine.calls) fmt::print(stderr, "  {:6} {}\n", calls, name);
  fmt::print(stderr, "  {} packets, {} launches, {} bytes copied, {} interrupts\n",
             machine.packets.load(), machine.launches.load(), machine.copied_bytes.load(),
             machine.interrupts.load());
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments = parse(count, words);
  if (arguments.has_help || !arguments.problem.empty()) {
    if (!arguments.problem.empty()) fmt::print(stderr, "sim-amd: {}\n", arguments.problem);
    fmt::print(arguments.has_help ? stdout : stderr, "{}", kUsage);
    return arguments.has_help ? 0 : 2;
  }
  if (arguments.has_code) arguments.options.execute = amd::interpreter(arguments.options.chip);
  setenv("DEV", "AMD", 0);
  setenv("SIM_MACHINE", "AMD", 1);
  amd::Machine machine([&] {
    amd::Knobs unused;
    if (!arguments.planted.empty()) plant(arguments.planted, arguments.options, unused);
    return arguments.options;
  }());
  if (!arguments.planted.empty() && !plant(arguments.planted, arguments.options, machine.knobs)) {
    fmt::print(stderr, "sim-amd: no fault {} can be planted\n", arguments.planted);
    return 2;
  }
  amd::AmdDevices devices(machine);
  notify::Counts counts;
  const auto status = notify::run(devices, amd::AmdDevices::options(), arguments.command, &counts);
  if (!status) {
    fmt::print(stderr, "sim-amd: {}\n", status.error().message);
    return 77;
  }
  if (const auto& planted = machine.knobs.plant; planted.is_planted())
    fmt::print(stderr, "sim-amd: {} planted, the program ended {:.1f} ms later\n",
               arguments.planted,
               static_cast<double>(counts.ended_ns - planted.planted_ns()) / 1e6);
  if (arguments.has_stats) print_stats(machine, counts);
  const auto findings = machine.all_findings();
  for (const std::string& text : findings) fmt::print(stderr, "sim-amd: queue died: {}\n", text);
  return *status == 0 && arguments.is_strict && !findings.empty() ? 3 : *status;
}
