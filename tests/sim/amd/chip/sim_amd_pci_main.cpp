// sim-amd-pci: the modelled card for drivers in other processes.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tests/sim/amd/chip/chip.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/sim/amd/kfd/planted.h"
#include "tests/sim/pci/remote.h"
#include "tests/sim/pci/vfio_user.h"

namespace {

using namespace bm::sim;

constexpr const char* kUsage = R"(sim-amd-pci: a modelled AMD card behind a socket
  --remote WHERE   a port of 127.0.0.1, or the path of a socket; with 0 a free port is printed
  --vfio-user PATH the protocol of vfio-user in place of it
  --bar0 MIB       size of the memory BAR at power-on (256)
  --chip NAME      gfx942, gfx1100, gfx1101, gfx1102, gfx1200 or gfx1201 (gfx1201)
  --vram MIB       video memory (4096)
  --clients N      ends after so many (1); 0: when it is sent SIGTERM
  --warm           another driver was here before
  --no-code        launches do nothing
  --no-hdp         with --strict: what the host writes through BAR 0 waits for no flush
  --fault TEXT     what goes wrong; see tests/sim/amd/chip/options.h
  --plant NAME[,N] the N-th launch, copy, fence or wait is damaged; a name of tests/unit/amd_faults
  --tolerate TEXT  violations that start so are counted, not held against the driver
  --strict         what the host writes through BAR 0 waits for a flush of the HDP, and every
                   violation and every dead queue ends it with 3. Without it writes arrive by
                   themselves, as they do on cards, and violations that cards are known to bear
                   are printed only
)";

/// What tinygrad's driver does on cards every day, so that they bear it; Linux does none of it:
/// writes that no flush follows, large pages whose address is no multiple of them, read pointers of
/// interrupt rings in dwords.
constexpr std::string_view kBorne[] = {": the HDP holds part of it, nobody flushed it",
                                       " bytes is not aligned", "IH_RB_RPTR"};
bool is_borne(std::string_view violation) {
  return std::ranges::any_of(
      kBorne, [&](std::string_view text) { return violation.find(text) != violation.npos; });
}

struct Arguments {
  amd::ChipOptions options;
  std::string where, problem, planted;
  bool has_fault = false;
  std::vector<std::string> tolerated;
  uint64_t clients = 1;
  bool has_code = true, is_strict = false, has_help = false, is_vfio_user = false;
  bool has_hdp = true;
};

bool number(const std::string& text, uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool set_value(std::string_view word, const std::string& value, Arguments& out) {
  uint64_t count = 0;
  if (word == "--remote") {
    out.where = value;
  } else if (word == "--vfio-user" && value.starts_with('/')) {
    out.where = value;
    out.is_vfio_user = true;
  } else if (word == "--bar0" && number(value, &count) && count >= 256 &&
             (count & (count - 1)) == 0) {
    out.options.bar0_bytes = count << 20;
  } else if (word == "--chip") {
    out.options.chip = value;
  } else if (word == "--fault") {
    out.has_fault = true;
    return amd::plant_fault(value, out.options);
  } else if (word == "--plant") {
    out.planted = value;
  } else if (word == "--tolerate") {
    out.tolerated.push_back(value);
  } else if (word == "--vram" && number(value, &count) && count >= 256 &&
             (count & (count - 1)) == 0) {
    out.options.vram_bytes = count << 20;
  } else if (word == "--clients" && number(value, &count)) {
    out.clients = count;
  } else {
    return false;
  }
  return true;
}

Arguments parse(int count, char** words) {
  Arguments out;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--help")
      out.has_help = true;
    else if (word == "--strict")
      out.is_strict = true;
    else if (word == "--no-hdp")
      out.has_hdp = false;
    else if (word == "--no-code")
      out.has_code = false;
    else if (word == "--warm")
      out.options.start = amd::ChipOptions::Start::kDriverWasHere;
    else if (i + 1 < count && set_value(word, words[i + 1], out))
      ++i;
    else
      out.problem = fmt::format("unknown option {}, or one with a wrong value", word);
  }
  out.options.holds_writes = out.is_strict && out.has_hdp;
  if (amd::find_chip_row(out.options.chip) == nullptr)
    out.problem = "unknown chip " + out.options.chip;
  if (out.where.empty() && out.problem.empty())
    out.problem = "no --remote WHERE and no --vfio-user PATH";
  if (const char* const planted = getenv("SIM_AMD_CHIP_FAULT");
      planted != nullptr && !amd::plant_fault(planted, out.options))
    out.problem = fmt::format("no fault {} can be planted", planted);
  return out;
}

/// Of the engines alone: what a kernel driver would do of itself is not there.
bool plant(const std::string& text, amd::Knobs& knobs) {
  const size_t comma = text.find(',');
  uint64_t nth = 1;
  if (comma != text.npos && !number(text.substr(comma + 1), &nth)) return false;
  amd::Options unused;
  return amd::plant(std::string_view(text).substr(0, comma), nth, unused, knobs);
}

/// What stood still stands no longer once its driver is gone: its queue is.
void end_client(amd::Chip& chip, const std::string& planted) {
  amd::Knobs& knobs = chip.engines().knobs;
  const int64_t now = knobs.plant.now_ns();
  const auto tell = [&](const std::string& what, int64_t since) {
    if (since != 0)
      fmt::print(stderr, "sim-amd-pci: {} planted, its driver was gone {:.1f} ms later\n", what,
                 static_cast<double>(now - since) / 1e6);
  };
  tell(planted, knobs.plant.planted_ns());
  tell("bus fault", chip.take_fault_ns());
  knobs.is_hung = knobs.is_stalled = knobs.is_copy_stalled = false;
  knobs.plant.set(PlantEvent::kNone, amd::Effect::kNone, 0);
  chip.options().fault = amd::BusFault::kNone;
  chip.plug_in();
}

/// What clients have written so far, one after another.
struct Written {
  uint64_t through_bar = 0, copied = 0, launches = 0;
  static Written of(amd::Chip& chip) {
    return {chip.counts().memory_written_bytes, chip.engines().copied_bytes,
            chip.engines().launches};
  }
};

void report_client(uint64_t number, const Written& before, const Written& after) {
  fmt::print(
      stderr,
      "sim-amd-pci: client {}: {} bytes written through BAR 0, {} bytes copied, {} launches\n",
      number, after.through_bar - before.through_bar, after.copied - before.copied,
      after.launches - before.launches);
}

/// Ends the wait for the next client, not a client.
std::atomic<int> listening{-1};
extern "C" void end_listening(int) { shutdown(listening, SHUT_RDWR); }

/// `is_planted`: queues were meant to die. Those of a driver that was killed die as well, of the
/// memory that went with it: only a strict model holds that against anyone.
int report(amd::Chip& chip, uint64_t requests, bool is_strict, bool is_planted) {
  const auto violations = chip.violations(), deaths = chip.deaths();
  for (const std::string& text : chip.violation_list().tolerated())
    fmt::print(stderr, "sim-amd-pci: tolerated: {}\n", text);
  size_t punished = 0;
  for (const std::string& text : violations) {
    const bool is_let_pass = !is_strict && is_borne(text);
    punished += is_let_pass ? 0 : 1;
    fmt::print(stderr, "sim-amd-pci: {}: {}\n",
               is_let_pass ? "violation that cards bear" : "violation", text);
  }
  for (const std::string& text : deaths) fmt::print(stderr, "sim-amd-pci: died: {}\n", text);
  const amd::BusCounts& counts = chip.counts();
  const auto tables = chip.host_table_accesses();
  fmt::print(stderr, "sim-amd-pci: page tables through BAR 0: {} writes, {} reads\n", tables.writes,
             tables.reads);
  const auto& engines = chip.engines();
  fmt::print(
      stderr,
      "sim-amd-pci: {} requests; registers {} read, {} written; memory {} reads of {} bytes, "
      "{} writes of {} bytes; {} accesses; {} doorbells; {} packets, {} launches, {} bytes copied; "
      "{} "
      "table entries read; {} violations\n",
      requests, counts.register_reads.load(), counts.register_writes.load(),
      counts.memory_reads.load(), counts.memory_read_bytes.load(), counts.memory_writes.load(),
      counts.memory_written_bytes.load(), chip.accesses(), counts.doorbells.load(),
      engines.packets.load(), engines.launches.load(), engines.copied_bytes.load(),
      chip.table_reads(), violations.size());
  const bool is_death_fine = !is_strict || is_planted || deaths.empty();
  return punished == 0 && is_death_fine ? 0 : 3;
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments = parse(count, words);
  if (arguments.has_help || !arguments.problem.empty()) {
    if (!arguments.problem.empty()) fmt::print(stderr, "sim-amd-pci: {}\n", arguments.problem);
    fmt::print(arguments.has_help ? stdout : stderr, "{}", kUsage);
    return arguments.has_help ? 0 : 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  const amd::ChipRow& row = *amd::find_chip_row(arguments.options.chip);
  if (arguments.has_code) arguments.options.execute = amd::interpreter(std::string(row.isa));
  amd::Chip chip(arguments.options);
  for (const std::string& prefix : arguments.tolerated) chip.violation_list().tolerate(prefix);
  if (!arguments.planted.empty() && !plant(arguments.planted, chip.engines().knobs)) {
    fmt::print(stderr, "sim-amd-pci: no fault {} can be planted\n", arguments.planted);
    return 2;
  }
  chip.place_bars();
  uint16_t port = 0;
  const int listener = listen_at(arguments.where, &port);
  if (listener < 0) {
    fmt::print(stderr, "sim-amd-pci: {}: {}\n", arguments.where, std::strerror(errno));
    return 1;
  }
  if (port != 0) fmt::print("127.0.0.1:{}\n", port);
  std::fflush(stdout);
  listening = listener;
  std::signal(SIGTERM, end_listening);
  uint64_t requests = 0;
  for (uint64_t client = 0; arguments.clients == 0 || client < arguments.clients; ++client) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) break;
    const Written before = Written::of(chip);
    const int on = 1;
    if (port != 0) setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (arguments.is_vfio_user) {
      VfioUserServer server(chip);
      server.serve(socket);
      requests += server.requests();
    } else {
      RemoteServer server(chip);
      server.serve(socket);
      requests += server.requests();
    }
    close(socket);
    report_client(client + 1, before, Written::of(chip));
    end_client(chip, arguments.planted);
  }
  close(listener);
  if (port == 0) unlink(arguments.where.c_str());
  return report(chip, requests, arguments.is_strict,
                arguments.has_fault || !arguments.planted.empty());
}
