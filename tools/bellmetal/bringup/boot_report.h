#pragma once
// How a boot is reported: stages while they happen, and how often the bus was used.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/transport/pci_recorder.h"
#include "drivers/transport/stages.h"

namespace bm::cli {

/// Prints stages while they happen, so that the one that takes the machine with it is seen.
class StagePrinter final : public StageWatcher {
 public:
  /// `terms`: what holds before and after each.
  StagePrinter(PciRecord& record, std::span<const StageTerms> terms, bool is_quiet)
      : record_(record), terms_(terms), is_quiet_(is_quiet) {}

  void stage_begins(std::string_view name) override;
  void stage_ended(const Stage& stage) override;
  const std::vector<Stage>& stages() const { return stages_; }
  uint64_t us() const;  ///< of all of them
  nlohmann::ordered_json json() const;

 private:
  PciRecord& record_;
  std::span<const StageTerms> terms_;
  const bool is_quiet_;
  std::vector<Stage> stages_;
};

/// What the transport has counted when the boot, and what came after it, were over.
struct BootStats {
  PciCounts counts;
  PciRecord::Uses tables;

  /// Single accesses and bursts, of BARs and configuration space.
  uint64_t writes() const;
  uint64_t reads() const;
  nlohmann::ordered_json json() const;
  void print() const;
};

}  // namespace bm::cli
