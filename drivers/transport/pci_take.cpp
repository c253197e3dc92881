#include "drivers/transport/pci_take.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>

#include "drivers/transport/sysfs.h"
#include "runtime/base/bits.h"
#include "runtime/base/output_file.h"

namespace bm {
namespace {

using Duration = std::chrono::milliseconds;

const char* const kJournalHead = "bellmetal-pci 1";
const char* const kProbe = "/sys/bus/pci/drivers_probe";
constexpr uint32_t kBridge = 0x06, kStorage = 0x01, kNetwork = 0x02;
constexpr size_t kMaxChanges = 256;

Result<std::string> driver_of(System& system, const PciAddress& address) {
  return sysfs_link_name(system, pci_folder(address) + "/driver");
}

/// A write that the kernel may hold back for as long as a driver likes: on a thread of its own,
/// which outlives a caller that gives up.
Status write_bounded(System& system, const std::string& path, const std::string& text,
                     Duration limit) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
    Status status;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, &system, path, text] {
    Status status = write_sysfs(system, path, text);
    const std::lock_guard lock(shared->mutex);
    shared->status = std::move(status);
    shared->is_done = true;
    shared->done.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  if (!shared->done.wait_for(lock, limit, [&shared] { return shared->is_done; }))
    return fail(
        Code::kTimeout,
        "the kernel has not finished writing {} for {} ms: something still holds the device", path,
        limit.count());
  return shared->status;
}

Status unbind(System& system, const PciAddress& address, Duration limit) {
  const std::string driver = BM_TRY(driver_of(system, address));
  if (driver.empty()) return {};
  BM_TRY(write_bounded(system, pci_folder(address) + "/driver/unbind", to_string(address), limit));
  const std::string left = BM_TRY(driver_of(system, address));
  if (!left.empty()) return fail(Code::kIo, "{} does not let go of {}", driver, to_string(address));
  return {};
}

Status set_override(System& system, const PciAddress& address, const std::string& driver) {
  // An empty line means any driver again (driver_set_override()).
  return write_sysfs(system, pci_folder(address) + "/driver_override",
                     driver.empty() ? "\n" : driver);
}

Status resize_bars(System& system, const PciAddress& address) {
  for (uint32_t bar = 0; bar < kPciBars; ++bar) {
    const std::string path = fmt::format("{}/resource{}_resize", pci_folder(address), bar);
    const Result<std::string> text = read_sysfs(system, path);
    if (!text) continue;
    uint64_t offered = 0;
    std::istringstream(*text) >> std::hex >> offered;
    // From the largest down to what there is room for.
    for (uint32_t bit = 64; bit-- > 0;)
      if ((offered >> bit & 1) != 0 && write_sysfs(system, path, fmt::format("{}", bit))) break;
  }
  return {};
}

/// Brings `change.address` from whatever it has now to `driver`; `override_after` stays behind.
Status move_to(System& system, const PciAddress& address, const std::string& driver,
               const std::string& override_after, bool is_resized, Duration limit) {
  BM_TRY(unbind(system, address, limit));
  if (is_resized) BM_TRY(resize_bars(system, address));
  BM_TRY(set_override(system, address, driver.empty() ? override_after : driver));
  if (driver.empty()) return {};
  BM_TRY(write_bounded(system, kProbe, to_string(address), limit));
  if (const std::string now = BM_TRY(driver_of(system, address)); now != driver)
    return fail(Code::kIo, "{} is bound to {} and not to {}: modprobe {}", to_string(address),
                now.empty() ? "nothing" : now, driver, driver);
  if (override_after != driver) return set_override(system, address, override_after);
  return {};
}

Status give_back(System& system, const PciChange& change, Duration limit) {
  return move_to(system, change.address, change.from, change.override_before, false, limit);
}

std::string journal_path(const PciAddress& address, const std::string& folder) {
  return folder + "/" + to_string(address) + ".journal";
}

Status write_journal(const PciAddress& address, const std::string& folder,
                     const std::vector<PciChange>& changes) {
  if (::mkdir(folder.c_str(), 0700) < 0 && errno != EEXIST)
    return fail(code_from_errno(errno), "{}: {}", folder, errno_text(errno));
  const std::string text = format_pci_journal(changes);
  return replace_file(journal_path(address, folder), std::as_bytes(std::span(text)));
}

Status check_display(const PciInfo& info, const PciTakeOptions& options) {
  if (options.is_display_taken || (!info.is_boot_display && info.displays.empty())) return {};
  std::string what = info.is_boot_display ? "the firmware's screen" : "";
  for (const std::string& display : info.displays) what += (what.empty() ? "" : ", ") + display;
  return fail(Code::kUnsupported,
              "{} drives {}, which would go dark; --display takes it all the same",
              to_string(info.identity.address), what);
}

Status check_holders(System& system, const PciInfo& info) {
  const std::vector<PciHolder> holders = find_pci_holders(system, info);
  if (holders.empty()) return {};
  std::string who;
  for (const PciHolder& holder : holders)
    who += fmt::format("{}pid {} ({}, {})", who.empty() ? "" : ", ", holder.pid, holder.command,
                       holder.path);
  return fail(Code::kIo, "{} is in use by {}; end it first", to_string(info.identity.address), who);
}

}  // namespace

std::string format_pci_journal(const std::vector<PciChange>& changes) {
  std::string text = fmt::format("{}\n", kJournalHead);
  const auto word = [](const std::string& name) { return name.empty() ? "-" : name.c_str(); };
  for (const PciChange& change : changes)
    text += fmt::format("{} {} {} {}\n", to_string(change.address), word(change.from),
                        word(change.to), word(change.override_before));
  text += "end\n";
  return text;
}

Result<std::vector<PciChange>> parse_pci_journal(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || line != kJournalHead)
    return fail(Code::kCorrupt, "a journal of another version");
  std::vector<PciChange> changes;
  // Names of drivers are those of modules: nothing that would lead a path elsewhere.
  const auto take = [](std::istringstream& from, std::string& to) {
    const auto is_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.';
    };
    if (!(from >> to) || to.size() > 64 || !std::all_of(to.begin(), to.end(), is_name))
      return false;
    if (to == "-") to.clear();
    return true;
  };
  while (std::getline(lines, line) && line != "end") {
    std::istringstream words(line);
    std::string address, rest;
    PciChange change;
    if (changes.size() == kMaxChanges || !(words >> address) || !take(words, change.from) ||
        !take(words, change.to) || !take(words, change.override_before) || words >> rest)
      return fail(Code::kCorrupt, "line {} of the journal describes no change", changes.size() + 2);
    change.address = BM_TRY(parse_pci_address(address));
    changes.push_back(std::move(change));
  }
  if (line != "end") return fail(Code::kCorrupt, "the journal has no end");
  return changes;
}

Result<std::vector<PciChange>> plan_pci_take(System& system, const PciAddress& address,
                                             const PciTakeOptions& options) {
  const PciInfo info = BM_TRY(describe_pci(system, address));
  const bool is_vfio = options.driver != "none";
  if (is_vfio && !info.iommu_group)
    return fail(Code::kUnsupported,
                "{} is behind no IOMMU, so {} cannot take it; --driver none leaves it to root's "
                "sysfs files",
                to_string(address), options.driver);
  std::vector<PciAddress> members = {address};
  for (const PciAddress& member : is_vfio ? info.group : std::vector<PciAddress>())
    if (member != address) members.push_back(member);
  const std::string target = is_vfio ? options.driver : "";
  std::vector<PciChange> changes;
  for (const PciAddress& member : members) {
    const PciInfo one = BM_TRY(describe_pci(system, member));
    const uint32_t base_class = one.identity.class_code >> 16;
    if (member != address && base_class == kBridge) continue;
    if (member != address && (base_class == kStorage || base_class == kNetwork) &&
        !one.driver.empty() && one.driver != target)
      return fail(Code::kPermission,
                  "{} shares IOMMU group {} with {}, which {} drives: taking it could take the "
                  "machine's disk or network; move the card to another slot",
                  to_string(address), *info.iommu_group, to_string(member), one.driver);
    BM_TRY(check_display(one, options));
    if (one.driver == target) continue;
    BM_TRY(check_holders(system, one));
    changes.push_back({.address = member,
                       .from = one.driver,
                       .to = target,
                       .override_before = one.driver_override});
  }
  return changes;
}

Result<std::vector<PciChange>> take_pci(System& system, const PciAddress& address,
                                        const PciTakeOptions& options) {
  const std::vector<PciChange> changes = BM_TRY(plan_pci_take(system, address, options));
  if (changes.empty()) return changes;
  // Changes of before are part of what there is to restore.
  std::vector<PciChange> journal;
  if (Result<std::vector<PciChange>> before =
          read_pci_journal(system, address, options.journal_folder)) {
    journal = std::move(*before);
  } else if (before.error().code != Code::kNotFound) {
    return tl::unexpected<Error>(before.error());
  }
  const std::vector<PciChange> known = journal;
  journal.insert(journal.end(), changes.begin(), changes.end());
  BM_TRY(write_journal(address, options.journal_folder, journal));
  for (size_t i = 0; i < changes.size(); ++i) {
    const PciChange& change = changes[i];
    const Status moved = move_to(system, change.address, change.to,
                                 change.to.empty() ? change.override_before : change.to,
                                 options.is_resized, options.limit);
    if (moved) continue;
    Status undone;
    for (size_t j = i + 1; j-- > 0 && undone;)
      undone = give_back(system, changes[j], options.limit);
    if (!undone)
      return fail(moved.error().code, "{}; undoing it failed too ({}): bellmetal pci restore {}",
                  moved.error().message, undone.error().message, to_string(address));
    if (known.empty())
      (void)system.unlink(journal_path(address, options.journal_folder));
    else
      BM_TRY(write_journal(address, options.journal_folder, known));
    return tl::unexpected<Error>(moved.error());
  }
  return changes;
}

Result<std::vector<PciChange>> read_pci_journal(System& system, const PciAddress& address,
                                                const std::string& folder) {
  const std::string path = journal_path(address, folder);
  std::string text;
  if (const int error = system.read_file(path, &text); error < 0) {
    if (error == -ENOENT)
      return fail(Code::kNotFound, "{} was not taken: there is no {}", to_string(address), path);
    return fail(code_from_errno(-error), "{}: {}", path, errno_text(-error));
  }
  Result<std::vector<PciChange>> changes = parse_pci_journal(text);
  if (!changes) return tl::unexpected<Error>(std::move(changes.error()).within(path));
  return changes;
}

Result<std::vector<PciChange>> restore_pci(System& system, const PciAddress& address,
                                           const PciTakeOptions& options) {
  std::vector<PciChange> changes =
      BM_TRY(read_pci_journal(system, address, options.journal_folder));
  std::reverse(changes.begin(), changes.end());
  for (const PciChange& change : changes) {
    Result<PciInfo> info = describe_pci(system, change.address);
    // A card that was pulled out meanwhile has nothing to be given back.
    if (!info && info.error().code == Code::kNotFound) continue;
    BM_TRY(info);
    if (info->driver == change.from && info->driver_override == change.override_before) continue;
    if (info->driver != change.from) BM_TRY(check_holders(system, *info));
    BM_TRY(give_back(system, change, options.limit));
  }
  const std::string path = journal_path(address, options.journal_folder);
  if (const int error = system.unlink(path); error < 0)
    return fail(code_from_errno(-error), "{}: {}", path, errno_text(-error));
  return changes;
}

std::vector<PciAddress> list_pci_journals(System& system, const std::string& folder) {
  std::vector<std::string> names;
  std::vector<PciAddress> addresses;
  if (system.list(folder, &names) < 0) return addresses;
  for (const std::string& name : names) {
    const size_t dot = name.find(".journal");
    if (dot == std::string::npos) continue;
    if (const auto address = parse_pci_address(std::string_view(name).substr(0, dot)))
      addresses.push_back(*address);
  }
  return addresses;
}

}  // namespace bm
