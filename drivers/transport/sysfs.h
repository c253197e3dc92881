#pragma once
// Small files of the kernel (sysfs, procfs) through the System seam.

#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm {

/// Contents without the blanks at their end. Errors: kNotFound, kPermission, kIo naming the path.
Result<std::string> read_sysfs(System& system, const std::string& path);
/// A number as the kernel writes it, "0x1002" or "-1". Errors: kCorrupt as well.
Result<int64_t> read_sysfs_number(System& system, const std::string& path);
/// One write(2) of the whole text, as attributes want it. Errors: kPermission, kNotFound, kIo.
Status write_sysfs(System& system, const std::string& path, std::string_view text);
/// The last part of where a link leads ("amdgpu" for .../driver); empty where there is none.
/// Errors: kPermission, kIo.
Result<std::string> sysfs_link_name(System& system, const std::string& path);

/// "/sys/bus/pci/devices/0000:03:00.0".
std::string pci_folder(const PciAddress& address);

}  // namespace bm
