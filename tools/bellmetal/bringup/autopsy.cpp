#include "drivers/amd/am/autopsy.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/transport/clock.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace am = amd::am;

Json walk_json(const am::PageWalk& walk) {
  Json steps = Json::array();
  for (const memory::PageStep& step : walk.steps)
    steps.push_back({{"level", step.level},
                     {"table", step.table},
                     {"index", step.index},
                     {"entry", step.entry}});
  return {{"address", walk.va},
          {"mapped", walk.is_mapped},
          {"problem", walk.problem},
          {"in_host_memory", walk.is_system},
          {"target", walk.address},
          {"readable", walk.is_readable},
          {"writable", walk.is_writable},
          {"executable", walk.is_executable},
          {"steps", steps}};
}

Json window_json(const am::PacketWindow& window) {
  Json packets = Json::array();
  for (const amd::ListedPacket& packet : window.packets)
    packets.push_back({{"address", window.va + uint64_t{packet.at} * 4},
                       {"dwords", packet.dwords},
                       {"text", packet.text},
                       {"bad", packet.is_bad}});
  return {{"read_address", window.va}, {"packets", packets}, {"problem", window.problem}};
}

Json queue_json(const am::QueueState& queue) {
  Json json = {{"name", queue.name},
               {"active", queue.is_active},
               {"ring_address", queue.ring},
               {"ring_bytes", queue.ring_bytes},
               {"read_bytes", queue.read_at},
               {"known_bytes", queue.known_to},
               {"doorbell_dword", queue.doorbell_dword},
               {"doorbell_enabled", queue.is_doorbell_on},
               {"ring", window_json(queue.ring_packets)}};
  if (queue.written_to) json["written_bytes"] = *queue.written_to;
  if (queue.is_copy) json["engine_halted"] = queue.is_halted;
  if (queue.buffer != 0) json["buffer"] = window_json(queue.buffer_packets);
  return json;
}

Json hub_json(const am::HubState& hub) {
  Json json = {{"block", am::block_name(hub.hub)},
               {"page_table_base", hub.table_base},
               {"fault_status", hub.fault.status}};
  if (hub.fault.status == 0) return json;
  json["fault"] = {{"address", hub.fault.address},
                   {"client", hub.fault.client},
                   {"write", hub.fault.is_write},
                   {"permissions", hub.fault.permissions},
                   {"walker_error", hub.fault.walker_error},
                   {"mapping_error", hub.fault.is_mapping_error}};
  if (hub.walk) json["walk"] = walk_json(*hub.walk);
  return json;
}

Json to_json(const am::Autopsy& seen) {
  Json json = {{"cause", am::hang_cause_name(seen.verdict.cause)},
               {"text", seen.verdict.text},
               {"remedy", seen.verdict.remedy}};
  json["hubs"] = json["walks"] = json["queues"] = json["waves"] = Json::array();
  for (const am::HubState& hub : seen.hubs) json["hubs"].push_back(hub_json(hub));
  for (const am::PageWalk& walk : seen.walks) json["walks"].push_back(walk_json(walk));
  for (const am::QueueState& queue : seen.queues) json["queues"].push_back(queue_json(queue));
  for (const am::WaveState& wave : seen.waves.waves)
    json["waves"].push_back({{"chiplet", wave.chiplet},
                             {"engine", wave.engine},
                             {"array", wave.array},
                             {wave.is_gfx9 ? "cu" : "wgp", wave.unit},
                             {"simd", wave.simd},
                             {"slot", wave.slot},
                             {"status", wave.status},
                             {"exceptions", wave.exceptions},
                             {"pc", wave.pc},
                             {"exec", wave.exec},
                             {"halted", wave.is_halted},
                             {"trapped", wave.is_in_trap},
                             {"at_barrier", wave.is_in_barrier}});
  json["every_wave_looked_at"] = seen.waves.is_whole;
  json["interrupts_waiting"] = seen.interrupts_waiting;
  json["interrupt_overflow"] = seen.has_interrupt_overflow;
  json["registers"] = Json::array();
  for (const am::SeenRegister& one : seen.registers)
    json["registers"].push_back({{"name", one.name}, {"value", one.value}, {"fields", one.fields}});
  if (!seen.note.empty()) json["incomplete"] = seen.note;
  if (!seen.left_out.empty()) json["left_out"] = seen.left_out;
  if (!seen.unknown.empty()) json["not_looked_at"] = seen.unknown;
  return json;
}

/// A card that answers nothing has no discovery table either, which is its verdict.
Result<am::Autopsy> look(am::Bus& bus, const AutopsyCommand& options) {
  BM_TRY(bus.open());
  am::AutopsyOptions wanted;
  wanted.addresses = options.addresses;
  // Nobody waits but who has asked: every wave of eight chiplets, through a socket if need be.
  wanted.limit_us = 10'000'000;
  const auto card = am::discover(bus, settings().amd_experimental);
  if (card) return am::examine(bus, *card, wanted);
  if (card.error().code != Code::kDeviceLost) return tl::unexpected(card.error());
  am::Bus again = bus.anew();
  return am::examine(again, am::Card{}, wanted);
}

}  // namespace

int run_autopsy(System& system, const AutopsyCommand& options) {
  const bool as_json = options.card.as_json;
  std::string chosen;
  const auto function = open_function(system, options.card, &chosen);
  if (!function) return report(function.error(), as_json);
  if ((*function)->identity().vendor == kNvidiaVendor)
    return autopsy_nvidia(**function, options, chosen);
  am::Bus bus(**function, real_clock());
  const auto seen = look(bus, options);
  if (!seen) return report(seen.error(), as_json);
  if (as_json) {
    Json json = {{"function", chosen}};
    json.update(to_json(*seen));
    print_json(json);
  } else {
    fmt::print("{}", seen->text());
  }
  return kOk;
}

}  // namespace bm::cli
