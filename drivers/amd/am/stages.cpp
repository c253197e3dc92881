#include "drivers/amd/am/stages.h"

#include <algorithm>
#include <iterator>

namespace bm::amd::am {
namespace {

constexpr StageTerms kTerms[] = {
    {"map", "somebody gave us the function", "BAR 0, 2 and 5 are mapped, memory decoding is on"},
    {"discovery", "registers answer; the machine's firmware has started the card",
     "chip, block versions and register bases are known"},
    {"firmware", "the chip is known",
     "every file it wants is loaded and parsed; nothing is written"},
    {"layout", "size and visible part of video memory are known",
     "every boot structure has its place in the first 64 MiB"},
    {"state", "registers have their bases", "cold, warm or somebody else's is decided"},
    {"reset", "the PSP runs somebody else's system, or a process of ours has crashed",
     "BARs are back, the boot loader waits, the PSP's system is gone"},
    {"bus master", "nothing of the card's uses memory of the host", "DMA and interrupts are on"},
    {"bus block", "the card is not in reset",
     "doorbell aperture on, straps set, HDP flush is known"},
    {"page tables", "the memory controller says where video memory is",
     "a root table without entries"},
    {"multimedia hub", "the tree has a root", "apertures and context 0 are on, its TLB is empty"},
    {"interrupts", "the multimedia hub translates", "two rings take entries"},
    {"PSP system", "the boot loader answers", "every component is taken, its system has signed on"},
    {"PSP ring", "the PSP's system runs", "the PSP takes frames of a ring of 64 KiB"},
    {"protected memory", "the ring takes frames",
     "the SMU's file is loaded, protected memory is set"},
    {"firmware files", "protected memory is set", "every engine's file is loaded, the RLC starts"},
    {"SMU", "its file is loaded", "it answers, knows its tables and has its features on"},
    {"RLC autoload", "the RLC has started", "BOOTLOAD_COMPLETE, and the command processor is idle"},
    {"graphics hub", "the graphics block has its firmware", "as the multimedia hub"},
    {"command processor", "the graphics hub translates", "pipes run from their start addresses"},
    {"copy engines", "both hubs translate", "engines run, doorbells reach them"},
    {"RLC autoload proof", "only where BOOTLOAD_COMPLETE stayed away; queues can be made",
     "a compute queue has executed a packet"},
    {"mark", "every stage before it ended well", "the card says it is ours and in use"},
    {"power limit", "only where one is asked for; the SMU has its features on",
     "the package's limit is the one asked for, read back"},
};

}  // namespace

const StageTerms* find_stage_terms(std::string_view name) {
  const auto* const row = std::ranges::find(kTerms, name, &StageTerms::name);
  return row == std::end(kTerms) ? nullptr : row;
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
  if (!stages_.empty() && find_stage_terms(current_) == nullptr)
    return {error.code, fmt::format("stage '{}': {}", current_, error.message)};
  std::string done;
  for (const Stage& stage : stages_)
    if (stage.error.empty()) done += fmt::format("{}{}", done.empty() ? "" : ", ", stage.name);
  return {error.code, fmt::format("boot stage '{}': {}{}", current_, error.message,
                                  done.empty() ? "" : fmt::format(" (done before: {})", done))};
}

}  // namespace bm::amd::am
