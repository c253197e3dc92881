#include "tools/bellmetal/bringup/nvidia.h"

#include <fmt/format.h>

#include "drivers/nv/gsp/card.h"
#include "drivers/transport/clock.h"
#include "tools/bellmetal/bringup/boot_report.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

int boot_nvidia(std::unique_ptr<PciFunction> function, const BootOptions& options,
                const std::string& chosen, TraceFile* trace) {
  const bool as_json = options.card.as_json;
  std::string_view refused;
  if (options.runs_kernel) refused = "--kernel";
  if (options.always_reset) refused = "--reset";
  if (options.power_limit_w != 0) refused = "--power-limit";
  if (!refused.empty())
    return report({Code::kUnsupported,
                   fmt::format("{} is for AMD cards: an NVIDIA card is booted and left again, "
                               "nothing else; take the option away",
                               refused)},
                  as_json);
  const PciIdentity identity = function->identity();
  auto record = std::make_shared<PciRecord>(trace != nullptr ? trace->sink() : PciRecord::Sink{});
  StagePrinter printer(*record, nv::gsp::boot_terms(), as_json);
  // Ctrl-C ends a wait; what has been started is left to the next start's reset.
  const InterruptScope interruptible(OnInterrupt::kAskOnly);
  auto card = nv::gsp::GspCard::open(
      std::make_unique<PciRecorder>(std::move(function), record),
      {.firmware = options.card.search(), .watcher = &printer, .stop = &interrupt_flag()});
  Json json = {{"function", chosen},
               {"vendor", fmt::format("{:04x}", identity.vendor)},
               {"device", fmt::format("{:04x}", identity.device)},
               {"booted", card.has_value()}};
  Status left;
  if (card) {
    json["chip"] = (*card)->facts().chip;
    json["firmware"] = (*card)->firmware_version();
    json["video_memory_bytes"] = (*card)->video_bytes();
    json["was_reset"] = (*card)->was_reset();
    if (!as_json)
      fmt::print("booted {} ({}) in {:.1f} ms\n", (*card)->facts().chip,
                 (*card)->firmware_version(), static_cast<double>(printer.us()) / 1000);
    left = (*card)->leave();
  }
  const BootStats stats{.counts = record->counts(), .tables = {}};
  json["time_us"] = printer.us();
  json["stages"] = printer.json();
  if (options.has_stats) json["accesses"] = stats.json();
  const Error error = !card ? card.error() : !left ? left.error() : Error{};
  const bool is_fine = card && left;
  if (!is_fine) json["error"] = json_of(error);
  if (!as_json && options.has_stats) stats.print();
  card = tl::unexpected(Error{});
  record->flush();
  if (trace != nullptr && !trace->status())
    return report_file(trace->status().error(), options.trace, as_json);
  const int code = is_fine ? kOk : exit_code(error.code);
  if (as_json) {
    print_json(json);
    return code;
  }
  return is_fine ? code : report(error, false);
}

Status discover_nvidia(PciFunction& function, Json* json) {
  using namespace nv::gsp;
  Bus bus(function, real_clock());
  BM_TRY(bus.open());
  const CardFacts facts = BM_TRY(identify(bus));
  const bool is_done = is_rom_done(bus, *facts.generation);
  (*json)["chip"] = facts.chip;
  (*json)["generation"] = facts.generation->family;
  (*json)["boot_0"] = facts.boot0;
  (*json)["boot_42"] = facts.boot42;
  (*json)["rom_done"] = is_done;
  // Before that the registers do not say it.
  if (is_done) (*json)["video_memory_bytes"] = BM_TRY(read_memory_bytes(bus, *facts.generation));
  (*json)["protected_memory_end"] = protected_memory_end(bus);
  return bus.status();
}

void print_nvidia(const Json& json) {
  fmt::print("chip: {} ({}), PMC_BOOT_0 {:#x}, PMC_BOOT_42 {:#x}\n",
             json["chip"].get<std::string>(), json["generation"].get<std::string>(),
             json["boot_0"].get<uint32_t>(), json["boot_42"].get<uint32_t>());
  fmt::print("ROM: {}\n", json["rom_done"].get<bool>() ? "through" : "not through yet");
  if (json.contains("video_memory_bytes"))
    fmt::print("video memory: {}\n", human_bytes(json["video_memory_bytes"].get<uint64_t>()));
  const auto end = json["protected_memory_end"].get<uint64_t>();
  fmt::print("{}\n", end == 0 ? std::string("no GSP has left protected memory")
                              : fmt::format("a GSP has protected memory up to {:#x}: the next boot "
                                            "resets the card",
                                            end));
}

}  // namespace bm::cli
