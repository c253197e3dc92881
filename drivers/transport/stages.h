#pragma once
// What a boot of a card without a kernel driver did, stage by stage: which stages ran, how long,
// and how often each used the bus. Kept in memory and told when a stage fails.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace bm {

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
  std::string error;      ///< empty: it ended well
  std::string seen = {};  ///< what it found, in a few words
};

/// What holds before a stage and after it, for people who read a stage log.
struct StageTerms {
  std::string_view name, needs, leaves;
};
/// nullptr: no stage of that name.
const StageTerms* find_stage_terms(std::span<const StageTerms> terms, std::string_view name);

/// Is told of stages while they happen: one that never ends has begun here.
class StageWatcher {
 public:
  virtual ~StageWatcher() = default;
  virtual void stage_begins(std::string_view name) = 0;
  virtual void stage_ended(const Stage& stage) = 0;
};

/// Not thread-safe.
class StageLog {
 public:
  /// `terms`: of the boot's stages, in order; they outlive the log.
  explicit StageLog(std::span<const StageTerms> terms) : terms_(terms) {}
  /// nullptr: nobody watches. Outlives the log.
  void set_watcher(StageWatcher* watcher) { watcher_ = watcher; }
  /// Words about what the stage that runs has found.
  void note(std::string text) { seen_ = std::move(text); }
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
  std::span<const StageTerms> terms_;
  std::string current_ = "before the first stage";
  std::string seen_;
  std::vector<Stage> stages_;
  StageWatcher* watcher_ = nullptr;
  BusCounts at_begin_;
  uint64_t begun_us_ = 0;
};

}  // namespace bm
