#pragma once
// A PCI function that another process of this machine plays, over a vfio-user socket: a model of a
// device needs no kernel and no virtual machine then.
// Source: "vfio-user Protocol Specification", QEMU docs/interop/vfio-user.rst; structures as in
// Linux include/uapi/linux/vfio.h; checked against libvfio-user.

#include <chrono>
#include <memory>
#include <string>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

struct VfioUserOptions {
  std::string address;  ///< absolute path of the socket
  std::chrono::milliseconds reply_limit{10'000};
};

/// The function behind a vfio-user socket.
///
/// BARs are mapped where the server passes a descriptor; other accesses are messages: writes leave
/// at once and are not answered, blocks of registers go and come together, blocks of memory in
/// messages as large as the server takes. dma_allocate() gives memory that the server maps as well;
/// memory of dma_map() it reads and writes by messages, which a thread of ours answers, inside what
/// is mapped only. Interrupts are eventfds that the server writes. reset() of a bus is unsupported.
///
/// Errors: those of StreamSocket::connect(); kUnsupported (another version, no PCI device);
/// kCorrupt (an answer that cannot be); kIo (the server refuses). `system` outlives the function.
Result<std::unique_ptr<PciFunction>> open_vfio_user_pci(System& system,
                                                        const VfioUserOptions& options);

}  // namespace bm
