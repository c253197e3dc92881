#pragma once
// Collects what ran when and writes it as a Chrome trace (chrome://tracing, Perfetto).
// Does not own: measuring. Executor and graph hand in finished ranges.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::runtime {

/// One thing that ran. Times in nanoseconds of host_time_ns().
struct ProfileRange {
  std::string name;
  std::string row;                  ///< device, with ":COPY" for its copy queue
  const char* category = "kernel";  ///< "kernel", "copy", "graph", "host"; static storage
  int64_t begin_ns = 0, end_ns = 0;
  double flops = 0, bytes = 0;
  uint64_t id = 0;                   ///< Profiler::next_id(), or 0 when nothing depends on it
  std::vector<uint64_t> after = {};  ///< ids of ranges this one waited for: drawn as arrows
};

/// Monotonic host clock; zero is arbitrary.
int64_t host_time_ns();

/// Linear map from a device's Timestamp ticks to host_time_ns().
struct ClockMap {
  uint64_t ticks_per_second = 1'000'000'000;
  int64_t offset_ns = 0;
  int64_t to_host_ns(uint64_t ticks) const;
};

/// Thread: every member may be called from any thread. Each thread appends to its own buffer, so
/// recording does not contend.
class Profiler {
 public:
  /// `path` empty: off until start().
  explicit Profiler(std::string path);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// The only cost while profiling is off.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void start(std::string path);
  void stop();
  void record(ProfileRange range);
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  /// Everything recorded so far as trace JSON.
  std::string to_json() const;
  /// Writes to_json() to the path given at start. Errors: kIo.
  Status write() const;

 private:
  struct ThreadLog;
  ThreadLog& this_thread_log();

  const uint64_t serial_;  // tells this profiler's thread logs from those of an earlier one
  std::atomic<bool> is_on_{false};
  std::atomic<uint64_t> next_id_{1};
  mutable std::mutex mutex_;
  std::string path_;
  std::vector<std::shared_ptr<ThreadLog>> logs_;
};

/// The process-wide profiler; on from the start when BM_PROFILE names a file, which is then written
/// at exit.
Profiler& profiler();

}  // namespace bm::runtime
