#pragma once
// What lies between a user and a working device, subject by subject, each with what was seen and
// what is to be done.

#include <cstdint>
#include <string>
#include <vector>

#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm::cli {

/// Ways to a device; a subject matters to some of them.
enum DoctorWay : uint32_t {
  kWayAmdPci = 1,    ///< a card of AMD's without a kernel driver
  kWayKfd = 2,       ///< AMD's kernel driver
  kWayNv = 4,        ///< NVIDIA's kernel driver
  kWayCl = 8,        ///< OpenCL
  kWayCpu = 16,      ///< processor
  kWayNvPci = 32,    ///< a card of NVIDIA's without a kernel driver
  kWayCuda = 64,     ///< NVIDIA's CUDA driver
  kWayAmdUsb = 128,  ///< a card of AMD's behind a USB bridge
  kWayPci = kWayAmdPci | kWayNvPci,
  kWayAll = 255,
};

struct Finding {
  std::string subject;      ///< "IOMMU"
  std::string seen = {};    ///< "on, 14 groups"
  std::string remedy = {};  ///< empty: fine
  uint32_t ways = kWayAll;
  /// Nothing works without it; else it is only slower, or not needed.
  bool is_blocking = true;
  std::string card = {};  ///< address of the card or bridge that it is about; empty: the machine
};

struct DoctorOptions {
  /// "CPU", "CL", "NV", "CUDA", "AMD", a PCI function as parse_pci_selector() takes it, "AMD:PCI"
  /// or "NV:PCI" for the cards of `pci`, "AMD:USB" for those behind bridges; empty: everything.
  std::string device;
  /// BM_PCI: the functions that "AMD:PCI" and "NV:PCI" mean; empty: every card of this machine.
  std::string pci = {};
  std::string cache_folder;  ///< of compiled kernels
  bool as_json = false;
};

/// Opens no device and changes nothing. Errors: kInvalidArgument (no such device).
Result<std::vector<Finding>> examine(System& system, const DoctorOptions& options);
/// Whether a finding keeps from working what was looked for: one about the machine, or one about
/// each card there is, or each bridge.
bool is_blocked(const std::vector<Finding>& findings);
/// Prints a line per finding. 0: nothing blocks the device named; 1: something does.
int run_doctor(System& system, const DoctorOptions& options);

}  // namespace bm::cli
