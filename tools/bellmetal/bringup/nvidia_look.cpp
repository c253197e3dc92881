// `bellmetal gpu autopsy` and `gpu regs` for NVIDIA's cards.

#include <algorithm>

#include <fmt/format.h>

#include "drivers/nv/gsp/register_names.h"
#include "drivers/nv/rm_gsp/autopsy.h"
#include "drivers/transport/clock.h"
#include "firmware/nvidia/set.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/bringup/pattern.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using nv::gsp::NamedField;
using nv::gsp::NamedRegister;

Json nvidia_walk_json(const nv::gsp::PageWalk& walk) {
  Json steps = Json::array();
  for (const memory::PageStep& step : walk.steps)
    steps.push_back({{"level", step.level},
                     {"table", step.table},
                     {"index", step.index},
                     {"entry", step.entry}});
  return {{"address", walk.va},
          {"root", walk.root},
          {"mapped", walk.is_mapped},
          {"problem", walk.problem},
          {"in_host_memory", walk.is_system},
          {"target", walk.address},
          {"page_bytes", walk.page_bytes},
          {"steps", steps}};
}

Json nvidia_fields(const NamedRegister& which, uint32_t value) {
  Json fields = Json::object();
  for (const NamedField& field : which.fields) fields[std::string(field.name)] = field.get(value);
  return fields;
}

Json nvidia_value(const NamedRegister& which, uint32_t value) {
  return {{"block", ""},
          {"name", which.name},
          {"byte", which.offset},
          {"value", value},
          {"fields", nvidia_fields(which, value)}};
}

int finish_nvidia(const Json& list, bool as_json) {
  if (as_json) {
    print_json({{"registers", list}});
    return kOk;
  }
  for (const Json& one : list) {
    fmt::print("{} = {:#010x}", one["name"].get<std::string>(), one["value"].get<uint32_t>());
    if (one.contains("byte")) fmt::print("  at byte {:#x}", one["byte"].get<uint32_t>());
    fmt::print("\n");
    if (!one.contains("fields")) continue;
    for (const auto& [name, value] : one["fields"].items())
      fmt::print("    {:<44} {:#x}\n", name, value.get<uint32_t>());
  }
  return kOk;
}

tl::unexpected<Error> no_nvidia_register(std::string_view name) {
  return fail(
      Code::kInvalidArgument,
      "no register '{}' that is named here; `bellmetal gpu regs read '*'` lists them, and a "
      "byte address in BAR 0 as 0x1183a4 needs no name",
      name);
}

/// A byte address in BAR 0. Errors: kInvalidArgument.
Result<uint32_t> byte_address(uint64_t at) {
  constexpr uint64_t kBar0 = 16 << 20;
  if (at % 4 != 0 || at >= kBar0)
    return fail(Code::kInvalidArgument, "{:#x} is no multiple of 4 within BAR 0 (16 MiB)", at);
  return static_cast<uint32_t>(at);
}

std::vector<const NamedRegister*> find_nvidia(std::string_view pattern,
                                              const nv::gsp::Generation* generation) {
  std::vector<const NamedRegister*> found;
  for (const NamedRegister& one : nv::gsp::named_registers())
    if (matches(pattern, one.name) && (generation == nullptr || one.is_there(*generation)))
      found.push_back(&one);
  return found;
}

Result<Json> read_nvidia(nv::gsp::Bus& bus, const nv::gsp::Generation& generation,
                         const std::string& name) {
  Json list = Json::array();
  if (const auto at = parse_number(name)) {
    const uint32_t value = bus.probe({name, BM_TRY(byte_address(*at))});
    list.push_back({{"block", ""}, {"name", name}, {"byte", *at}, {"value", value}});
  } else {
    const auto found = find_nvidia(name, &generation);
    if (found.empty()) return no_nvidia_register(name);
    for (const NamedRegister* const one : found)
      list.push_back(nvidia_value(*one, bus.probe({one->name, one->offset})));
  }
  BM_TRY(bus.status());
  return list;
}

Result<Json> write_nvidia(nv::gsp::Bus& bus, const nv::gsp::Generation& generation,
                          const RegisterOptions& options) {
  const uint32_t value = BM_TRY(parse_word(options.value));
  if (const auto at = parse_number(options.name)) {
    bus.write({options.name, BM_TRY(byte_address(*at))}, value);
    BM_TRY(bus.status());
    return read_nvidia(bus, generation, options.name);
  }
  std::string_view name = options.name, field;
  auto found = find_nvidia(name, &generation);
  if (const size_t dot = name.rfind('.'); found.empty() && dot != std::string_view::npos) {
    field = name.substr(dot + 1);
    name = name.substr(0, dot);
    found = find_nvidia(name, &generation);
  }
  if (found.empty()) return no_nvidia_register(options.name);
  if (found.size() > 1)
    return fail(Code::kInvalidArgument, "'{}' names {} registers; only one is written at a time",
                options.name, found.size());
  const NamedRegister& one = *found.front();
  const nv::gsp::Register where{one.name, one.offset};
  uint32_t all = value;
  if (!field.empty()) {
    const auto known = std::ranges::find_if(
        one.fields, [&](const NamedField& each) { return matches(field, each.name); });
    if (known == one.fields.end())
      return fail(Code::kInvalidArgument, "{} has no field '{}' known here", one.name, field);
    if (value > known->max())
      return fail(Code::kInvalidArgument, "{:#x} does not fit into {}.{}: at most {:#x}", value,
                  one.name, field, known->max());
    all = (bus.probe(where) & ~(known->max() << known->low)) | value << known->low;
  }
  bus.write(where, all);
  BM_TRY(bus.status());
  return read_nvidia(bus, generation, std::string(one.name));
}

}  // namespace

int autopsy_nvidia(PciFunction& function, const AutopsyCommand& options,
                   const std::string& chosen) {
  const bool as_json = options.card.as_json;
  nv::gsp::Bus bus(function, real_clock());
  if (const Status opened = bus.open(); !opened) return report(opened.error(), as_json);
  const auto seen = nv::gsp::examine(bus, options.addresses);
  if (!seen) return report(seen.error(), as_json);
  if (!as_json) {
    fmt::print("{}", seen->text());
    return kOk;
  }
  Json json = {{"function", chosen},       {"cause", nv::gsp::gsp_cause_name(seen->cause)},
               {"text", seen->verdict},    {"remedy", seen->remedy},
               {"chip", seen->facts.chip}, {"video_memory_bytes", seen->video_bytes}};
  json["walks"] = json["registers"] = Json::array();
  for (const auto& walk : seen->walks) json["walks"].push_back(nvidia_walk_json(walk));
  for (const auto& one : seen->registers)
    json["registers"].push_back({{"name", one.name}, {"value", one.value}, {"fields", one.fields}});
  print_json(json);
  return kOk;
}

int read_nvidia_registers(PciFunction& function, const RegisterOptions& options) {
  nv::gsp::Bus bus(function, real_clock());
  const auto read = [&]() -> Result<Json> {
    BM_TRY(bus.open());
    const nv::gsp::CardFacts facts = BM_TRY(nv::gsp::identify(bus));
    Json all = Json::array();
    for (const std::string& name : options.names) {
      const Json list = BM_TRY(read_nvidia(bus, *facts.generation, name));
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }();
  if (!read) return report(read.error(), options.card.as_json);
  return finish_nvidia(*read, options.card.as_json);
}

int write_nvidia_register(PciFunction& function, const RegisterOptions& options) {
  nv::gsp::Bus bus(function, real_clock());
  const auto written = [&]() -> Result<Json> {
    BM_TRY(bus.open());
    const nv::gsp::CardFacts facts = BM_TRY(nv::gsp::identify(bus));
    return write_nvidia(bus, *facts.generation, options);
  }();
  if (!written) return report(written.error(), options.card.as_json);
  return finish_nvidia(*written, options.card.as_json);
}

int decode_nvidia_register(const RegisterOptions& options) {
  const bool as_json = options.card.as_json;
  const auto value = parse_word(options.value);
  if (!value) return report(value.error(), as_json);
  const auto found = find_nvidia(options.name, nullptr);
  if (found.empty())
    return report(
        {Code::kInvalidArgument,
         fmt::format("no register '{}' that is named here; `bellmetal gpu regs decode '*' 0 "
                     "--chip {}` lists them",
                     options.name, options.chip)},
        as_json);
  Json list = Json::array();
  for (const NamedRegister* const one : found)
    list.push_back({{"block", ""},
                    {"name", one->name},
                    {"value", *value},
                    {"fields", nvidia_fields(*one, *value)}});
  return finish_nvidia(list, as_json);
}

Result<std::string> nvidia_chip_of(PciFunction& function) {
  nv::gsp::Bus bus(function, real_clock());
  BM_TRY(bus.open());
  return std::string(BM_TRY(nv::gsp::identify(bus)).chip);
}

}  // namespace bm::cli
