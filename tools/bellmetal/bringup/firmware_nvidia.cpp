#include "tools/bellmetal/bringup/firmware_nvidia.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "firmware/manifest.h"
#include "firmware/nvidia/set.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

Json describe(const firmware::nvidia::FirmwareSet& set, const firmware::nvidia::SetFile& wanted,
              const firmware::Search& search) {
  Json json = {{"name", wanted.name}, {"kind", firmware::nvidia::kind_name(wanted.kind)}};
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
  const Status status = firmware::nvidia::check_file(wanted.kind, set.family,
                                                     firmware::Image(file->path, file->bytes));
  if (!status) json["problem"] = status.error().message;
  return json;
}

}  // namespace

bool is_nvidia_chip(std::string_view chip) {
  return firmware::nvidia::firmware_set(chip).has_value();
}

std::string packages_of(std::string_view file_name) {
  std::string text;
  for (const firmware::Row& row : firmware::versions_of(file_name)) {
    const std::string one = fmt::format("{} ({} {})", row.package, row.suite, row.package_version);
    if (text.find(one) == std::string::npos) text += (text.empty() ? "" : ", ") + one;
  }
  return text.empty() ? "no package that is known" : text;
}

int list_nvidia_firmware(const FirmwareOptions& options) {
  const bool as_json = options.card.as_json;
  const auto set = firmware::nvidia::firmware_set(options.chip);
  if (!set) return report(set.error(), as_json);
  const firmware::Search search = options.card.search();
  Json files = Json::array();
  for (const firmware::nvidia::SetFile& wanted : set->files)
    files.push_back(describe(*set, wanted, search));
  if (as_json) {
    print_json({{"chip", options.chip},
                {"family", set->family},
                {"fwsec", set->has_fwsec},
                {"folders", search.folders},
                {"files", files}});
    return kOk;
  }
  fmt::print("{} ({}) wants {} files{}; looked for in {}\n", options.chip, set->family,
             files.size(), set->has_fwsec ? " and FWSEC of the card's ROM" : "",
             fmt::join(search.folders, ", "));
  Table table({{"file"}, {"kind"}, {"state"}});
  for (const Json& file : files)
    table.add({file["name"].get<std::string>(), file["kind"].get<std::string>(),
               !file.contains("problem")   ? file["path"].get<std::string>()
               : file["found"].get<bool>() ? "no good: " + file["problem"].get<std::string>()
                                           : "missing: " + file["packages"].get<std::string>()});
  fmt::print("{}", table.text());
  return kOk;
}

int check_nvidia_firmware(const FirmwareOptions& options) {
  const bool as_json = options.card.as_json;
  const auto set = firmware::nvidia::firmware_set(options.chip);
  if (!set) return report(set.error(), as_json);
  const std::vector<std::string> problems =
      firmware::nvidia::check_set(*set, options.card.search());
  if (as_json)
    print_json({{"chip", options.chip}, {"files", set->files.size()}, {"problems", problems}});
  else if (problems.empty())
    fmt::print("{}: {} files, all there and whole\n", options.chip, set->files.size());
  else
    for (const std::string& problem : problems) fmt::print("{}\n", problem);
  return problems.empty() ? kOk : kUnavailable;
}

}  // namespace bm::cli
