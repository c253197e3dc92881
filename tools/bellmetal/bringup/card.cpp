#include "tools/bellmetal/bringup/card.h"

#include <fcntl.h>

#include <CLI/CLI.hpp>

#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/pci_open.h"

namespace bm::cli {
namespace {

constexpr uint8_t kDisplay = 0x03;

/// A display or an accelerator of AMD's or NVIDIA's.
bool is_card(const PciIdentity& identity) {
  const uint32_t base_class = identity.class_code >> 16;
  return (identity.vendor == kAmdVendor || identity.vendor == kNvidiaVendor) &&
         (base_class == 0x03 || base_class == 0x12);
}

}  // namespace

firmware::Search CardOptions::search() const {
  firmware::Search search = firmware::default_search();
  search.folders.insert(search.folders.begin(), firmware_folders.begin(), firmware_folders.end());
  return search;
}

void add_card_options(CLI::App& command, CardOptions& options) {
  command.add_option("--pci,--device", options.selector,
                     "Which function: 0000:03:00.0, sysfs:03:00.0, remote:/path, "
                     "remote:localhost:6667, vfio-user:/path; without it the only card of vfio's");
  // One folder each time: what follows is the command's own.
  command
      .add_option("--firmware-dir", options.firmware_folders,
                  "Folder that is looked into first; repeatable")
      ->allow_extra_args(false);
  command.add_flag("--json", options.as_json, "Print one JSON object");
}

Result<std::string> choose_function(System& system, const CardOptions& options) {
  if (!options.selector.empty()) return options.selector;
  const auto found = enumerate_pci(system, is_card);
  if (!found)
    return fail(Code::kNotFound, "this machine shows no PCI bus ({}); --pci names a function",
                found.error().message);
  std::vector<std::string> ready;
  std::string others;
  for (const PciInfo& info : *found) {
    const std::string address = to_string(info.identity.address);
    if (info.driver.find("vfio") != std::string::npos)
      ready.push_back(address);
    else
      others += fmt::format("{}{} ({})", others.empty() ? "" : ", ", address,
                            info.driver.empty() ? "no driver" : info.driver);
  }
  if (ready.size() == 1) return ready.front();
  if (ready.size() > 1)
    return fail(Code::kInvalidArgument, "vfio has several cards: say which with --pci {}",
                fmt::join(ready, " or "));
  return fail(Code::kNotFound, "{}",
              others.empty()
                  ? std::string("no AMD or NVIDIA card in this machine; --pci names a function "
                                "that lies elsewhere")
                  : fmt::format("no AMD or NVIDIA card is vfio's, there is {}: `bellmetal pci "
                                "bind ADDRESS` takes one",
                                others));
}

Result<std::unique_ptr<PciFunction>> open_function(System& system, const CardOptions& options,
                                                   std::string* chosen) {
  *chosen = BM_TRY(choose_function(system, options));
  PciSelector selector = BM_TRY(parse_pci_selector(*chosen));
  // Some servers open no function that was not asked for by vendor.
  selector.vendor = kAmdVendor;
  auto function = open_pci(system, selector);
  if (function || function.error().code != Code::kNotFound) return function;
  selector.vendor = kNvidiaVendor;
  selector.base_class = kDisplay;
  if (auto other = open_pci(system, selector)) return other;
  return function;
}

Result<TraceFile> TraceFile::create(System& system, const std::string& path) {
  constexpr mode_t kMode = 0644;
  // A machine that stops loses what its kernel has not written: each line is on the disk before the
  // access that it announces.
  const int fd = system.create(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_DSYNC, kMode);
  if (fd < 0) return fail(code_from_errno(-fd), "{} cannot be written: {}", path, errno_text(-fd));
  TraceFile file;
  file.system_ = &system;
  file.state_ = std::make_shared<State>();
  file.state_->path = path;
  file.state_->fd = SystemFd(system, fd);
  return file;
}

PciRecord::Sink TraceFile::sink() {
  return [system = system_, state = state_](std::string_view line) {
    while (!line.empty() && state->first_error) {
      const ssize_t written = system->write(state->fd.get(), line.data(), line.size());
      if (written > 0)
        line.remove_prefix(static_cast<size_t>(written));
      else if (written != -EINTR)
        state->first_error = fail(code_from_errno(static_cast<int>(-written)),
                                  "{} cannot be written: {}; the trace ends before the boot did",
                                  state->path, errno_text(static_cast<int>(-written)));
    }
  };
}

Status TraceFile::status() const { return state_->first_error; }

}  // namespace bm::cli
