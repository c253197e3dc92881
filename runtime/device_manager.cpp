#include "runtime/device_manager.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/env.h"
#include "runtime/base/fork.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/device_list.h"
#include "runtime/hal/leaving.h"
#include "runtime/stream.h"

namespace bm::runtime {
namespace {

bool has_word(const char* list, std::string_view word) {
  const std::vector<std::string_view> words = split_words(list ? list : "");
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Interfaces that boot a device, and those that stand in for hardware, are used only when asked
/// for by name.
bool needs_name(const hal::DriverInfo& driver, std::string_view interface) {
  return interface.starts_with("MOCK") || interface.starts_with("SIM") ||
         has_word(driver.booting, interface);
}

/// "AMD:PCI", with a unit, renderer and arch behind it where there are any, is "PCI+AMD": a word in
/// the renderer's place that names an interface. Errors: kInvalidArgument.
Result<Target> with_interface(Target target, const hal::DriverInfo& driver) {
  if (!target.interface.empty() || target.renderer.empty() ||
      has_word(driver.renderers, target.renderer) || !has_word(driver.interfaces, target.renderer))
    return target;
  Target unit;
  unit.interface = target.renderer;
  unit.device = target.device;
  unit.unit = target.unit;
  std::string text = to_string(unit);
  if (!target.arch.empty()) text += ":" + target.arch;
  return parse_target(text);
}

Status check_choice(std::string_view what, const std::string& choice, const hal::DriverInfo& driver,
                    std::string_view list) {
  const std::vector<std::string_view> known = split_words(list);
  if (choice.empty() || std::find(known.begin(), known.end(), choice) != known.end()) return {};
  if (known.empty())
    return fail(Code::kInvalidArgument, "{} has no {} to choose, \"{}\" was asked for", driver.name,
                what, choice);
  return fail(Code::kInvalidArgument, "unknown {} \"{}\" for {}{} (there are: {})", what, choice,
              driver.name, did_you_mean(choice, known), list);
}

/// Devices that are not pieces of hardware (no list of interfaces, not even an empty one) can be
/// opened under as many numbers as a program likes.
bool has_any_number(const hal::DriverInfo& driver) { return driver.interfaces == nullptr; }

/// Physical unit number of `unit` among those the target allows.
Result<uint32_t> physical_unit(const Target& target, uint32_t count) {
  for (const uint32_t index : target.indices) {
    if (index >= count) {
      return fail(Code::kNotFound, "unit {} of \"{}\" does not exist: there {} {}", index,
                  to_string(target), count == 1 ? "is" : "are", count);
    }
  }
  const size_t usable = target.indices.empty() ? count : target.indices.size();
  if (target.unit >= usable) {
    return fail(Code::kNotFound, "{}:{} does not exist: there {} {} {} unit{}", target.device,
                target.unit, usable == 1 ? "is" : "are", usable, target.device,
                usable == 1 ? "" : "s");
  }
  return target.indices.empty() ? target.unit : target.indices[target.unit];
}

Result<std::unique_ptr<hal::Device>> open_interface(const hal::DriverInfo& driver,
                                                    std::string_view interface,
                                                    const Target& target) {
  const uint32_t count = BM_TRY(driver.count(interface));
  if (count == 0) {
    const std::string_view help = driver.help ? driver.help : "";
    return fail(Code::kNotFound, "no {} unit found{}{}", driver.name, help.empty() ? "" : ": ",
                help);
  }
  const uint32_t index =
      has_any_number(driver) ? target.unit : BM_TRY(physical_unit(target, count));
  return driver.open(interface, index, target.arch);
}

/// Tries interfaces in the driver's order and keeps every reason.
Result<std::unique_ptr<hal::Device>> open_hal(const hal::DriverInfo& driver, const Target& target) {
  const std::vector<std::string_view> interfaces =
      split_words(driver.interfaces ? driver.interfaces : "");
  if (!target.interface.empty() || interfaces.empty())
    return open_interface(driver, target.interface, target);
  std::string reasons;
  Code code = Code::kNotFound;
  for (const std::string_view interface : interfaces) {
    if (needs_name(driver, interface)) continue;
    auto device = open_interface(driver, interface, target);
    if (device) return device;
    // The most telling kind of failure: anything but "not there".
    if (code == Code::kNotFound) code = device.error().code;
    reasons +=
        fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", interface, device.error().message);
  }
  return fail(code, "{} cannot be opened ({})", driver.name,
              reasons.empty() ? "no interface" : reasons);
}

DeviceManager& builtin_manager() {
  // Process-wide by nature; never destroyed, so that buffers in static objects keep their device.
  static auto* const manager = new DeviceManager(hal::builtin_drivers());
  return *manager;
}

/// Waits for the work of every open device, so that nothing is in flight when libraries are taken
/// down.
void finish_devices() {
  if (!check_not_forked()) return;  // the parent's work is not ours to wait for
  // Called twice, see below; never destroyed.
  static auto& left = *new std::vector<Device*>;
  for (Device* device : opened_devices()) {
    if (std::ranges::find(left, device) != left.end()) continue;
    // Lost before: whoever met it was told, and there is nothing to wait for.
    if (!device->stream().timeline().status()) continue;
    if (const Status done = device->synchronize(); !done)
      std::fprintf(stderr, "bellmetal: %s at exit: %s\n", device->name().c_str(),
                   done.error().message.c_str());
    else if (auto* const leaving = dynamic_cast<hal::Leaving*>(&device->hal())) {
      leaving->leave();
      left.push_back(device);
    }
  }
}

/// Of the main thread: its destructor runs before any function of atexit and any destructor of a
/// static object ([basic.start.term]), whenever libraries of drivers registered theirs. Compilers
/// inside drivers make such objects as late as in the first kernel.
struct ExitWatch {
  bool is_main = false;
  ~ExitWatch() {
    if (is_main) finish_devices();
  }
};

/// Called once a device is open: handlers registered now run before those of the driver's library,
/// which was loaded meanwhile. That covers exit() on another thread than the main one.
void watch_for_exit() { std::atexit(finish_devices); }

/// Cheap; on every thread that asks for devices.
void watch_main_thread() {
  thread_local ExitWatch watch;
  watch.is_main = getpid() == gettid();
}

}  // namespace

std::vector<std::string_view> DeviceManager::driver_names() const {
  std::vector<std::string_view> names;
  for (const hal::DriverInfo& driver : drivers_) names.emplace_back(driver.name);
  return names;
}

/// What DEV says about the device kind of `asked`; an empty target of that kind if nothing.
Result<Target> DeviceManager::defaults_for(const Target& asked,
                                           const hal::DriverInfo& driver) const {
  Target none;
  none.device = asked.device;
  if (settings().dev.empty()) return none;
  auto targets = parse_targets(settings().dev, driver_names());
  if (!targets) return tl::unexpected(std::move(targets.error()).within("DEV"));
  for (Target& target : *targets)
    if (target.device == asked.device) return with_interface(std::move(target), driver);
  return none;
}

Result<ResolvedTarget> DeviceManager::resolve(std::string_view name) const {
  ResolvedTarget resolved;
  Target& target = resolved.target;
  target = BM_TRY(parse_target(name, driver_names()));
  for (const hal::DriverInfo& driver : drivers_)
    if (target.device == driver.name) resolved.driver = &driver;
  const hal::DriverInfo& driver = *resolved.driver;
  target = BM_TRY(with_interface(std::move(target), driver));

  Target defaults = BM_TRY(defaults_for(target, driver));
  const auto renderers = split_words(driver.renderers ? driver.renderers : "");
  if (defaults.renderer.empty() && !renderers.empty()) defaults.renderer = renderers.front();
  if (target.interface.empty()) {
    target.interface = defaults.interface;
    target.indices = defaults.indices;
  }
  if (target.renderer.empty()) target.renderer = defaults.renderer;
  if (target.arch.empty()) target.arch = defaults.arch;
  BM_TRY(
      check_choice("renderer", target.renderer, driver, driver.renderers ? driver.renderers : ""));
  BM_TRY(check_choice("interface", target.interface, driver,
                      driver.interfaces ? driver.interfaces : ""));

  Target shortest = target;
  if (target.interface == defaults.interface && target.indices == defaults.indices) {
    shortest.interface.clear();
    shortest.indices.clear();
  }
  if (target.arch == defaults.arch) shortest.arch.clear();
  if (target.renderer == defaults.renderer) shortest.renderer.clear();
  resolved.name = to_string(shortest);
  return resolved;
}

Result<std::unique_ptr<Device>> DeviceManager::open_unit(const ResolvedTarget& resolved) {
  // Renderers make kernels for one and the same unit, which many drivers open once per process.
  Target unit_target = resolved.target;
  unit_target.renderer.clear();
  std::shared_ptr<Unit> unit;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = units_[to_string(unit_target)];
    if (!slot) slot = std::make_shared<Unit>();
    unit = slot;
  }
  const std::lock_guard lock(unit->mutex);
  std::shared_ptr<hal::Device> hal = unit->hal.lock();
  if (!hal) {
    auto opened = open_hal(*resolved.driver, resolved.target);
    if (!opened) return tl::unexpected(std::move(opened.error()).within(resolved.name));
    hal = std::move(*opened);
    unit->hal = hal;
  }
  return make_device(std::move(hal), resolved.name, resolved.target.renderer);
}

Result<Device*> DeviceManager::open(std::string_view name) {
  return guard_memory("opening a device", [&]() -> Result<Device*> {
    BM_TRY(check_not_forked());
    watch_main_thread();
    const ResolvedTarget resolved = BM_TRY(resolve(name));
    std::shared_ptr<Entry> entry;
    {
      const std::lock_guard lock(mutex_);
      auto& slot = entries_[to_string(resolved.target)];
      if (!slot) slot = std::make_shared<Entry>();
      entry = slot;
    }
    const std::lock_guard lock(entry->mutex);
    if (!entry->device) {
      watch_for_fork();
      entry->device = BM_TRY(open_unit(resolved));
      watch_for_exit();
    }
    return entry->device.get();
  });
}

Result<Device*> DeviceManager::open_default() {
  return guard_memory("opening a device", [&]() -> Result<Device*> {
    BM_TRY(check_not_forked());
    if (!settings().dev.empty()) {
      auto targets = parse_targets(settings().dev, driver_names());
      if (!targets) return tl::unexpected(std::move(targets.error()).within("DEV"));
      return open(to_string(targets->front()));  // no other device is ever tried in its place
    }
    std::string reasons;
    for (const hal::DriverInfo& driver : drivers_) {
      auto device = open(driver.name);
      if (device) return device;
      reasons += fmt::format("\n  {}", device.error().message);
    }
    return fail(Code::kNotFound, "no usable devices{}",
                reasons.empty() ? ": this build has no drivers" : reasons);
  });
}

void DeviceManager::list_driver(const hal::DriverInfo& driver, Ask ask,
                                std::vector<DeviceListing>& out) {
  if (ask == Ask::kCheap && driver.installed != nullptr) {
    const Result<std::string> installed = driver.installed();
    if (!installed || !installed->empty()) {
      DeviceListing row;
      row.name = row.driver = driver.name;
      row.is_asked = false;
      row.is_usable = installed.has_value();
      (installed ? row.description : row.problem) =
          installed ? *installed : installed.error().message;
      const auto renderers = split_words(driver.renderers ? driver.renderers : "");
      if (installed && !renderers.empty()) row.renderer = renderers.front();
      return out.push_back(std::move(row));
    }
  }
  // A list that boots cards would be more than a list.
  if (const auto named = resolve(driver.name);
      named && has_word(driver.booting, named->target.interface)) {
    const std::string& interface = named->target.interface;
    const Result<uint32_t> count = driver.count(interface);
    DeviceListing row;
    row.name = row.driver = driver.name;
    row.is_usable = count && *count > 0;
    row.description = fmt::format("{} of interface {}, which DEV names; opened when it is used",
                                  count.value_or(0), interface);
    if (!count) row.problem = count.error().message;
    return out.push_back(std::move(row));
  }
  const Result<uint32_t> count = driver.count("");
  if (!count || *count == 0) {
    DeviceListing missing;
    missing.name = missing.driver = driver.name;
    missing.problem = count ? fmt::format("no device found; {}", driver.help ? driver.help : "")
                            : count.error().message;
    out.push_back(std::move(missing));
    return;
  }
  for (uint32_t unit = 0; unit < *count; ++unit) {
    DeviceListing row;
    row.name = unit == 0 ? driver.name : fmt::format("{}:{}", driver.name, unit);
    row.driver = driver.name;
    if (const auto device = open(row.name)) {
      hal::Device& hal = (*device)->hal();
      row.description = hal.description();
      row.renderer = (*device)->renderer();
      row.arch = hal.arch().name;
      row.memory_total = hal.memory().total;
      row.is_usable = true;
    } else {
      row.problem = device.error().message;
    }
    out.push_back(std::move(row));
  }
}

std::vector<DeviceListing> DeviceManager::list(Ask ask) {
  std::vector<DeviceListing> out;
  for (const hal::DriverInfo& driver : drivers_) list_driver(driver, ask, out);
  return out;
}

Result<Device*> open_device(std::string_view name) { return builtin_manager().open(name); }
Status check_device_name(std::string_view name) {
  BM_TRY(builtin_manager().resolve(name));
  return {};
}
Result<Device*> default_device() { return builtin_manager().open_default(); }
std::vector<DeviceListing> list_devices() { return builtin_manager().list(); }

Result<Device*> open_device_with(std::span<const hal::DriverInfo> drivers, std::string_view name) {
  struct Managers {
    std::mutex mutex;
    std::map<const hal::DriverInfo*, std::unique_ptr<DeviceManager>> by_table;
  };
  static auto* const managers = new Managers;  // process-wide, as builtin_manager()
  DeviceManager* manager = nullptr;
  {
    const std::lock_guard lock(managers->mutex);
    auto& slot = managers->by_table[drivers.data()];
    if (!slot) slot = std::make_unique<DeviceManager>(drivers);
    manager = slot.get();
  }
  return manager->open(name);
}

std::vector<std::string> device_list(std::string_view text) {
  const std::span<const hal::DriverInfo> drivers = hal::builtin_drivers();
  const auto names_a_device = [&](std::string_view rest) {
    const std::string word = upper_case(rest.substr(0, rest.find_first_of(",;:+")));
    return std::ranges::any_of(drivers, [&](const hal::DriverInfo& d) {
      return word == d.name || has_word(d.interfaces, word);
    });
  };
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ';' && (text[at] != ',' || !names_a_device(text.substr(at + 1)))) continue;
    out.emplace_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  out.emplace_back(text.substr(begin));
  return out;
}

Result<std::string> canonical_name(std::string_view name) {
  return to_string(BM_TRY(parse_target(name)));
}

}  // namespace bm::runtime
