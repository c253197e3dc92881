#pragma once
// Memory of a device that outlives the process (hot restart); found by asking the device for this
// class.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::hal {

/// Names what is kept: who has the same key and size wants the same bytes.
struct KeptKey {
  uint64_t low = 0, high = 0;
  bool operator==(const KeptKey&) const = default;
};

/// Implemented beside hal::Device by devices whose driver is this process alone. What is kept is
/// there for the next process only after an orderly end of this one; after a crash it is gone, and
/// nothing is found. Whoever attaches verifies the contents: the device keeps a checksum for him
/// and does not know what it means. Thread: any.
class KeptMemory {
 public:
  struct Found {
    std::unique_ptr<Buffer> buffer;
    uint64_t checksum = 0;
  };
  /// False: memory of this device goes with the process; every other call is kUnsupported.
  virtual bool can_keep() const = 0;
  /// Memory recorded under `key` with exactly `bytes`, mapped; nothing: there is none, or it is
  /// attached already. Errors: kOutOfMemory (addresses, page tables); the device's fault.
  virtual Result<std::optional<Found>> attach(const KeptKey& key, uint64_t bytes) = 0;
  /// Memory that keep() takes: it shares its pages with nothing else. Errors: as
  /// Device::allocate(); unattached records make room first.
  virtual Result<std::unique_ptr<Buffer>> allocate_to_keep(uint64_t bytes) = 0;
  /// Records it; a record of the same key is forgotten. From now on the memory stays taken when the
  /// buffer is destroyed. Whoever wrote to it has waited for that. Errors: kInvalidArgument (not of
  /// allocate_to_keep() or attach()), kOutOfMemory (no room for a record).
  virtual Status keep(Buffer& buffer, const KeptKey& key, uint64_t checksum) = 0;
  /// Forgets every record but those of `keys`; buffers that are attached stay good. Returns how
  /// many bytes can be allocated again, at once or when their buffers are destroyed.
  virtual Result<uint64_t> forget_all_but(std::span<const KeptKey> keys) = 0;

 protected:
  ~KeptMemory() = default;
};

}  // namespace bm::hal
