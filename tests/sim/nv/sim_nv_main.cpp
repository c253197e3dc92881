// Runs a program on a simulated NVIDIA machine: sim-nv [options] COMMAND [ARGUMENT…]
#include <sys/resource.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tests/sim/nv/chip.h"
#include "tests/sim/nv/notify_devices.h"
#include "tests/sim/nv/planted.h"

namespace {

using namespace bm;
using namespace bm::sim;

constexpr std::string_view kUsage =
    "usage: sim-nv [options] COMMAND [ARGUMENT...]\n"
    "Runs COMMAND, unmodified, on a machine whose NVIDIA driver and GPUs are simulated. Programs "
    "of\n"
    "the GPU are PTX text (BM_NV_CODE=ptx is set unless it is set already).\n"
    "  --chip NAME       tu102 ga100 ga102 ad102 gh100 gb100 gb202 (default gh100)\n"
    "  --release N       driver release: 535 550 570 575 580 590 595 610 (default 580)\n"
    "  --version TEXT    what the driver says its version is\n"
    "  --gpus N          number of GPUs (default 1)\n"
    "  --no-peers        GPUs cannot reach each other's memory\n"
    "  --no-nodes        /dev/nvidia* does not exist\n"
    "  --no-permission   opening a node fails with EACCES\n"
    "  --sandbox         calls that gVisor refuses fail\n"
    "  --fail CALL[,N[,STATUS]]  the N-th call whose name starts with CALL fails (default 1, "
    "0x56)\n"
    "  --plant NAME[,N]  a fault of tests/unit/nv_faults: at the N-th kernel, copy, release or "
    "acquire "
    "(default 1)\n"
    "  --stats           print calls, faults and complaints at the end\n"
    "  --leaks           print what was still there when the program closed the driver\n"
    "  --strict          exit 3 when there were faults or complaints\n";

struct Arguments {
  nv::Options options;
  std::vector<nv::Failure> failures;
  bool has_stats = false, has_leaks = false, is_strict = false, has_help = false;
  std::vector<std::string> command;
  std::string planted;  ///< NAME[,N]
  std::string problem;
};

uint64_t number(std::string_view text) {
  uint64_t value = 0;
  const bool is_hex = text.starts_with("0x");
  if (is_hex) text.remove_prefix(2);
  std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
  return value;
}

/// CALL,N,STATUS: names of calls hold colons.
nv::Failure parse_failure(std::string text) {
  nv::Failure failure;
  failure.status = nv::RmStatus::kNotSupported;
  std::vector<std::string> parts;
  for (size_t at = text.rfind(','); at != std::string::npos; at = text.rfind(',')) {
    parts.insert(parts.begin(), text.substr(at + 1));
    text.resize(at);
  }
  failure.call = text;
  if (!parts.empty()) failure.nth = number(parts[0]);
  if (parts.size() > 1) failure.status = static_cast<nv::RmStatus>(number(parts[1]));
  return failure;
}

Arguments parse(int count, char** words) {
  Arguments out;
  int i = 1;
  for (; i < count && std::string_view(words[i]).starts_with("--"); ++i) {
    const std::string_view word = words[i];
    const auto value = [&]() -> std::string {
      if (i + 1 < count) return words[++i];
      out.problem = fmt::format("{} needs a value", word);
      return {};
    };
    if (word == "--chip")
      out.options.chip = value();
    else if (word == "--release")
      out.options.release = value();
    else if (word == "--version")
      out.options.version = value();
    else if (word == "--gpus")
      out.options.gpus = static_cast<uint32_t>(number(value()));
    else if (word == "--no-peers")
      out.options.has_peers = false;
    else if (word == "--no-nodes")
      out.options.has_nodes = false;
    else if (word == "--no-permission")
      out.options.is_permitted = false;
    else if (word == "--sandbox")
      out.options.is_sandboxed = true;
    else if (word == "--fail")
      out.failures.push_back(parse_failure(value()));
    else if (word == "--plant")
      out.planted = value();
    else if (word == "--stats")
      out.has_stats = true;
    else if (word == "--leaks")
      out.has_leaks = true;
    else if (word == "--strict")
      out.is_strict = true;
    else if (word == "--help")
      out.has_help = true;
    else
      out.problem = fmt::format("unknown option {}", word);
  }
  for (; i < count; ++i) out.command.emplace_back(words[i]);
  if (out.command.empty() && !out.has_help && out.problem.empty())
    out.problem = "no command to run";
  return out;
}

void print_stats(nv::Kernel& kernel, const notify::Counts& counts) {
  fmt::print(stderr, "sim-nv: {} opens, {} closes, {} ioctls, {} passed on\n", counts.opens,
             counts.closes, counts.ioctls, counts.passed);
  for (const auto& [name, calls] : kernel.all_calls())
    fmt::print(stderr, "  {:6} {}\n", calls, name);
  for (uint32_t i = 0; i < kernel.options().gpus; ++i) {
    const auto& engine = kernel.gpu(i).counts();
    fmt::print(stderr,
               "  gpu {}: {} doorbells, {} entries, {} kernels ({} chained), {} copies of "
               "{} bytes, {} inline writes, {} releases, {} interrupts\n",
               i, engine.doorbells.load(), engine.entries.load(), engine.kernels.load(),
               engine.chained_kernels.load(), engine.copies.load(), engine.copied_bytes.load(),
               engine.inline_writes.load(), engine.releases.load(), engine.interrupts.load());
  }
}

/// Faults and complaints on stderr; how many.
size_t print_findings(nv::Kernel& kernel) {
  const nv::Report report = kernel.report();
  size_t findings = report.complaints.size();
  for (const auto& text : report.complaints) fmt::print(stderr, "sim-nv: complaint: {}\n", text);
  for (uint32_t i = 0; i < kernel.options().gpus; ++i)
    for (const auto& text : kernel.gpu(i).faults()) {
      fmt::print(stderr, "sim-nv: gpu {}: {}\n", i, text);
      ++findings;
    }
  return findings;
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments = parse(count, words);
  if (arguments.has_help || !arguments.problem.empty()) {
    if (!arguments.problem.empty()) fmt::print(stderr, "sim-nv: {}\n", arguments.problem);
    fmt::print(arguments.has_help ? stdout : stderr, "{}", kUsage);
    return arguments.has_help ? 0 : 2;
  }
  // Every memory object is a descriptor here.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  nv::Planted planted;
  if (!arguments.planted.empty()) {
    const size_t comma = arguments.planted.find(',');
    const auto found = nv::find_planted(arguments.planted.substr(0, comma));
    if (!found) {
      fmt::print(stderr, "sim-nv: no fault {} can be planted\n", arguments.planted);
      return 2;
    }
    planted = *found;
    if (comma != std::string::npos) planted.nth = number(arguments.planted.substr(comma + 1));
    if (planted.machine != nullptr) planted.machine(arguments.options);
  }
  auto kernel = nv::Kernel::create(arguments.options);
  if (!kernel) {
    fmt::print(stderr, "sim-nv: {}\n", kernel.error().message);
    return 2;
  }
  for (const nv::Failure& failure : arguments.failures) (*kernel)->plan(failure);
  if (!planted.failure.call.empty()) (*kernel)->plan(planted.failure);
  if (planted.is_lost) (*kernel)->knobs().is_lost = true;
  (*kernel)->knobs().plant.set(planted.event, planted.effect, planted.nth);
  setenv("DEV", "NV", 0);
  setenv("SIM_MACHINE", "NV", 1);
  setenv("BM_NV_CODE", "ptx", 0);
  nv::NvDevices devices(**kernel);
  notify::Counts counts;
  const auto status = notify::run(devices, nv::NvDevices::options(), arguments.command, &counts);
  if (!status) {
    fmt::print(stderr, "sim-nv: {}\n", status.error().message);
    return 77;
  }
  const auto& plant = (*kernel)->knobs().plant;
  if (plant.is_planted())
    fmt::print(stderr, "sim-nv: {} planted, the program ended {:.1f} ms later\n", arguments.planted,
               static_cast<double>(counts.ended_ns - plant.planted_ns()) / 1e6);
  if (arguments.has_stats) print_stats(**kernel, counts);
  const bool tells = arguments.has_stats || arguments.is_strict || plant.is_planted();
  const size_t findings = tells ? print_findings(**kernel) : 0;
  return *status == 0 && arguments.is_strict && findings != 0 ? 3 : *status;
}
