// sim-nv-pci: the modelled card for drivers in other processes.

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
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tests/sim/nv/chip/card.h"
#include "tests/sim/pci/remote.h"
#include "tests/sim/pci/vfio_user.h"

namespace {

using namespace bm::sim;
using nv::card::Card;

constexpr const char* kUsage = R"(sim-nv-pci CHIP: a modelled NVIDIA card behind a socket
  CHIP             tu102, ga100, ga102, ad102, gh100, gb100 or gb202
  --remote WHERE   a port of 127.0.0.1, or the path of a socket; with 0 a free port is printed
  --vfio-user PATH the protocol of vfio-user in place of it
  --firmware DIR   folder with nvidia/CHIP/gsp/*-570.144.bin; what is loaded is compared with it
  --bar1 MIB       size of the memory BAR at power-on (256)
  --vram MIB       video memory (4096)
  --clients N      ends after so many (1); 0: when it is sent SIGTERM
  --no-display     the display is fused off (not with an FSP)
  --signal NUMBER  every second client, the first one among them, is sent it: the first at its
  --step REQUESTS  request number so many, the next so many later
  --scrub          memory above the WPR waits for the scrubber (ad102)
  --strict         every violation and every dead channel ends it with 3. Without it violations that
                   cards are known to bear are printed only
)";

/// What tinygrad's driver does on cards every day, so that they bear it: a USERD of 32 bytes, and
/// the sequencer's REG_MODIFY with mask and value exchanged.
constexpr std::string_view kBorne[] = {"channel's USERD at", "CPU sequencer: "};
bool is_borne(std::string_view violation) {
  return std::ranges::any_of(
      kBorne, [&](std::string_view text) { return violation.find(text) != violation.npos; });
}

struct Arguments {
  nv::card::CardOptions options;
  std::string where, problem, firmware;
  uint64_t clients = 1, signal = 0, step = 1;
  bool is_strict = false, has_help = false, is_vfio_user = false;
};

bool number(const std::string& text, uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool set_value(std::string_view word, const std::string& value, Arguments& out) {
  uint64_t count = 0;
  const bool is_size = number(value, &count) && count >= 256 && (count & (count - 1)) == 0;
  if (word == "--remote")
    out.where = value;
  else if (word == "--vfio-user" && value.starts_with('/'))
    out.where = value, out.is_vfio_user = true;
  else if (word == "--firmware")
    out.firmware = value;
  else if (word == "--bar1" && is_size)
    out.options.bar1_bytes = count << 20;
  else if (word == "--vram" && is_size)
    out.options.vram_bytes = count << 20;
  else if (word == "--clients" && number(value, &count))
    out.clients = count;
  else if (word == "--signal" && number(value, &count) && count < 32)
    out.signal = count;
  else if (word == "--step" && number(value, &count) && count != 0)
    out.step = count;
  else
    return false;
  return true;
}

Arguments parse(int count, char** words) {
  Arguments out;
  out.options.chip.clear();
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--help")
      out.has_help = true;
    else if (word == "--strict")
      out.is_strict = true;
    else if (word == "--no-display")
      out.options.has_display = false;
    else if (word == "--scrub")
      out.options.needs_scrub = true;
    else if (!word.starts_with('-') && out.options.chip.empty())
      out.options.chip = word;
    else if (i + 1 < count && set_value(word, words[i + 1], out))
      ++i;
    else
      out.problem = fmt::format("unknown option {}, or one with a wrong value", word);
  }
  const nv::card::CardRow* const row = nv::card::find_card_row(out.options.chip);
  if (row == nullptr)
    out.problem = "unknown chip " + out.options.chip;
  else if (!out.firmware.empty())
    out.options.firmware = nv::card::FirmwareFiles::load(out.firmware, *row);
  if (out.where.empty() && out.problem.empty())
    out.problem = "no --remote WHERE and no --vfio-user PATH";
  return out;
}

/// Ends the wait for the next client, not a client.
std::atomic<int> listening{-1};
extern "C" void end_listening(int) { shutdown(listening, SHUT_RDWR); }

/// Sends the process at the other end a signal at its `request`.
template <class Server>
void plan_signal(Server& server, int socket, int signal, uint64_t request) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid <= 0) return;
  server.on_request([pid = peer.pid, signal, request](uint64_t number) {
    if (number == request) kill(pid, signal);
  });
}

int report(Card& card, uint64_t requests, bool is_strict) {
  size_t punished = 0;
  for (const std::string& text : card.violations()) {
    const bool is_let_pass = !is_strict && is_borne(text);
    punished += is_let_pass ? 0 : 1;
    fmt::print(stderr, "sim-nv-pci: {}: {}\n",
               is_let_pass ? "violation that cards bear" : "violation", text);
  }
  const auto deaths = card.deaths();
  for (const std::string& text : deaths) fmt::print(stderr, "sim-nv-pci: died: {}\n", text);
  const auto& counts = card.counts();
  auto& engines = card.engines().counts();
  fmt::print(stderr,
             "sim-nv-pci: {} requests; registers {} read, {} written; memory {} reads of {} bytes, "
             "{} writes of {} bytes; {} RPCs; {} doorbells, {} methods, {} kernels, {} copies; {} "
             "violations\n",
             requests, counts.register_reads.load(), counts.register_writes.load(),
             counts.memory_reads.load(), counts.memory_read_bytes.load(),
             counts.memory_writes.load(), counts.memory_written_bytes.load(),
             card.gsp_queues().commands(), counts.doorbells.load(), engines.methods.load(),
             engines.kernels.load(), engines.copies.load(), card.violations().size());
  for (const size_t violations : card.starts())
    fmt::print(stderr, "sim-nv-pci: GSP-RM was ready after {} violations\n", violations);
  return punished == 0 && (!is_strict || deaths.empty()) ? 0 : 3;
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments = parse(count, words);
  if (arguments.has_help || !arguments.problem.empty()) {
    if (!arguments.problem.empty()) fmt::print(stderr, "sim-nv-pci: {}\n", arguments.problem);
    fmt::print(arguments.has_help ? stdout : stderr, "{}", kUsage);
    return arguments.has_help ? 0 : 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  Card card(std::move(arguments.options));
  card.place_bars();
  uint16_t port = 0;
  const int listener = listen_at(arguments.where, &port);
  if (listener < 0) {
    fmt::print(stderr, "sim-nv-pci: {}: {}\n", arguments.where, std::strerror(errno));
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
    const int on = 1;
    if (port != 0) setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const auto serve = [&](auto server) {
      if (arguments.signal != 0 && client % 2 == 0)
        plan_signal(server, socket, static_cast<int>(arguments.signal),
                    (client / 2 + 1) * arguments.step);
      server.serve(socket);
      requests += server.requests();
    };
    if (arguments.is_vfio_user)
      serve(VfioUserServer(card));
    else
      serve(RemoteServer(card));
    close(socket);
  }
  close(listener);
  if (port == 0) unlink(arguments.where.c_str());
  return report(card, requests, arguments.is_strict);
}
