#include "drivers/transport/stages.h"

#include <algorithm>

namespace bm {

const StageTerms* find_stage_terms(std::span<const StageTerms> terms, std::string_view name) {
  const auto row = std::ranges::find(terms, name, &StageTerms::name);
  return row == terms.end() ? nullptr : &*row;
}

BusCounts BusCounts::operator-(const BusCounts& from) const {
  return {.register_reads = register_reads - from.register_reads,
          .register_writes = register_writes - from.register_writes,
          .memory_reads = memory_reads - from.memory_reads,
          .memory_writes = memory_writes - from.memory_writes,
          .table_writes = table_writes - from.table_writes,
          .configuration = configuration - from.configuration};
}

void StageLog::begin(std::string_view name, const BusCounts& counts, uint64_t now_us) {
  current_ = std::string(name);
  at_begin_ = counts;
  begun_us_ = now_us;
  seen_.clear();
  if (watcher_ != nullptr) watcher_->stage_begins(name);
}

void StageLog::end(const Status& status, const BusCounts& counts, uint64_t now_us) {
  stages_.push_back({.name = current_,
                     .us = now_us - begun_us_,
                     .counts = counts - at_begin_,
                     .error = status ? "" : status.error().message,
                     .seen = seen_});
  if (watcher_ != nullptr) watcher_->stage_ended(stages_.back());
}

std::string StageLog::table() const {
  std::string text = fmt::format("{:<26}{:>10}{:>9}{:>9}{:>11}{:>12}{:>9}\n", "stage", "us",
                                 "reads", "writes", "mem reads", "mem writes", "tables");
  for (const Stage& stage : stages_)
    text += fmt::format("{:<26}{:>10}{:>9}{:>9}{:>11}{:>12}{:>9}{}\n", stage.name, stage.us,
                        stage.counts.register_reads, stage.counts.register_writes,
                        stage.counts.memory_reads, stage.counts.memory_writes,
                        stage.counts.table_writes, stage.error.empty() ? "" : "  FAILED");
  return text;
}

Error StageLog::explain(const Error& error) const {
  // Shut down and recovery come after the boot, which says nothing about them.
  if (!stages_.empty() && find_stage_terms(terms_, current_) == nullptr)
    return {error.code, fmt::format("stage '{}': {}", current_, error.message)};
  std::string done;
  for (const Stage& stage : stages_)
    if (stage.error.empty()) done += fmt::format("{}{}", done.empty() ? "" : ", ", stage.name);
  return {error.code, fmt::format("boot stage '{}': {}{}", current_, error.message,
                                  done.empty() ? "" : fmt::format(" (done before: {})", done))};
}

}  // namespace bm
