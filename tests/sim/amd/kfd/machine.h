#pragma once
// What all processes on the modelled machine share.

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "tests/sim/amd/engine/state.h"
#include "tests/sim/amd/kfd/options.h"

namespace bm::sim::amd {

/// Bytes of video memory in use, by GPU. Thread: any.
class VideoMemory {
 public:
  explicit VideoMemory(uint64_t bytes) : bytes_(bytes) {}
  bool take(uint32_t gpu_id, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    uint64_t& used = used_[gpu_id];
    if (bytes > bytes_ - used) return false;
    used += bytes;
    return true;
  }
  void give_back(uint32_t gpu_id, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_[gpu_id] -= bytes;
  }
  uint64_t available(uint32_t gpu_id) const {
    const std::lock_guard lock(mutex_);
    const auto used = used_.find(gpu_id);
    return bytes_ - (used == used_.end() ? 0 : used->second);
  }

 private:
  mutable std::mutex mutex_;
  const uint64_t bytes_;
  std::map<uint32_t, uint64_t> used_;
};

struct Machine final : EngineState {
  explicit Machine(Options the_options);

  /// Index of a GPU, or -1.
  int gpu_of(uint32_t gpu_id) const;
  bool is_stalled() const override { return options.is_stalled; }
  uint32_t delay_us() const override { return options.delay_us; }
  const Execute& execute() const override { return options.execute; }
  /// A line of the kernel's log.
  void log(const std::string& text);
  std::string kernel_log() const {
    const std::lock_guard lock(mutex);
    return log_lines;
  }
  void count(const char* call) {
    const std::lock_guard lock(mutex);
    ++calls[call];
  }

  Options options;
  const std::map<std::string, std::string> sysfs;  ///< path → contents
  VideoMemory video;
  mutable std::atomic<uint64_t> opened{0};  ///< files
  std::atomic<uint64_t> bar_objects{0};     ///< allocations of video memory that the CPU may map
  std::string log_lines;
  std::map<std::string, uint64_t> calls;  ///< by name
};

}  // namespace bm::sim::amd
