#include "tools/bellmetal/bringup/trace_diff.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/regs/boot_registers.h"
#include "drivers/nv/gsp/register_names.h"
#include "drivers/transport/mmiotrace.h"
#include "firmware/amd/discovery.h"
#include "tools/bellmetal/bringup/vendors.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using amd::am::Block;

bool is_known(uint16_t vendor) { return vendor == kAmdVendor || vendor == kNvidiaVendor; }
/// The BAR that shows registers.
uint32_t register_bar(uint16_t vendor) { return vendor == kNvidiaVendor ? 0 : 5; }

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

using Names = std::map<uint64_t, std::string>;  // by offset in bytes

void add_nvidia_names(Names* names) {
  for (const nv::gsp::NamedRegister& one : nv::gsp::named_registers())
    names->emplace(one.offset, one.name);
}

void add_amd_names(const PciTrace& trace, Names* names) {
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
          (*names)[4 * (ip->base_address[row.segment] + row.offset)] = std::string(row.name);
    }
  }
}

std::map<uint64_t, RegisterUse> uses_of(const PciTrace& trace) {
  std::map<uint64_t, RegisterUse> uses;
  for (const PciAccess& access : trace.accesses) {
    if (access.bar != register_bar(trace.identity.vendor)) continue;
    if (access.kind == PciAccess::Kind::kRead) {
      uses[access.offset & ~uint64_t{3}].reads += access.repeats;
    } else if (access.kind == PciAccess::Kind::kWrite) {
      RegisterUse& use = uses[access.offset & ~uint64_t{3}];
      use.writes += access.repeats;
      use.last_written = access.value;
    } else if (access.kind == PciAccess::Kind::kWriteBlock) {
      // What was written is not in the trace, that it was is.
      for (uint64_t at = 0; at < access.bytes; at += 4)
        ++uses[(access.offset + at) & ~uint64_t{3}].writes;
    }
  }
  return uses;
}

Result<std::string> read_whole(const std::string& path) {
  errno = 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  std::string text;
  if (file) {
    std::array<char, 1 << 16> chunk;
    while (const size_t got = std::fread(chunk.data(), 1, chunk.size(), file.get()))
      text.append(chunk.data(), got);
    if (std::ferror(file.get()) == 0) return text;
  }
  const int error = errno;
  return fail(Code::kNotFound, "{} cannot be read: {}", path, errno_text(error));
}

/// `vendor` says whose accesses are looked for in a log of mmiotrace, which has those of every
/// device; 0: those of a card, AMD's first.
Result<PciTrace> parse_trace(const std::string& text, uint16_t vendor) {
  // A lost event or a marker of a shell may stand before the version.
  constexpr size_t kHead = 4096;
  if (!text.starts_with("VERSION ") && text.find("\nVERSION ") >= kHead) {
    auto trace = parse_pci_trace(text);
    if (!trace && !text.starts_with("# bellmetal"))
      return fail(
          Code::kCorrupt,
          "neither a trace of `gpu boot --trace` nor a log of Linux's mmiotrace, whose first "
          "lines say so (a compressed file has to be unpacked)");
    return trace;
  }
  if (vendor != 0) return import_mmiotrace(text, vendor);
  auto trace = import_mmiotrace(text, kAmdVendor);
  if (trace || trace.error().code != Code::kNotFound) return trace;
  trace = import_mmiotrace(text, kNvidiaVendor);
  if (trace || trace.error().code != Code::kNotFound) return trace;
  return fail(Code::kNotFound, "the mmiotrace log has no accesses to a card of AMD's or NVIDIA's");
}

struct TwoTraces {
  PciTrace a, b;
};
/// Errors name the file.
Result<TwoTraces> read_traces(const TraceDiffOptions& options) {
  const std::string a_text = BM_TRY(read_whole(options.a)), b_text = BM_TRY(read_whole(options.b));
  const auto parse = [](const std::string& text, const std::string& path, uint16_t vendor) {
    auto trace = parse_trace(text, vendor);
    if (!trace) trace = tl::unexpected(std::move(trace.error()).within(path));
    return trace;
  };
  // Ours knows its function, which a log is then searched for.
  if (a_text.starts_with("# bellmetal")) {
    PciTrace a = BM_TRY(parse(a_text, options.a, 0));
    const uint16_t vendor = a.identity.vendor;
    return TwoTraces{std::move(a), BM_TRY(parse(b_text, options.b, vendor))};
  }
  PciTrace b = BM_TRY(parse(b_text, options.b, 0));
  const uint16_t vendor = b.identity.vendor;
  return TwoTraces{BM_TRY(parse(a_text, options.a, vendor)), std::move(b)};
}

std::string last_stage(const PciTrace& trace) {
  constexpr std::string_view kStage = "stage ";
  for (auto access = trace.accesses.rbegin(); access != trace.accesses.rend(); ++access)
    if (access->kind == PciAccess::Kind::kMark && access->text.starts_with(kStage))
      return access->text.substr(kStage.size());
  return {};
}

std::vector<std::string> notes_of(const TwoTraces& traces, const TraceDiffOptions& options) {
  std::vector<std::string> notes;
  const auto cut = [&notes](const PciTrace& trace, const std::string& path) {
    if (trace.is_cut)
      notes.push_back(
          fmt::format("{} is cut off: what follows its last whole line is left out", path));
  };
  cut(traces.a, options.a);
  cut(traces.b, options.b);
  const std::string a = last_stage(traces.a), b = last_stage(traces.b);
  if (!a.empty() && !b.empty() && a != b)
    notes.push_back(
        fmt::format("{} ends in stage '{}', {} in stage '{}'", options.a, a, options.b, b));
  const PciIdentity &one = traces.a.identity, &other = traces.b.identity;
  if (one.device != other.device)
    notes.push_back(fmt::format("{} is of {:04x}:{:04x}, {} of {:04x}:{:04x}", options.a,
                                one.vendor, one.device, options.b, other.vendor, other.device));
  return notes;
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

Result<std::vector<RegisterDifference>> diff_traces(const PciTrace& a, const PciTrace& b) {
  const uint16_t vendor = a.identity.vendor;
  if (vendor != b.identity.vendor)
    return fail(
        Code::kInvalidArgument,
        "one is of a function {:04x}:{:04x}, the other of {:04x}:{:04x}: their registers have "
        "nothing in common",
        vendor, a.identity.device, b.identity.vendor, b.identity.device);
  if (!is_known(vendor))
    return fail(
        Code::kUnsupported,
        "registers of {:04x}:{:04x} are not known here: AMD's (1002) and NVIDIA's (10de) are",
        vendor, a.identity.device);
  Names names;
  if (vendor == kNvidiaVendor) {
    add_nvidia_names(&names);
  } else {
    add_amd_names(b, &names);
    add_amd_names(a, &names);
  }
  auto first = uses_of(a), second = uses_of(b);
  if (first.empty() || second.empty())
    return fail(Code::kNotFound,
                "the {} trace has no access to a register (BAR {}): nothing to compare",
                first.empty() ? "first" : "second", register_bar(vendor));
  std::map<uint64_t, RegisterDifference> all;
  for (const auto& [offset, use] : first) all[offset].a = use;
  for (const auto& [offset, use] : second) all[offset].b = use;
  std::vector<RegisterDifference> result;
  for (auto& [offset, one] : all) {
    if (one.a.last_written == one.b.last_written && (one.a.writes != 0) == (one.b.writes != 0))
      continue;
    one.offset = offset;
    if (const auto known = names.find(offset); known != names.end()) one.name = known->second;
    result.push_back(one);
  }
  return result;
}

int run_trace_diff(System& /*system*/, const TraceDiffOptions& options) {
  const auto traces = read_traces(options);
  if (!traces) return report(traces.error(), file_exit_code(traces.error().code), options.as_json);
  const auto differences = diff_traces(traces->a, traces->b);
  if (!differences) return report(differences.error(), kBadFile, options.as_json);
  const std::vector<std::string> notes = notes_of(*traces, options);
  const int code = differences->empty() ? kOk : kFailure;
  // As `gpu regs` writes them: AMD's tables count dwords, NVIDIA's bytes.
  const bool is_in_bytes = traces->a.identity.vendor == kNvidiaVendor;
  const auto place = [is_in_bytes](const RegisterDifference& one) {
    return is_in_bytes ? one.offset : one.offset / 4;
  };
  const char* const unit = is_in_bytes ? "byte" : "dword";
  if (options.as_json) {
    Json list = Json::array();
    for (const RegisterDifference& one : *differences)
      list.push_back(
          {{unit, place(one)}, {"name", one.name}, {"a", to_json(one.a)}, {"b", to_json(one.b)}});
    print_json({{"a", options.a}, {"b", options.b}, {"differences", list}, {"notes", notes}});
    return code;
  }
  for (const std::string& note : notes) print_error(fmt::format("bellmetal: {}\n", note));
  if (differences->empty()) {
    fmt::print("both leave the same values in every register they write\n");
    return code;
  }
  Table table({{unit, Table::Align::kRight}, {"register"}, {options.a}, {options.b}});
  for (const RegisterDifference& one : *differences)
    table.add({fmt::format("{:#x}", place(one)), one.name.empty() ? "?" : one.name, to_text(one.a),
               to_text(one.b)});
  fmt::print("{}", table.text());
  return code;
}

}  // namespace bm::cli
