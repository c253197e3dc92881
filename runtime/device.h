#pragma once
// An opened device with everything the runtime keeps for it: allocator, stream, statistics.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/target.h"

namespace bm::runtime {

class Allocator;
class KernargRing;
class ProgramCache;
class Stream;

/// Thread: safe facade; opened once per canonical name and kept until process exit.
class Device {
 public:
  virtual ~Device() = default;
  /// Canonical name: "CPU", "CPU:1".
  virtual const std::string& name() const = 0;
  /// Renderer chosen for it, upper case: "LLVM", "CLANG"; empty for devices without one.
  virtual const std::string& renderer() const = 0;
  virtual hal::Device& hal() = 0;
  virtual Allocator& allocator() = 0;
  virtual Stream& stream() = 0;
  /// Returns when all work queued so far is complete; the device's first error otherwise.
  virtual Status synchronize() = 0;
  /// Keeps what this device's engines may still read or write although its work failed: until they
  /// are stopped when the device is closed, or for good where they cannot be. Thread: any.
  virtual void keep_until_closed(std::shared_ptr<void> what);
  /// `error` of a call to hal(). Where it says that the device failed, the device is lost
  /// (Stream::lose), and the first cause is returned instead.
  Error first_cause(Error error);
  /// The error every call returns once the device is lost; success until then.
  Status lost();
  /// Makes a device that failed or hangs usable again; see Stream::recover.
  Status recover();
  /// Argument memory of eager launches; nullptr on inline devices, which read arguments in place.
  virtual KernargRing* kernargs() { return nullptr; }
  /// Loaded kernels; nullptr only for stand-ins in tests. Use load_program (program_cache.h).
  virtual ProgramCache* programs() { return nullptr; }
};

/// Wraps an opened hal device. It appears in opened_devices() until destroyed.
/// Several may share one hal device (kernels of different renderers on one unit), each with
/// a stream of its own.
Result<std::unique_ptr<Device>> make_device(std::shared_ptr<hal::Device> hal, std::string name,
                                            std::string renderer);

/// Opens (once) the device a name such as "cpu", "CPU:1", "CPU:CLANG", "AMD" means. Never falls
/// back. Errors: kInvalidArgument with a "did you mean", kNotFound with what is missing.
Result<Device*> open_device(std::string_view name);

/// What open_device() refuses a name for before it opens anything. Errors: kInvalidArgument.
Status check_device_name(std::string_view name);

/// The device DEV names, or the first driver of the table that opens.
Result<Device*> default_device();

/// Same with another table of drivers than the built-in one: for tests and tools. Devices opened
/// this way are cached per table.
Result<Device*> open_device_with(std::span<const hal::DriverInfo> drivers, std::string_view name);

/// Canonical form of a device name: upper case kind, no ":0". Idempotent.
Result<std::string> canonical_name(std::string_view name);

/// Devices opened so far (for statistics and synchronisation at exit).
std::vector<Device*> opened_devices();

/// One line per unit known to this build for `bellmetal devices`: name, description, usable or why
/// not.
struct DeviceListing {
  std::string name, driver, description, renderer, arch, problem;
  bool is_usable = false;
  /// False: the driver was not asked, since that loads a vendor's whole driver; one row stands for
  /// all its units, and is_usable says whether one is installed.
  bool is_asked = true;
  uint64_t memory_total = 0;
};
/// Every unit of every driver, opened.
std::vector<DeviceListing> list_devices();

}  // namespace bm::runtime
