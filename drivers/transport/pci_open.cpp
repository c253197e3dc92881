#include "drivers/transport/pci_open.h"

#include <algorithm>
#include <charconv>

#include "drivers/transport/pci_remote.h"
#include "drivers/transport/pci_sysfs.h"
#include "drivers/transport/pci_vfio.h"
#include "drivers/transport/pci_vfio_user.h"
#include "runtime/base/env.h"

namespace bm {
namespace {

const char* const kLocks = "/run/lock";

struct Prefix {
  const char* text;
  PciSelector::Way way;
};
constexpr Prefix kPrefixes[] = {
    {"vfio:", PciSelector::Way::kVfio},
    {"sysfs:", PciSelector::Way::kSysfs},
    {"remote:", PciSelector::Way::kRemote},
    {"vfio-user:", PciSelector::Way::kVfioUser},
};

}  // namespace

Result<PciSelector> parse_pci_selector(std::string_view text) {
  const auto wrong = [text] {
    return fail(Code::kInvalidArgument,
                "'{}' names no PCI function; there are 0000:03:00.0, vfio:0000:03:00.0, "
                "sysfs:0000:03:00.0, remote:/path, remote:localhost:6667, vfio-user:/path",
                text);
  };
  PciSelector selector;
  std::string_view rest = text;
  for (const Prefix& prefix : kPrefixes)
    if (rest == text && text.starts_with(prefix.text)) {
      selector.way = prefix.way;
      rest.remove_prefix(std::string_view(prefix.text).size());
    }
  if (selector.way == PciSelector::Way::kVfio || selector.way == PciSelector::Way::kSysfs) {
    const Result<PciAddress> address = parse_pci_address(rest);
    if (!address) return wrong();
    selector.address = *address;
    return selector;
  }
  const size_t hash = rest.rfind('#');
  if (selector.way == PciSelector::Way::kRemote && hash != std::string_view::npos) {
    const std::string_view number = rest.substr(hash + 1);
    const char* const end = number.data() + number.size();
    const auto [stop, problem] = std::from_chars(number.data(), end, selector.index);
    if (problem != std::errc() || stop != end) return wrong();
    rest = rest.substr(0, hash);
  }
  const bool is_path = rest.size() > 1 && rest.starts_with('/');
  const bool is_port = selector.way == PciSelector::Way::kRemote &&
                       rest.find(':') != std::string_view::npos && !rest.starts_with('/');
  if (!is_path && !is_port) return wrong();
  selector.server = std::string(rest);
  return selector;
}

Result<std::vector<PciSelector>> parse_pci_selectors(std::string_view text) {
  std::vector<PciSelector> selectors;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    selectors.push_back(BM_TRY(parse_pci_selector(text.substr(0, end))));
    if (end + 1 == text.size())
      return fail(Code::kInvalidArgument, "'{}' ends in a comma: a PCI function is missing", text);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return selectors;
}

std::string to_string(const PciSelector& selector) {
  for (const Prefix& prefix : kPrefixes) {
    if (prefix.way != selector.way) continue;
    if (selector.server.empty()) return prefix.text + to_string(selector.address);
    const std::string index = selector.index == 0 ? "" : fmt::format("#{}", selector.index);
    return prefix.text + selector.server + index;
  }
  return {};
}

Result<std::unique_ptr<PciFunction>> open_pci(System& system, const PciSelector& selector) {
  switch (selector.way) {
    case PciSelector::Way::kVfio:
      return open_vfio_pci(system, {.address = selector.address,
                                    .is_no_iommu_allowed = settings().unsafe_noiommu,
                                    .lock_folder = kLocks});
    case PciSelector::Way::kSysfs: return open_sysfs_pci(system, selector.address, kLocks);
    case PciSelector::Way::kRemote: {
      RemotePciOptions options{.address = selector.server, .index = selector.index};
      if (selector.vendor != 0)
        options.probe =
            RemotePciProbe{.vendor = selector.vendor, .base_class = selector.base_class};
      // Who waits longer for kernels waits longer for a model that runs them before it answers.
      options.reply_limit =
          std::max(options.reply_limit, std::chrono::milliseconds(settings().wait_timeout_ms));
      return open_remote_pci(system, options);
    }
    case PciSelector::Way::kVfioUser:
      return open_vfio_user_pci(system, {.address = selector.server});
  }
  __builtin_unreachable();
}

}  // namespace bm
