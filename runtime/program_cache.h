#pragma once
// Loaded kernels of one device, so that equal code objects are loaded once.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::runtime {

class Device;

/// Thread: safe.
class ProgramCache {
 public:
  explicit ProgramCache(hal::Device& device) : device_(device) {}
  /// The program of an equal code object loaded before, or a freshly loaded one.
  Result<std::shared_ptr<const hal::Program>> load(const hal::CodeObject& code);
  /// Forgets every program; those still in use stay alive with their users.
  void clear();
  size_t size() const;

 private:
  /// 128 bits of hash over the whole serialised code object: equal keys are taken as equal code.
  struct Key {
    uint64_t low = 0, high = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return static_cast<size_t>(key.low); }
  };
  static Key key_of(const hal::CodeObject& code);

  hal::Device& device_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const hal::Program>, KeyHash> programs_;
};

/// Loads through the device's cache.
Result<std::shared_ptr<const hal::Program>> load_program(Device& device,
                                                         const hal::CodeObject& code);

}  // namespace bm::runtime
