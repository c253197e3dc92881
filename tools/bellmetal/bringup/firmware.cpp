#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/transport/clock.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/chips.h"
#include "tools/bellmetal/bringup/firmware_nvidia.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using firmware::amd::FirmwareSet;
using firmware::amd::SetFile;

/// NVIDIA's cards are named by their chip; of others the function stays open.
Result<std::unique_ptr<PciFunction>> open_card(System& system, FirmwareOptions* options) {
  if (!options->chip.empty()) return std::unique_ptr<PciFunction>();
  std::string chosen;
  auto function = BM_TRY(open_function(system, options->card, &chosen));
  if (function->identity().vendor != kNvidiaVendor) return function;
  options->chip = BM_TRY(nvidia_chip_of(*function));
  return std::unique_ptr<PciFunction>();
}

/// Of the chip that was named, else of the card.
Result<FirmwareSet> find_set(PciFunction* function, const FirmwareOptions& options) {
  if (!options.chip.empty())
    return firmware::amd::firmware_set(BM_TRY(known_chip_id(options.chip)));
  amd::am::Bus bus(*function, real_clock());
  BM_TRY(bus.open());
  const auto table = BM_TRY(amd::am::read_discovery(bus));
  const PciIdentity& id = function->identity();
  return firmware::amd::firmware_set(
      BM_TRY(firmware::amd::chip_id(table.discovery, id.device, id.revision)));
}

Json describe(const SetFile& wanted, const firmware::Search& search) {
  Json json = {{"name", wanted.name},
               {"kind", firmware::amd::kind_name(wanted.kind)},
               {"optional", wanted.is_optional}};
  const auto file = firmware::load(wanted.name, search);
  // A file that cannot be taken is there: its package would not help.
  json["found"] = file || file.error().code != Code::kNotFound;
  if (!file) {
    json["problem"] = file.error().message;
    if (!json["found"].get<bool>()) json["packages"] = packages_of(wanted.name);
    return json;
  }
  json["path"] = file->path;
  json["bytes"] = file->bytes.size();
  if (file->row != nullptr)
    json["known_as"] =
        fmt::format("{} {} ({})", file->row->package, file->row->package_version, file->row->suite);
  const auto ucode = firmware::amd::parse(wanted, firmware::Image(file->path, file->bytes));
  if (!ucode) {
    json["problem"] = ucode.error().message;
    return json;
  }
  json["header_version"] =
      fmt::format("{}.{}", ucode->header.header_version_major, ucode->header.header_version_minor);
  json["ucode_version"] = ucode->header.ucode_version;
  json["crc32"] = ucode->header.crc32;
  json["parts"] = Json::array();
  for (const auto& part : ucode->parts)
    json["parts"].push_back({{"name", firmware::amd::part_name(part.id)},
                             {"bytes", part.bytes.size()},
                             {"version", part.version}});
  return json;
}

bool is_fine(const Json& file) { return !file.contains("problem"); }

}  // namespace

int run_firmware_list(System& system, const FirmwareOptions& wanted_set) {
  FirmwareOptions options = wanted_set;
  const bool as_json = options.card.as_json;
  const auto function = open_card(system, &options);
  if (!function) return report(function.error(), as_json);
  if (is_nvidia_chip(options.chip)) return list_nvidia_firmware(options);
  const auto set = find_set(function->get(), options);
  if (!set) return report(set.error(), as_json);
  const firmware::Search search = options.card.search();
  Json files = Json::array();
  for (const SetFile& wanted : set->files) files.push_back(describe(wanted, search));
  if (as_json) {
    print_json({{"chip", set->arch}, {"folders", search.folders}, {"files", files}});
    return kOk;
  }
  fmt::print("{} wants {} files; looked for in {}\n", set->arch, files.size(),
             fmt::join(search.folders, ", "));
  Table table({{"file"}, {"kind"}, {"header"}, {"version"}, {"CRC"}, {"state"}});
  for (const Json& file : files) {
    const bool has_header = file.contains("header_version");
    table.add({file["name"].get<std::string>(), file["kind"].get<std::string>(),
               has_header ? file["header_version"].get<std::string>() : "",
               has_header ? fmt::format("{:#x}", file["ucode_version"].get<uint32_t>()) : "",
               has_header ? fmt::format("{:08x}", file["crc32"].get<uint32_t>()) : "",
               is_fine(file)               ? file["path"].get<std::string>()
               : file["found"].get<bool>() ? "no good: " + file["problem"].get<std::string>()
               : file["optional"].get<bool>()
                   ? "missing, optional: " + file["packages"].get<std::string>()
                   : "missing: " + file["packages"].get<std::string>()});
  }
  fmt::print("{}", table.text());
  return kOk;
}

int run_firmware_check(System& system, const FirmwareOptions& wanted_set) {
  FirmwareOptions options = wanted_set;
  const bool as_json = options.card.as_json;
  const auto function = open_card(system, &options);
  if (!function) return report(function.error(), as_json);
  if (is_nvidia_chip(options.chip)) return check_nvidia_firmware(options);
  const auto set = find_set(function->get(), options);
  if (!set) return report(set.error(), as_json);
  const std::vector<std::string> problems = firmware::amd::check_set(*set, options.card.search());
  const auto needed = std::ranges::count(set->files, false, &SetFile::is_optional);
  if (as_json)
    print_json({{"chip", set->arch}, {"files", needed}, {"problems", problems}});
  else if (problems.empty())
    fmt::print("{}: {} files, all there and whole\n", set->arch, needed);
  else
    for (const std::string& problem : problems) fmt::print("{}\n", problem);
  return problems.empty() ? kOk : kUnavailable;
}

}  // namespace bm::cli
