#pragma once
// Which devices exist and which are open: names to drivers, each opened once.

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/device.h"
#include "runtime/hal/device.h"
#include "runtime/target.h"

namespace bm::runtime {

/// A name with everything it leaves open decided: by DEV where it speaks of that device, else by
/// the driver's defaults.
struct ResolvedTarget {
  const hal::DriverInfo* driver = nullptr;
  Target target;     ///< renderer always set if the driver has any; interface empty: try in order
                     ///< those that take no device from others
  std::string name;  ///< shortest name that resolves to this target again
};

/// Devices of one table of drivers. Thread: safe; different devices open in parallel.
class DeviceManager {
 public:
  explicit DeviceManager(std::span<const hal::DriverInfo> drivers) : drivers_(drivers) {}

  /// Errors: kInvalidArgument (name, renderer, interface; with a "did you mean"), kNotFound (no
  /// such unit: says how many exist, and there is any number of CPU, REF and NULL; nothing usable:
  /// says what each interface lacked). Failures are not remembered: the next call tries again.
  Result<Device*> open(std::string_view name);
  /// First target of DEV, else the first driver that opens. Errors: kNotFound with each one's
  /// reason.
  Result<Device*> open_default();
  Result<ResolvedTarget> resolve(std::string_view name) const;
  enum class Ask { kAll, kCheap };
  /// Opens what can be opened; with kCheap, drivers that tell what is installed are not asked more.
  std::vector<DeviceListing> list(Ask ask = Ask::kAll);

 private:
  struct Entry {
    std::mutex mutex;  // held while opening
    std::unique_ptr<Device> device;
  };
  std::vector<std::string_view> driver_names() const;
  Result<Target> defaults_for(const Target& asked, const hal::DriverInfo& driver) const;
  Result<std::unique_ptr<Device>> open_unit(const ResolvedTarget& resolved);
  void list_driver(const hal::DriverInfo& driver, Ask ask, std::vector<DeviceListing>& out);

  /// What targets that differ in their renderer share.
  struct Unit {
    std::mutex mutex;  // held while opening
    std::weak_ptr<hal::Device> hal;
  };

  const std::span<const hal::DriverInfo> drivers_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Unit>> units_;     ///< by target without renderer
  std::map<std::string, std::shared_ptr<Entry>> entries_;  ///< by canonical resolved target
};

}  // namespace bm::runtime
