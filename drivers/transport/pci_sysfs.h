#pragma once
// A PCI function through the files of its folder in sysfs, with physical addresses: for machines
// without an IOMMU, as root. Behind one that translates use pci_vfio.h.
// Source: Linux Documentation/PCI/sysfs-pci.rst, drivers/pci/pci-sysfs.c.

#include <memory>
#include <string>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

/// The function, which no driver may be bound to. It is enabled here and disabled when closed, bus
/// mastering off first, so that nothing writes to memory that is given back.
///
/// DMA reaches huge pages of dma_allocate() only: other memory of a process may be moved under the
/// device. No interrupts. reset() is what the kernel knows for the function alone.
///
/// Errors: kNotFound; kPermission (a driver is bound, the files belong to root, or the kernel is
/// locked down); kUnsupported (an IOMMU translates its accesses: VFIO); kCorrupt, kIo. `system`
/// outlives the function. `lock_folder`: of the PciLock held while it is open; empty: none.
Result<std::unique_ptr<PciFunction>> open_sysfs_pci(System& system, const PciAddress& address,
                                                    const std::string& lock_folder = {});

}  // namespace bm
