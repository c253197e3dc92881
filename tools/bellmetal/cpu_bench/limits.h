#pragma once
// What this machine can do at most: plain loops over memory and registers, on a team of threads.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tools/bellmetal/cpu_bench/contest.h"

namespace bm::cli {

/// Threads that share loops. They spin for about 50 us after a loop, then sleep.
class Team {
 public:
  explicit Team(uint32_t threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  uint32_t size() const { return threads_; }
  /// part(i) for every i below size(), the caller taking i = 0; returns when all are done.
  void run(const std::function<void(uint32_t)>& part);

 private:
  struct Impl;
  uint32_t threads_;
  std::unique_ptr<Impl> impl_;
};

/// Memory of the limits, in huge pages where the system has them, written once.
class Arena {
 public:
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  float* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  float* data_;
  size_t bytes_;
};

/// Reads `bytes` bytes per call, `times` times.
Contender read_limit(Team& team, size_t bytes, int times = 1);
/// Copies `bytes` bytes per call, with stores through the cache or past it.
Contender copy_limit(Team& team, size_t bytes, bool is_streaming);
/// Fused multiply-adds of float32 in registers; `*flops`: how many operations one call does.
Contender fma_limit(Team& team, double* flops);

}  // namespace bm::cli
