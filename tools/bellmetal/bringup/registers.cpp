#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/transport/clock.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/chips.h"
#include "tools/bellmetal/bringup/firmware_nvidia.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/bringup/pattern.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using amd::am::At;
using amd::am::Block;
using amd::am::BootRegister;

struct Named {
  Block block{};
  amd::am::BlockTable table;
  const BootRegister* row = nullptr;
};

/// A register's number: what the bus reaches has byte addresses of 32 bits.
Result<uint64_t> dword_address(uint64_t dword) {
  constexpr uint64_t kMost = UINT32_MAX / 4;
  if (dword > kMost)
    return fail(Code::kInvalidArgument, "{:#x} is no dword address of a register: at most {:#x}",
                dword, kMost);
  return dword;
}

/// "NAME" or "BLOCK.NAME".
std::vector<Named> find_named(const std::vector<KnownBlock>& blocks, std::string_view pattern) {
  std::vector<Named> found;
  for (const KnownBlock& known : blocks)
    for (const BootRegister& row : known.table.registers) {
      const std::string full = fmt::format("{}.{}", amd::am::block_name(known.block), row.name);
      if (matches(pattern, row.name) || matches(pattern, full))
        found.push_back({known.block, known.table, &row});
    }
  return found;
}

tl::unexpected<Error> no_register(std::string_view name) {
  return fail(Code::kInvalidArgument,
              "no register '{}' in the tables of this chip; `bellmetal gpu regs read '*'` lists "
              "them, and a dword address as 0x378c needs no name",
              name);
}

Json fields_json(const Named& named, uint32_t value) {
  Json fields = Json::object();
  for (const auto& at : named.table.fields_of(*named.row))
    fields[std::string(amd::am::field_name(at.field))] = at.bits.get(value);
  return fields;
}

Json value_json(const Named& named, uint64_t dword, uint32_t value) {
  return {{"block", amd::am::block_name(named.block)},
          {"name", named.row->name},
          {"dword", dword},
          {"value", value},
          {"fields", fields_json(named, value)}};
}

void print_value(const Json& json) {
  const std::string block = json["block"].get<std::string>();
  fmt::print("{}{} = {:#010x}", block.empty() ? "" : block + ".", json["name"].get<std::string>(),
             json["value"].get<uint32_t>());
  if (json.contains("dword")) fmt::print("  at dword {:#x}", json["dword"].get<uint64_t>());
  fmt::print("\n");
  if (!json.contains("fields")) return;
  for (const auto& [name, value] : json["fields"].items())
    fmt::print("    {:<44} {:#x}\n", name, value.get<uint32_t>());
}

int finish(const Json& list, bool as_json) {
  if (as_json)
    print_json({{"registers", list}});
  else
    for (const Json& one : list) print_value(one);
  return kOk;
}

/// A card that is looked at and not booted.
struct Look {
  std::unique_ptr<PciFunction> function;
  std::unique_ptr<amd::am::Bus> bus;
  std::vector<KnownBlock> blocks;
};
Result<Look> open_look(std::unique_ptr<PciFunction> function) {
  Look look;
  look.function = std::move(function);
  look.bus = std::make_unique<amd::am::Bus>(*look.function, real_clock());
  BM_TRY(look.bus->open());
  BM_TRY(amd::am::discover(*look.bus, settings().amd_experimental));
  for (const auto& [block, table] : look.bus->blocks()) look.blocks.push_back({block, table});
  return look;
}

Result<Json> read_one(Look& look, const std::string& name) {
  Json list = Json::array();
  if (const auto dword = parse_number(name)) {
    const uint32_t value = look.bus->read_dword(BM_TRY(dword_address(*dword)));
    BM_TRY(look.bus->status());
    list.push_back({{"block", ""}, {"name", name}, {"dword", *dword}, {"value", value}});
    return list;
  }
  const std::vector<Named> found = find_named(look.blocks, name);
  if (found.empty()) return no_register(name);
  for (const Named& named : found) {
    const At at{named.block, named.row->reg};
    const uint64_t dword = look.bus->address(at);
    const uint32_t value = look.bus->read(at);
    BM_TRY(look.bus->status());
    list.push_back(value_json(named, dword, value));
  }
  return list;
}

/// Writes and reads back.
Result<Json> write_one(Look& look, const RegisterOptions& options) {
  const uint32_t value = BM_TRY(parse_word(options.value));
  if (const auto dword = parse_number(options.name)) {
    look.bus->write_dword(BM_TRY(dword_address(*dword)), value);
    BM_TRY(look.bus->status());
    return read_one(look, options.name);
  }
  std::vector<Named> found = find_named(look.blocks, options.name);
  std::string_view field;
  if (found.empty())
    if (const size_t dot = options.name.rfind('.'); dot != std::string::npos) {
      found = find_named(look.blocks, std::string_view(options.name).substr(0, dot));
      field = std::string_view(options.name).substr(dot + 1);
    }
  if (found.empty()) return no_register(options.name);
  if (found.size() > 1)
    return fail(Code::kInvalidArgument, "'{}' names {} registers; only one is written at a time",
                options.name, found.size());
  const Named& named = found.front();
  const At at{named.block, named.row->reg};
  uint32_t all = value;
  if (!field.empty()) {
    const auto fields = named.table.fields_of(*named.row);
    const auto known = std::ranges::find_if(
        fields, [&](const auto& one) { return matches(field, amd::am::field_name(one.field)); });
    if (known == fields.end())
      return fail(Code::kInvalidArgument, "{} has no field '{}' known here", named.row->name,
                  field);
    if (value > known->bits.max())
      return fail(Code::kInvalidArgument, "{:#x} does not fit into {}.{}: at most {:#x}", value,
                  named.row->name, field, known->bits.max());
    all = (look.bus->read(at) & ~known->bits.put(UINT32_MAX)) | known->bits.put(value);
  }
  BM_TRY(look.bus->status());
  look.bus->write(at, all);
  BM_TRY(look.bus->status());
  return read_one(look, fmt::format("{}.{}", amd::am::block_name(named.block), named.row->name));
}

}  // namespace

int run_registers_read(System& system, const RegisterOptions& options) {
  std::string chosen;
  auto function = open_function(system, options.card, &chosen);
  if (!function) return report(function.error(), options.card.as_json);
  if ((*function)->identity().vendor == kNvidiaVendor)
    return read_nvidia_registers(**function, options);
  auto look = open_look(std::move(*function));
  if (!look) return report(look.error(), options.card.as_json);
  Json all = Json::array();
  for (const std::string& name : options.names) {
    const auto list = read_one(*look, name);
    if (!list) return report(list.error(), options.card.as_json);
    all.insert(all.end(), list->begin(), list->end());
  }
  return finish(all, options.card.as_json);
}

int run_registers_write(System& system, const RegisterOptions& options) {
  if (!options.is_sure)
    return report({Code::kInvalidArgument,
                   fmt::format("writing {} can hang the card and the machine; nothing was written: "
                               "repeat it with --yes",
                               options.name)},
                  options.card.as_json);
  std::string chosen;
  auto function = open_function(system, options.card, &chosen);
  if (!function) return report(function.error(), options.card.as_json);
  if ((*function)->identity().vendor == kNvidiaVendor)
    return write_nvidia_register(**function, options);
  auto look = open_look(std::move(*function));
  if (!look) return report(look.error(), options.card.as_json);
  const auto list = write_one(*look, options);
  if (!list) return report(list.error(), options.card.as_json);
  return finish(*list, options.card.as_json);
}

int run_registers_decode(System& /*system*/, const RegisterOptions& options) {
  if (is_nvidia_chip(options.chip)) return decode_nvidia_register(options);
  const auto blocks = known_blocks(options.chip);
  if (!blocks) return report(blocks.error(), options.card.as_json);
  const auto value = parse_word(options.value);
  if (!value) return report(value.error(), options.card.as_json);
  const std::vector<Named> found = find_named(*blocks, options.name);
  if (found.empty())
    return report(
        {Code::kInvalidArgument,
         fmt::format("no register '{}' in the tables of {}; `bellmetal gpu regs decode '*' "
                     "0 --chip {}` lists them",
                     options.name, options.chip, options.chip)},
        options.card.as_json);
  Json list = Json::array();
  for (const Named& named : found)
    list.push_back({{"block", amd::am::block_name(named.block)},
                    {"name", named.row->name},
                    {"value", *value},
                    {"fields", fields_json(named, *value)}});
  return finish(list, options.card.as_json);
}

}  // namespace bm::cli
