#include "tools/bellmetal/bringup/trace_diff.h"

#include <fstream>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/regs/boot_registers.h"
#include "drivers/transport/mmiotrace.h"
#include "firmware/amd/discovery.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using amd::am::Block;

constexpr uint32_t kRegisters = 5;  // the BAR
constexpr uint16_t kAmd = 0x1002;

struct BlockId {
  Block block;
  uint16_t hw_id;
};
// As drivers/amd/am/card.cpp has them.
constexpr BlockId kBlocks[] = {
    {Block::kGc, firmware::amd::kGcHwId},         {Block::kMmhub, firmware::amd::kMmhubHwId},
    {Block::kOsssys, firmware::amd::kOsssysHwId}, {Block::kBus, firmware::amd::kNbifHwId},
    {Block::kPsp, firmware::amd::kMp0HwId},       {Block::kSmu, firmware::amd::kMp1HwId},
    {Block::kHdp, firmware::amd::kHdpHwId},
};

using Names = std::map<uint64_t, std::string>;

void add_names(const PciTrace& trace, Names* names) {
  for (const PciAccess& access : trace.accesses) {
    if (access.kind != PciAccess::Kind::kReadBlock ||
        access.data.size() != firmware::amd::kDiscoveryTmrSize)
      continue;
    const auto table = firmware::amd::parse_discovery(
        firmware::Image("the trace's IP discovery table", access.data));
    if (!table) continue;
    for (const BlockId& id : kBlocks) {
      const auto* const ip = table->find(id.hw_id);
      if (ip == nullptr) continue;
      const auto rows = amd::am::block_table(id.block, ip->major, ip->minor, ip->revision);
      if (!rows) continue;
      for (const auto& row : rows->registers)
        if (row.segment < ip->base_address.size())
          (*names)[ip->base_address[row.segment] + row.offset] = std::string(row.name);
    }
  }
}

std::map<uint64_t, RegisterUse> uses_of(const PciTrace& trace) {
  std::map<uint64_t, RegisterUse> uses;
  for (const PciAccess& access : trace.accesses) {
    if (access.bar != kRegisters) continue;
    if (access.kind == PciAccess::Kind::kRead) {
      uses[access.offset / 4].reads += access.repeats;
    } else if (access.kind == PciAccess::Kind::kWrite) {
      RegisterUse& use = uses[access.offset / 4];
      use.writes += access.repeats;
      use.last_written = access.value;
    } else if (access.kind == PciAccess::Kind::kWriteBlock) {
      // What was written is not in the trace, that it was is.
      for (uint64_t at = 0; at < access.bytes; at += 4) ++uses[(access.offset + at) / 4].writes;
    }
  }
  return uses;
}

Result<PciTrace> read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Code::kNotFound, "{} cannot be read", path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return fail(Code::kIo, "{} cannot be read", path);
  const bool is_mmiotrace = text.starts_with("VERSION ") || text.find("\nVERSION ") < 4096;
  auto trace = is_mmiotrace ? import_mmiotrace(text, kAmd) : parse_pci_trace(text);
  if (!trace) return tl::unexpected(std::move(trace.error()).within(path));
  return trace;
}

Json to_json(const RegisterUse& use) {
  Json json = {{"reads", use.reads}, {"writes", use.writes}};
  if (use.last_written) json["last_written"] = *use.last_written;
  return json;
}

std::string to_text(const RegisterUse& use) {
  if (use.writes == 0) return use.reads == 0 ? "-" : "read only";
  return use.last_written ? fmt::format("{:#x} ({} writes)", *use.last_written, use.writes)
                          : fmt::format("{} writes in bursts", use.writes);
}

}  // namespace

std::vector<RegisterDifference> diff_traces(const PciTrace& a, const PciTrace& b) {
  Names names;
  add_names(b, &names);
  add_names(a, &names);
  auto first = uses_of(a), second = uses_of(b);
  std::map<uint64_t, RegisterDifference> all;
  for (const auto& [dword, use] : first) all[dword].a = use;
  for (const auto& [dword, use] : second) all[dword].b = use;
  std::vector<RegisterDifference> result;
  for (auto& [dword, one] : all) {
    if (one.a.last_written == one.b.last_written && (one.a.writes != 0) == (one.b.writes != 0))
      continue;
    one.dword = dword;
    if (const auto known = names.find(dword); known != names.end()) one.name = known->second;
    result.push_back(one);
  }
  return result;
}

int run_trace_diff(System& /*system*/, const TraceDiffOptions& options) {
  const auto a = read_trace(options.a);
  if (!a) return report_file(a.error(), options.a, options.as_json);
  const auto b = read_trace(options.b);
  if (!b) return report_file(b.error(), options.b, options.as_json);
  const auto differences = diff_traces(*a, *b);
  const int code = differences.empty() ? kOk : kFailure;
  if (options.as_json) {
    Json list = Json::array();
    for (const RegisterDifference& one : differences)
      list.push_back(
          {{"dword", one.dword}, {"name", one.name}, {"a", to_json(one.a)}, {"b", to_json(one.b)}});
    print_json({{"a", options.a}, {"b", options.b}, {"differences", list}});
    return code;
  }
  if (differences.empty()) {
    fmt::print("both leave the same values in every register they write\n");
    return code;
  }
  Table table({{"dword", Table::Align::kRight}, {"register"}, {options.a}, {options.b}});
  for (const RegisterDifference& one : differences)
    table.add({fmt::format("{:#x}", one.dword), one.name.empty() ? "?" : one.name, to_text(one.a),
               to_text(one.b)});
  fmt::print("{}", table.text());
  return code;
}

}  // namespace bm::cli
