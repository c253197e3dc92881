#pragma once
// What the commands of the bring-up bench share: which function they mean, the firmware they take,
// and the file that a trace goes to.

#include <memory>
#include <string>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/pci_recorder.h"
#include "drivers/transport/system.h"
#include "firmware/store.h"
#include "runtime/base/result.h"
#include "tools/bellmetal/bringup/vendors.h"

namespace CLI {
class App;
}

namespace bm::cli {

struct CardOptions {
  std::string selector;  ///< as parse_pci_selector() takes it; empty: the only card there is
  std::vector<std::string> firmware_folders;  ///< before those of the machine
  bool as_json = false;

  firmware::Search search() const;
};
void add_card_options(CLI::App& command, CardOptions& options);

/// The selector of a function: what was given, or the one AMD or NVIDIA card that vfio has.
/// Errors: kNotFound with what there is; kInvalidArgument (several).
Result<std::string> choose_function(System& system, const CardOptions& options);
/// Opens it. Errors: those of choose_function(), parse_pci_selector() and open_pci().
Result<std::unique_ptr<PciFunction>> open_function(System& system, const CardOptions& options,
                                                   std::string* chosen);

/// A file that grows line by line, so that what a machine did last is in it when it stops.
class TraceFile {
 public:
  /// Errors: kIo, kPermission, kNotFound naming the file.
  static Result<TraceFile> create(System& system, const std::string& path);
  PciRecord::Sink sink();
  /// What became of it: the first write that failed.
  Status status() const;

 private:
  struct State {
    std::string path;
    SystemFd fd;
    Status first_error;
  };
  System* system_ = nullptr;
  std::shared_ptr<State> state_;
};

}  // namespace bm::cli
