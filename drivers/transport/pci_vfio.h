#pragma once
// A PCI function through Linux VFIO: group and container of type 1, behind an IOMMU. Without root
// where /dev/vfio/<group> belongs to the user.
// Source: Linux Documentation/driver-api/vfio.rst, include/uapi/linux/vfio.h,
// drivers/vfio/vfio_iommu_type1.c and drivers/vfio/pci/vfio_pci_core.c.

#include <memory>
#include <string>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

struct VfioPciOptions {
  PciAddress address;
  /// Where nothing translates the device's accesses: it reaches all memory of the machine, with
  /// physical addresses as in pci_sysfs.h. Needs CAP_SYS_RAWIO and the kernel's
  /// vfio.enable_unsafe_noiommu_mode. One warning is logged.
  bool is_no_iommu_allowed = false;
  std::string lock_folder = {};  ///< of the PciLock held while it is open; empty: none
};

/// The function, which must be bound to vfio-pci, as must (or to nothing) all of its IOMMU group.
///
/// BARs are mapped; what the kernel keeps to itself of one goes through its file, 4 bytes at a time
/// at most. dma_map() pins: one large mapping rather than many. BARs keep their size (the kernel
/// resizes functions without a driver only): resize_bar() is kUnsupported but for the size there
/// is. The kernel's request for the device (unbound, unplugged) and uncorrectable PCI Express
/// errors are kDeviceLost from then on; close the function soon then, since whoever asked is
/// waiting.
///
/// Errors: kNotFound (no such function, or no VFIO), kUnsupported (no IOMMU), kPermission and kIo
/// with the node or driver in the way and the remedy, kCorrupt. `system` outlives the function.
Result<std::unique_ptr<PciFunction>> open_vfio_pci(System& system, const VfioPciOptions& options);

}  // namespace bm
