#pragma once
// What a boot did, stage by stage: which stages ran, how long, and how often each used the bus.
// Kept in memory and told when a stage fails.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::amd::am {

/// Accesses to the card. A burst is one transaction where the transport can.
struct BusCounts {
  uint64_t register_reads = 0, register_writes = 0;
  uint64_t memory_reads = 0, memory_writes = 0;  ///< of video memory; bursts
  uint64_t table_writes = 0;                     ///< of page tables; bursts, in memory_writes too
  uint64_t configuration = 0;                    ///< accesses to configuration space
  BusCounts operator-(const BusCounts& from) const;
};

struct Stage {
  std::string name;
  uint64_t us = 0;
  BusCounts counts;
  std::string error;  ///< empty: it ended well
};

/// Not thread-safe.
class StageLog {
 public:
  void begin(std::string_view name, const BusCounts& counts, uint64_t now_us);
  void end(const Status& status, const BusCounts& counts, uint64_t now_us);
  /// Name of the stage that runs; of the last one after its end.
  const std::string& current() const { return current_; }
  const std::vector<Stage>& stages() const { return stages_; }
  /// A line a stage: name, time, accesses.
  std::string table() const;
  /// `error` with the stage it happened in and those before it.
  Error explain(const Error& error) const;

 private:
  std::string current_ = "before the first stage";
  std::vector<Stage> stages_;
  BusCounts at_begin_;
  uint64_t begun_us_ = 0;
};

}  // namespace bm::amd::am
